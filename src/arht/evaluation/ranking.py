"""Scores of in-distribution and OOD inputs -> AUROC, AUPR, FPR at a TPR. Larger score = more OOD = positive."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.evaluation.estimate import RESAMPLES, Estimate, bootstrap, check_level

__all__ = ["Metrics", "aupr", "auroc", "evaluate", "fpr_at"]

Array = npt.NDArray[np.float64]

GROUPS = 20_000
"""Distinct scores that a bootstrap tells apart; beyond, neighbours count as one (the value itself is exact)."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """How well scores separate OOD from in-distribution inputs."""

    auroc: Estimate
    """Probability that an OOD input scores above an in-distribution one, ties counting half."""
    aupr: Estimate
    """Average precision, OOD being positive; its blind value is n_out / (n_in + n_out)."""
    fpr95: Estimate
    """Share of in-distribution inputs called OOD at the cut that finds 95 % of the OOD inputs."""
    n_in: int
    n_out: int
    untested_in: int
    """In-distribution inputs without a score (NaN); they are in no other number."""
    untested_out: int

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return asdict(self)


def evaluate(
    scores_in: Any, scores_out: Any, *, level: float = 0.95, resamples: int = RESAMPLES, generator: Any = None
) -> Metrics:
    """All of this module at once. NaN scores are left out and counted.

    Without a torch generator, AUPR and FPR have no interval: theirs are bootstrapped.

    >>> import torch
    >>> metrics = evaluate([0.1, 0.4, 0.2, 0.3], [0.35, 0.9, 0.8], generator=torch.Generator().manual_seed(0))
    >>> print(round(metrics.auroc.value, 4), metrics.auroc.interval, metrics.aupr.interval)
    0.9167 delong bootstrap (1000)
    """
    inside, outside = _scores("evaluate", "scores_in", scores_in), _scores("evaluate", "scores_out", scores_out)
    tested_in, tested_out = inside[~np.isnan(inside)], outside[~np.isnan(outside)]
    settings: dict[str, Any] = {"level": level, "resamples": resamples, "generator": generator}
    return Metrics(
        auroc=auroc(tested_in, tested_out, level=level),
        aupr=aupr(tested_in, tested_out, **settings),
        fpr95=fpr_at(tested_in, tested_out, **settings),
        n_in=len(tested_in),
        n_out=len(tested_out),
        untested_in=len(inside) - len(tested_in),
        untested_out=len(outside) - len(tested_out),
    )


def auroc(scores_in: Any, scores_out: Any, *, level: float = 0.95) -> Estimate:
    """P(OOD score > in-distribution score) + P(equal) / 2, with DeLong's interval on the logit scale.

    With V_i = share of in-distribution scores below the i-th OOD score (ties half) and W_j likewise for the j-th
    in-distribution score, AUROC = mean V and its variance is var(V) / n_out + var(W) / n_in (DeLong et al. 1988).
    The interval is logit⁻¹(logit A ± z · sd / (A (1 - A))).

    At 0 and 1 that variance is zero, which is no evidence of certainty: there the min(n_in, n_out) disjoint pairs,
    which are independent, give a Clopper-Pearson interval.
    """
    from scipy.stats import norm, rankdata
    from sklearn.metrics import roc_auc_score

    inside, outside = _pair("auroc", scores_in, scores_out, level)
    m, n = len(outside), len(inside)
    value = float(roc_auc_score(np.r_[np.zeros(n), np.ones(m)], rankdata(np.r_[inside, outside])))
    if value in (0.0, 1.0):
        far = float(((1 - level) / 2) ** (1 / min(m, n)))
        low, high = (far, 1.0) if value else (0.0, 1 - far)
        return Estimate(value, low, high, level, "disjoint pairs")
    if min(m, n) < 2:
        return Estimate(value, level=level)
    ranks = rankdata(np.r_[outside, inside])
    v = (ranks[:m] - rankdata(outside)) / n
    w = 1 - (ranks[m:] - rankdata(inside)) / m
    sd = float(np.sqrt(v.var(ddof=1) / m + w.var(ddof=1) / n))
    middle, reach = np.log(value / (1 - value)), norm.ppf((1 + level) / 2) * sd / (value * (1 - value))
    low, high = (float(1 / (1 + np.exp(-(middle + side * reach)))) for side in (-1, 1))
    return Estimate(value, low, high, level, "delong")


def aupr(
    scores_in: Any, scores_out: Any, *, level: float = 0.95, resamples: int = RESAMPLES, generator: Any = None
) -> Estimate:
    """Average precision, OOD being positive: sum over cuts of (recall gained) × precision; bootstrap interval."""
    from sklearn.metrics import average_precision_score

    inside, outside = _pair("aupr", scores_in, scores_out, level)
    value = float(average_precision_score(*_labelled(inside, outside)))
    counts = grouped(inside, outside)
    return bootstrap(value, _average_precision, *counts, level=level, resamples=resamples, generator=generator)


def fpr_at(
    scores_in: Any,
    scores_out: Any,
    *,
    tpr: float = 0.95,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    generator: Any = None,
) -> Estimate:
    """Share of in-distribution scores at or above the highest cut that keeps `tpr` of the OOD; bootstrap interval."""
    from sklearn.metrics import roc_curve

    if not 0 < tpr <= 1:
        raise InputError(f"fpr_at: tpr must be above 0 and at most 1; got {tpr!r}. The usual value is 0.95.")
    inside, outside = _pair("fpr_at", scores_in, scores_out, level)
    labels, scores = _labelled(inside, outside)
    fprs, tprs, _ = roc_curve(labels, scores, drop_intermediate=False)
    value = float(fprs[tprs >= tpr - 1e-12].min())
    return bootstrap(
        value,
        lambda weights_in, weights_out: _fpr(weights_in, weights_out, tpr),
        *grouped(inside, outside),
        level=level,
        resamples=resamples,
        generator=generator,
    )


def grouped(inside: Array, outside: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many in-distribution and how many OOD inputs have each distinct score, the largest score first, [G]."""
    distinct, place = np.unique(np.r_[inside, outside], return_inverse=True)
    if len(distinct) > GROUPS:
        place = place * GROUPS // len(distinct)
    place = place.max() - place
    size = int(place.max()) + 1
    n = len(inside)
    return np.bincount(place[:n], minlength=size), np.bincount(place[n:], minlength=size)


