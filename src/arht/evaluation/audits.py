"""Do a detector's p-values hold on further in-distribution inputs, and what may be claimed from them?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.evaluation.estimate import Estimate, clopper_pearson
from arht.stats.multiplicity import TIE

__all__ = ["Audit", "LevelCheck", "audit", "level_band"]

LEVELS = (0.01, 0.05, 0.10)

SAME = 1e-9
"""Two scores that differ by less, relatively, are of one input: batches of another size round differently."""


@dataclass(frozen=True, slots=True)
class LevelCheck:
    """Share of held-out in-distribution inputs with p <= level, beside what the claim allows."""

    level: float
    realised: Estimate
    """With its Clopper-Pearson interval."""
    low: float
    high: float
    """Bounds of the share if the p-values hold: exact, the spread of the calibration set included."""
    holds: bool
    """The share is not above `high`. Below `low`, p-values are too large: power is lost, no claim."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What held-out in-distribution inputs say about a detector's p-values."""

    tested: int
    untested: int
    guarantee: str
    null: str
    uniformity: float
    """P-value of the hypothesis that the p-values are uniform, two-sided Kolmogorov-Smirnov: against the calibration
    scores themselves where there are some, against the uniform law otherwise."""
    excess: float
    """The same, one-sided: small where p-values are too small."""
    levels: tuple[LevelCheck, ...]
    smallest_pvalue: float
    fdr: float
    tests: int
    """Size m of the family that the FDR is asked for."""
    needed: int
    """How many of the m queries must reach the smallest p-value together before BH rejects any of them."""
    reasons: tuple[str, ...]
    """Why the FDR cannot be claimed; empty where it can."""

    @property
    def passed(self) -> bool:
        """Whether an FDR of `fdr` can be claimed for `tests` queries."""
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        lines = [f"{self.tested} held-out inputs, {self.untested} untested; {self.guarantee} p-values, {self.null}"]
        lines += [
            f"p <= {check.level:g}: {check.realised}; allowed {check.low:.4g} to {check.high:.4g}"
            for check in self.levels
        ]
        lines.append(f"uniformity: p = {self.uniformity:.3g}; too small: p = {self.excess:.3g}")
        lines.append(
            f"smallest p-value {self.smallest_pvalue:.3g}: among {self.tests} tests at fdr={self.fdr:g}, "
            f"{self.needed} must reach it together"
        )
        lines.append(
            "the FDR can be claimed" if self.passed else "the FDR cannot be claimed: " + "; ".join(self.reasons)
        )
        return "\n".join(lines)


def audit(
    result: Any,
    *,
    calibration: Any = None,
    fdr: float = 0.05,
    tests: int | None = None,
    levels: tuple[float, ...] = LEVELS,
    false_alarm: float = 0.01,
) -> Audit:
    """Audit the test result of held-out in-distribution inputs, which neither fit nor calibration has seen.

    Conformal p-values end at 1 / (n + 1) and hold down to there. Those of a law without a floor, asymptotic ones above
    all, are beyond what can be seen where BH works, near ``fdr / tests``: there the FDR can be claimed only if the
    held-out inputs reach that level, ``fdr / tests >= 1 / (tested + 1)``, and it is then checked as the others are.

    Parameters
    ----------
    result : TestResult
    calibration : array-like [n], optional
        The calibration scores, on the scale of ``result.statistic`` or ``result.score``. Held-out inputs that have
        these very scores calibrated the detector, and are refused.
    fdr, tests
        The claim to judge: BH at `fdr` among `tests` queries (default: as many as were held out).
    false_alarm : float
        Probability that valid p-values fail the audit, shared evenly by its level checks and the excess.
    """
    p = np.asarray(_array(result.pvalue), dtype=np.float64).ravel()
    known = ~np.isnan(p)
    m = int(known.sum())
    if result.guarantee == "none" or not m:
        got = f"scores of {result.method} alone" if result.guarantee == "none" else "none"
        raise InputError(
            f"audit: needs p-values; got {got}. "
            "Call detector.calibrate(heldout) with other in-distribution inputs first."
        )
    if not 0 < fdr < 1:
        raise InputError(f"audit: fdr must be above 0 and below 1; got {fdr!r}.")
    family = m if tests is None else tests
    if not isinstance(family, int | np.integer) or family < 1:
        raise InputError(f"audit: tests must be a whole number >= 1; got {tests!r}.")
    n = None
    if calibration is not None:
        n = int(np.size(_array(calibration)))
        _held_out(result, _array(calibration), known)
    reasons = []
    if result.guarantee != "conformal" and result.smallest_pvalue == 0:
        near = fdr / family
        if near * (m + 1) < 1 - TIE:
            reasons.append(
                f"BH works near p = fdr/tests = {near:.3g}, and {m} held-out inputs see nothing below p = 1/{m + 1}; "
                "calibrate"
            )
        elif near not in levels:
            levels = (near, *levels)
    each = false_alarm / (len(levels) + 1)
    uniformity, excess = _uniformity(p[known], n)
    checks = []
    for level in levels:
        count = int((p[known] <= level * (1 + TIE)).sum())
        low, high = level_band(level, m, calibration=n, outside=2 * each)
        checks.append(LevelCheck(level, clopper_pearson(count, m), low / m, high / m, count <= high))
    needed = max(1, math.ceil(result.smallest_pvalue * family / fdr * (1 - TIE)))
    reasons += [f"too many p-values <= {check.level:g}" for check in checks if not check.holds]
    if excess < each:
        reasons.append("p-values are smaller than uniform ones")
    if needed > family:
        reasons.append(
            f"not even all {family} queries at the smallest p-value would be rejected; calibrate on more inputs"
        )
    return Audit(
        tested=m,
        untested=len(p) - m,
        guarantee=result.guarantee,
        null=result.null,
        uniformity=uniformity,
        excess=excess,
        levels=tuple(checks),
        smallest_pvalue=result.smallest_pvalue,
        fdr=fdr,
        tests=int(family),
        needed=needed,
        reasons=tuple(reasons),
    )


