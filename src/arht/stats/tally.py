"""BH and BY over p-values that come in chunks: the answer of `decide`, in memory that does not grow with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.stats.multiplicity import TIE, check_fdr, warn_of_resolution

__all__ = ["StepUp", "Tally"]

Array = npt.NDArray[np.float64]

LIMIT = 1 << 22
"""Different p-values that are kept apart: 64 MB."""


class Tally:
    """Counts of p-values. `add` chunks of them, then `decide`; in a second pass, ask its answer about each chunk.

    What BH makes of a p-value depends on the value and on the counts alone. Up to `limit` different values the
    answer is that of `arht.stats.multiplicity.decide`; beyond, p-values are first rounded up to as many binary
    digits as fit. Rounded up they are still p-values, so what the decision claims still holds.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.digits = 52
        """Binary digits of a p-value that count."""
        self.untested = 0
        self._values: Array = np.empty(0)
        self._counts: Array = np.empty(0)
        self._waiting: list[Array] = []

    def add(self, pvalues: Any) -> None:
        """Count some more, NaN as not tested."""
        p = np.asarray(pvalues, dtype=np.float64).ravel()
        tested = p[~np.isnan(p)]
        self.untested += p.size - tested.size
        if tested.size and not (tested.min() >= 0 and tested.max() <= 1):
            raise InputError("Tally.add: pvalues must be between 0 and 1, or NaN; pass p-values, not scores.")
        self._waiting.append(tested)
        if sum(part.size for part in self._waiting) > max(self.limit // 4, 1 << 16):
            self._settle()

    def _settle(self) -> None:
        for part in self._waiting:
            self._merge(*np.unique(_up(part, self.digits), return_counts=True))
        self._waiting = []
        while self._values.size > self.limit:
            self.digits -= 4
            values, counts = _up(self._values, self.digits), self._counts
            self._values = self._counts = np.empty(0)
            self._merge(values, counts)

    def _merge(self, values: Array, counts: Any) -> None:
        values = np.concatenate([self._values, values])
        self._values, place = np.unique(values, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place, weights=weights, minlength=self._values.size).astype(np.float64, copy=False)

    def decide(self, *, fdr: float = 0.05, method: str = "bh", smallest_pvalue: float = 0.0) -> StepUp:
        """The decision over everything counted; arguments, ties and warnings as of `decide`."""
        check_fdr(fdr)
        if method not in ("bh", "by"):
            raise InputError(f"Tally.decide: method must be one of 'bh', 'by'; got {method!r}.")
        self._settle()
        m = int(self._counts.sum())
        factor = 1.0 if method == "bh" else _harmonic(m)
        with np.errstate(divide="ignore", invalid="ignore"):
            adjusted = self._values * (m / np.cumsum(self._counts))
        if method == "by":
            adjusted *= factor
        adjusted = np.minimum.accumulate(adjusted[::-1])[::-1].clip(0, 1)
        adjusted[(adjusted > fdr) & (adjusted <= fdr * (1 + TIE))] = fdr
        chosen = adjusted <= fdr
        warn_of_resolution(m, factor, fdr, method, smallest_pvalue)
        return StepUp(
            values=self._values,
            adjustment=adjusted,
            digits=self.digits,
            fdr=fdr,
            method=method,
            threshold=float(self._values[chosen].max(initial=0.0)),
            rejections=int(self._counts[chosen].sum()),
            tested=m,
            untested=self.untested,
        )


@dataclass(frozen=True, slots=True)
class StepUp:
    """What BH or BY makes of each p-value that was counted."""

    values: Array
    """The different p-values, ascending."""
    adjustment: Array
    digits: int
    fdr: float
    method: str
    threshold: float
    """The largest p-value that is rejected; 0 where none is."""
    rejections: int
    tested: int
    untested: int

    def adjusted(self, pvalues: Any) -> Array:
        """Adjusted p-values of some that were counted; NaN for NaN."""
        p = np.asarray(pvalues, dtype=np.float64)
        if not self.values.size:
            return np.full(p.shape, np.nan)
        place = np.searchsorted(self.values, _up(p, self.digits)).clip(max=self.values.size - 1)
        return np.where(np.isnan(p), np.nan, self.adjustment[place])

    def rejected(self, adjusted: Array) -> npt.NDArray[np.bool_]:
        """Whether adjusted p-values are rejected."""
        return np.asarray(adjusted <= self.fdr)


def _up(p: Array, digits: int) -> Array:
    """Rounded up to so many binary digits after the first."""
    if digits == 52:
        return p
    mask = np.int64((1 << (52 - digits)) - 1)
    rounded: Array = ((np.ascontiguousarray(p).view(np.int64) + mask) & ~mask).view(np.float64)
    return np.where(np.isnan(p), p, np.minimum(rounded, 1.0))


def _harmonic(m: int) -> float:
    """H_m = Σ 1/i."""
    if m <= LIMIT:
        return float(np.sum(1 / np.arange(1, m + 1)))
    return float(np.log(m) + np.euler_gamma + 1 / (2 * m) - 1 / (12 * m**2))