def _average_precision(weights_in: Array, weights_out: Array) -> Array:
    found, alarms = weights_out.cumsum(1), weights_in.cumsum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.nan_to_num(found / (found + alarms))
        return (weights_out * precision).sum(1) / found[:, -1]


def _fpr(weights_in: Array, weights_out: Array, tpr: float) -> Array:
    found, alarms = weights_out.cumsum(1), weights_in.cumsum(1)
    cut = (found >= tpr * found[:, -1:] * (1 - 1e-12)).argmax(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return alarms[np.arange(len(cut)), cut] / alarms[:, -1]


def _labelled(inside: Array, outside: Array) -> tuple[Array, Array]:
    """Labels (1 = OOD) and scores; infinities become the ends of the finite range, their order kept."""
    from scipy.stats import rankdata

    return np.r_[np.zeros(len(inside)), np.ones(len(outside))], rankdata(np.r_[inside, outside], method="dense") * 1.0


def _pair(who: str, scores_in: Any, scores_out: Any, level: float) -> tuple[Array, Array]:
    check_level(who, level)
    pair = _scores(who, "scores_in", scores_in), _scores(who, "scores_out", scores_out)
    for name, scores in zip(("scores_in", "scores_out"), pair, strict=True):
        if np.isnan(scores).any():
            raise InputError(
                f"{who}: {name} must not be NaN; got {int(np.isnan(scores).sum())} of {len(scores)}. "
                "These queries were not tested; leave them out and count them, as evaluate does."
            )
        if not len(scores):
            raise InputError(
                f"{who}: {name} must hold at least one score; got none. A ranking needs inputs of both kinds."
            )
    return pair


def _scores(who: str, name: str, scores: Any) -> Array:
    values = np.asarray(scores.detach().cpu() if hasattr(scores, "detach") else scores)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise InputError(
            f"{who}: {name} must be numbers [B]; got shape {values.shape}, dtype {values.dtype}. "
            "Pass one score per input."
        )
    return values.astype(np.float64)
