"""Are p-values what they claim? Their quantiles beside those of the uniform law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.evaluation.estimate import check_level

__all__ = ["PvaluePlot", "pvalue_plot"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PvaluePlot:
    """Points of a QQ plot: the k-th smallest of m p-values (`observed`) at k / (m + 1) (`expected`).

    `low` and `high` bound each observed value with probability `level` if the claim holds.
    """

    expected: Array
    observed: Array
    low: Array
    high: Array
    count: int
    level: float


def pvalue_plot(pvalues: Any, *, calibration: int | None = None, points: int = 80, level: float = 0.95) -> PvaluePlot:
    """QQ points of p-values against the uniform law, at ranks k evenly spaced in log k; NaN is left out.

    The band is pointwise. For independent uniform p-values the k-th of m is Beta(k, m + 1 - k). For conformal
    p-values that share n = `calibration` scores it is wider: the k-th is at most j / (n + 1) just if, in random
    order, at least k of the j + k - 1 highest of n + m scores are queries, a hypergeometric probability.
    """
    check_level("pvalue_plot", level)
    p = np.asarray(pvalues, dtype=np.float64).ravel()
    p = np.sort(p[~np.isnan(p)])
    m = len(p)
    if not m:
        raise InputError("pvalue_plot: needs at least one p-value; got none. No query could be tested.")
    ranks = np.unique(np.geomspace(1, m, points).round().astype(np.int64))
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = (_order_statistic(ranks, m, calibration, tail) for tail in tails)
    return PvaluePlot(ranks / (m + 1), p[ranks - 1], low, high, m, level)


def _order_statistic(ranks: npt.NDArray[np.int64], m: int, n: int | None, tail: float) -> Array:
    """The `tail` quantile of the k-th smallest of m null p-values, for each k."""
    from scipy.stats import beta, hypergeom

    if n is None:
        return np.asarray(beta.ppf(tail, ranks, m + 1 - ranks), dtype=np.float64)
    low, high = np.zeros(len(ranks), dtype=np.int64), np.full(len(ranks), n + 1)  # P(low) < tail <= P(high)
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough = hypergeom.sf(ranks - 1, n + m, m, middle + ranks - 1) >= tail
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return high / (n + 1)
