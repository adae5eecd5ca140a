"""Scores of several groups in the same bins, on an axis that shows the bulk and does not hide the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["score_histograms"]

BINS = 60
SPREAD = 30.0
"""Positive scores whose largest is so many times the smallest median of a group have a logarithmic axis."""

Array = npt.NDArray[np.float64]


def score_histograms(groups: Mapping[str, Any]) -> dict[str, Any] | None:
    """Edges, and for each group its count and the share of it in each bin.

    A group is an array of scores, or a summary ``{"n", "quantiles"}`` with quantiles at even steps from 0 to 1, whose
    shares are those of the straight lines between them. What lies beyond the outermost edges is counted in the
    outermost bins and as ``below`` and ``above``.
    """
    points = {name: _points(given) for name, given in groups.items() if given is not None}
    points = {name: found for name, found in points.items() if len(found[1])}
    if not points:
        return None
    # every group weighs the same when the axis is chosen, or a large one would push a small one off it
    ends = np.array([np.quantile(values, [0.0, 0.001, 0.5, 0.97, 1.0]) for _, values, _ in points.values()])
    lowest, highest = float(ends[:, 0].min()), float(ends[:, 4].max())
    log = lowest > 0 and highest > SPREAD * float(ends[:, 2].min())
    low, high = float(ends[:, 1].min()), float(ends[:, 3].max())
    if log:
        high = highest
    else:
        low, high = max(lowest, low - 0.05 * (high - low)), min(highest, high + 0.15 * (high - low))
    if not high > low:
        low, high = low - 0.5, high + 0.5
        log = False
    edges = np.geomspace(low, high, BINS + 1) if log else np.linspace(low, high, BINS + 1)
    found = []
    for name, (count, values, summary) in points.items():
        share = _shares(values, edges, summary)
        beyond = [int((values < edges[0]).sum()), int((values > edges[-1]).sum())]
        if summary:
            inside = np.interp(edges[[0, -1]], values, np.linspace(0, 1, len(values)))
            beyond = [round(count * float(inside[0])), round(count * float(1 - inside[1]))]
        found.append(
            {
                "name": name,
                "count": count,
                "from": "quantiles of the run record" if summary else "scores",
                "share": share,
                "below": beyond[0],
                "above": beyond[1],
                "median": float(np.median(values)),
                "largest": float(values.max()),
            }
        )
    return {"edges": edges, "log": log, "groups": found}


def _points(given: Any) -> tuple[int, Array, bool]:
    """How many scores a group has, its scores or quantiles, and which of the two."""
    summary = isinstance(given, Mapping)
    values = np.asarray(given.get("quantiles") or [] if summary else given, dtype=np.float64).ravel()
    values = values[np.isfinite(values)]
    return (int(given.get("n") or 0) if summary else len(values)), values, summary


def _shares(values: Array, edges: Array, summary: bool) -> Array:
    if not summary:
        return np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values)
    levels = np.linspace(0, 1, len(values))
    reached = np.interp(edges, values, levels)
    reached[0], reached[-1] = 0.0, 1.0
    return np.diff(reached)
