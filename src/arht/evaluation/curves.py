"""ROC and precision-recall curves, with a pointwise bootstrap band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.evaluation.estimate import RESAMPLES, resampled
from arht.evaluation.ranking import _pair, grouped

__all__ = ["Curve", "precision_recall", "roc"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """y over x on a grid; `low` and `high` bound y at each x with probability `level` (None without a generator)."""

    x: Array
    y: Array
    low: Array | None
    high: Array | None
    level: float


def roc(
    scores_in: Any,
    scores_out: Any,
    *,
    points: int = 101,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    generator: Any = None,
) -> Curve:
    """Share of OOD found (y) by share of in-distribution inputs called OOD (x): straight between the cuts."""
    inside, outside = _pair("roc", scores_in, scores_out, level)
    grid = np.linspace(0, 1, points) ** 2  # finer where false alarms are few

    def curve(weights_in: Array, weights_out: Array) -> Array:
        alarms, found = _share(weights_in), _share(weights_out)
        return np.stack([np.interp(grid, *_corner(x, y)) for x, y in zip(alarms, found, strict=True)])

    return _band(grid, curve, grouped(inside, outside), level, resamples, generator)


def precision_recall(
    scores_in: Any,
    scores_out: Any,
    *,
    points: int = 101,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    generator: Any = None,
) -> Curve:
    """Share of OOD among those called OOD (y) at the first cut that finds a share x of the OOD."""
    inside, outside = _pair("precision_recall", scores_in, scores_out, level)
    grid = np.linspace(0, 1, points)[1:]

    def curve(weights_in: Array, weights_out: Array) -> Array:
        found, alarms = weights_out.cumsum(1), weights_in.cumsum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = found / (found + alarms)
        rows = []
        for seen, y in zip(_share(weights_out), precision, strict=True):
            cut = np.searchsorted(seen, grid - 1e-12).clip(max=len(y) - 1)
            rows.append(y[cut])
        return np.stack(rows)

    return _band(grid, curve, grouped(inside, outside), level, resamples, generator)


def _band(grid: Array, curve: Any, counts: Any, level: float, resamples: int, generator: Any) -> Curve:
    y = curve(*(count[None].astype(np.float64) for count in counts))[0]
    if generator is None:
        return Curve(grid, y, None, None, level)
    rows = np.concatenate([curve(*weights) for weights in resampled(counts, resamples, generator)])
    low, high = np.nanquantile(rows, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Curve(grid, y, low, high, level)


def _share(weights: Array) -> Array:
    total = weights.cumsum(1)
    return total / np.maximum(total[:, -1:], 1)


def _corner(x: Array, y: Array) -> tuple[Array, Array]:
    """With the corner (0, 0); of several points at one x, np.interp needs them in order, which they are."""
    return np.r_[0, x], np.r_[0, y]
