"""Before collecting data: how many calibration points and draws a claim needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from arht.errors import InputError
from arht.stats.multiplicity import TIE

__all__ = ["Plan", "plan"]

MOST = 10**9


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of calibration inputs, one for each wish, and of draws. Several layers' own half is included."""

    for_level: int
    """So that the realised level is at most level (1 + slack) with probability `confidence`."""
    for_rate: int
    """So that BH can reject when ⌈rate · tests⌉ of the tests score above every calibration input."""
    for_one: int
    """So that BH can reject a single one among the tests."""
    calibration: int
    """The larger of the first two: what the wishes need."""
    draws: int | None
    """Draws a query; ``None`` where no share was given."""
    assumptions: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.calibration} calibration inputs ({self.for_level} for the level, {self.for_rate} for the rate; "
            f"{self.for_one} to find a single one)"
        ]
        if self.draws is not None:
            lines.append(f"{self.draws} draws a query")
        return "\n".join(lines)


def plan(
    *,
    level: float = 0.05,
    tests: int = 1000,
    rate: float = 0.01,
    fdr: float = 0.05,
    slack: float = 0.2,
    confidence: float = 0.95,
    draw_share: float | None = None,
    inflation: float = 0.05,
    layers: int = 1,
) -> Plan:
    """How many held-out inputs to calibrate on, and how many draws to take.

    * The smallest conformal p-value is 1 / (n + 1). BH at `fdr` among m = `tests` rejects k queries at that floor
      just if 1 / (n + 1) <= fdr k / m, k = ⌈rate m⌉: n >= m / (fdr k) - 1.
    * Given a calibration set, the realised level is Beta(j, n + 1 - j), j = ⌊level (n + 1)⌋. The least n (and all
      beyond it that were looked at) with P(realised <= level (1 + slack)) >= confidence.
    * The mean of K draws adds a K-th of the draws' variance to an embedding. With `draw_share` w, the draws' share
      of the total variance (of one draw), the variance is up by w / ((1 - w) K): the least K that keeps this within
      `inflation`. It counts noise alone; whether more draws also see more is a matter of the encoder.
    * A detector of several `layers`, and a guard of several (mode "auto"), spends every second calibration input on the
      layers' own laws and has its p-values from the others: all numbers of inputs are twice as large.

    >>> print(plan(level=0.05, tests=1000, rate=0.01, fdr=0.05, draw_share=0.3))
    1999 calibration inputs (1399 for the level, 1999 for the rate; 19999 to find a single one)
    9 draws a query
    """
    shares = {"level": level, "fdr": fdr, "confidence": confidence}
    for name, value in shares.items():
        if not 0 < value < 1:
            raise InputError(f"plan: {name} must be above 0 and below 1; got {value!r}.")
    if not 0 < rate <= 1:
        raise InputError(f"plan: rate must be above 0 and at most 1; got {rate!r}. It is the share of OOD queries.")
    if not isinstance(tests, int) or tests < 1:
        raise InputError(f"plan: tests must be a whole number >= 1; got {tests!r}.")
    if not (slack > 0 and inflation > 0):
        raise InputError(f"plan: slack and inflation must be positive; got {slack!r} and {inflation!r}.")
    if draw_share is not None and not 0 <= draw_share < 1:
        raise InputError(f"plan: draw_share must be at least 0 and below 1; got {draw_share!r}.")

    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise InputError(f"plan: layers must be a whole number >= 1; got {layers!r}.")
    times = 2 if layers > 1 else 1

    def reach(k: int) -> int:
        return times * max(1, math.ceil(tests / (fdr * k) * (1 - TIE)) - 1)

    for_rate, for_level = reach(math.ceil(rate * tests * (1 - TIE))), times * _for_level(level, slack, confidence)
    draws = None
    if draw_share is not None:
        draws = max(1, math.ceil(draw_share / ((1 - draw_share) * inflation) * (1 - TIE)))
    used: dict[str, float] = {**shares, "tests": tests, "rate": rate, "slack": slack, "inflation": inflation}
    used["layers"] = layers
    if draw_share is not None:
        used["draw_share"] = draw_share
    return Plan(for_level, for_rate, reach(1), max(for_rate, for_level), draws, used)


def _for_level(level: float, slack: float, confidence: float) -> int:
    """Least n of the form j / level - 1, from which on (looked at by doubling) the realised level stays in bounds."""
    from scipy.stats import beta

    bound = min(level * (1 + slack), 1.0)

    def holds(j: int) -> bool:
        n = math.ceil(j / level * (1 - TIE)) - 1
        return bool(beta.cdf(bound, j, n + 1 - j) >= confidence)

    high = 1
    while not holds(high):
        high *= 2
        if high / level > MOST:
            raise InputError(f"plan: slack must be larger; got {slack!r}, which needs more than {MOST:g} inputs.")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return math.ceil(high / level * (1 - TIE)) - 1
