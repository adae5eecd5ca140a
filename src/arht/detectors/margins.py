"""The empirical law of calibration scores as a smooth yardstick: log p-values that keep their order in the tail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arht._shapes import Float, Tensor

__all__ = ["RULES", "Margin"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Margin:
    """P(score ≥ s) among n sorted calibration scores: by rank, and by an exponential law beyond the largest few.

    Inside, #{scores ≥ s} / (n + 1), straight between the scores, so that it never contradicts the order of the
    conformal p-values; beyond the score u above which a share `tail` of them lies (0: the largest),
    p(u) exp(-(s - u) / β), β the mean excess of the largest 2 % (five at least), so that far queries keep their order
    where ranks end. A yardstick for combining and ranking, not a p-value with a guarantee: that one is made by
    `arht.stats.nulls.Conformal` from the result.
    """

    scores: Float[Tensor, " n"]
    """Ascending."""
    two_sided: bool = False
    tail: float = 0.02

    def log_pvalue(self, scores: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """ln p, NaN for NaN; two-sided: ln min(1, 2 min(upper, lower))."""
        upper = self._upper(self.scores, scores)
        if not self.two_sided:
            return upper
        lower = self._upper(-self.scores.flip(0), -scores)
        return (torch.minimum(upper, lower) + float(np.log(2))).clamp_max(0)

    def _upper(self, table: Tensor, scores: Tensor) -> Tensor:
        n = len(table)
        x, first = np.unique(table.numpy(), return_index=True)
        p = (n - first) / (n + 1.0)
        start = int(np.searchsorted(x, table[n - min(max(int(self.tail * n), 1), n)].item()))
        top = table[n - min(max(n // 50, 5), n) :]
        excess = float((top - top[0]).mean()) or float(table.std(correction=0)) or max(abs(float(x[start])), 1.0)
        s = scores.detach().cpu().numpy().astype(np.float64)
        inside = np.where(s < x[0], 0.0, np.log(np.interp(s, x[: start + 1], p[: start + 1])))
        beyond = np.log(p[start]) - (s - x[start]) / excess
        return torch.from_numpy(np.where(np.isnan(s), np.nan, np.where(s > x[start], beyond, inside)))


def _stouffer(log_p: Array) -> Array:
    from scipy.special import ndtri_exp

    return np.asarray(-ndtri_exp(np.minimum(log_p, -1e-12)).sum(-1))


def _cauchy(log_p: Array) -> Array:
    """asinh of Σ cot(πp), which is ln(2T) where T would overflow."""
    from scipy.special import logsumexp

    exact = np.arcsinh((1 / np.tan(np.pi * np.clip(np.exp(log_p), 1e-250, 1 - 1e-12))).sum(-1))
    far = logsumexp(-log_p, axis=-1) + np.log(2 / np.pi)
    return np.where(log_p.min(-1) < -500, far, exact)


def _harmonic_mean(log_p: Array) -> Array:
    from scipy.special import logsumexp

    return np.asarray(logsumexp(-log_p, axis=-1))


RULES: dict[str, Callable[[Array], Any]] = {
    "fisher": lambda log_p: -log_p.sum(-1),
    "stouffer": _stouffer,
    "cauchy": _cauchy,
    "harmonic_mean": _harmonic_mean,
    "bonferroni": lambda log_p: -log_p.min(-1),
}
"""Scores [B] that order queries as the combination of that name in `arht.stats.combination` orders its p-values,
from ln p of each layer [B, L]: in logarithms, where the combined p-value itself would underflow."""