def level_band(level: float, tests: int, *, calibration: int | None = None, outside: float = 0.05) -> tuple[int, int]:
    """Range of #{p <= level} among valid p-values of `tests` inputs that leaves out at most `outside`, half a side.

    Binomial(m, level) for independent uniform p-values. Conformal ones share the n calibration scores: given these
    the realised level is Beta(k, n + 1 - k) with k = ⌊level (n + 1)⌋, so the count is beta-binomial (without ties; with
    ties, smaller).
    """
    from scipy.stats import betabinom, binom

    if calibration is None:
        law = binom(tests, level)
    else:
        k = math.floor(level * (calibration + 1) * (1 + TIE))
        if k == 0:
            return 0, 0
        if k > calibration:
            return 0, tests
        law = betabinom(tests, k, calibration + 1 - k)
    return int(law.ppf(outside / 2)), int(law.ppf(1 - outside / 2))


def _held_out(result: Any, calibration: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]) -> None:
    """Raise where nearly all of the inputs are those that made the law; of several layers, it is made by every second.

    Only calibration scores that no other equals count: where scores repeat, equal ones say nothing.
    """
    scores = np.sort(np.asarray(calibration, dtype=np.float64).ravel())
    twice = np.diff(scores) <= SAME * np.abs(scores[1:])
    scores = scores[~(np.append(False, twice) | np.append(twice, False))]
    if not scores.size:
        return
    found = 0
    for values in (result.score, result.statistic):
        own = np.asarray(_array(values), dtype=np.float64).ravel()[known]
        after = np.searchsorted(scores, own)
        gaps = [np.abs(own - scores[np.clip(at, 0, len(scores) - 1)]) for at in (after - 1, after)]
        found = max(found, int((np.minimum(*gaps) <= SAME * np.abs(own)).sum()))
    n, count = np.size(calibration), int(known.sum())
    if found >= 0.9 * count * (n / (2 * n + 1) if getattr(result, "layers", None) else 1):
        raise InputError(
            f"audit: needs inputs that calibration has not seen; got {count}, {found} of them with the score of a "
            "calibration input. These inputs calibrated it; give others."
        )


def _uniformity(p: npt.NDArray[np.float64], n: int | None) -> tuple[float, float]:
    from scipy.stats import ks_2samp, kstest

    if n is None:
        return float(kstest(p, "uniform").pvalue), float(kstest(p, "uniform", alternative="greater").pvalue)
    # the calibration scores' own p-values are 1/(n+1) ... n/(n+1), each half a step up where queries fall between them
    own = (np.arange(1, n + 1) + 0.5) / (n + 1)
    two, one = (ks_2samp(p, own, alternative=side, method="asymp").pvalue for side in ("two-sided", "greater"))
    return float(two), float(one)


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
