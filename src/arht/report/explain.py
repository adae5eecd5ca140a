"""A detector's explanation of some queries, cut to what a person reads."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["explanations"]

DIRECTIONS = 5
NEAREST = 5


def explanations(detector: Any, draws: Any) -> list[dict[str, Any]]:
    """For each query: share by layer, by eigen-direction (the largest, then all others), nearest reference rows.

    Where there are several layers, directions and neighbours are those of the layer with the largest share.
    """
    found = detector.explain(draws, nearest=NEAREST)
    shares = {name: _array(values) for name, values in (found.layers or {}).items()}
    count = len(next(iter(shares.values()))) if shares else len(_array(found.directions))
    result = []
    for i in range(count):
        entry: dict[str, Any] = {}
        part = found
        if shares:
            entry["layers"] = dict(
                sorted(((name, float(values[i])) for name, values in shares.items()), key=lambda pair: -pair[1])
            )
            entry["layer"] = next(iter(entry["layers"]))
            part = (found.parts or {}).get(entry["layer"])
        if part is not None and part.directions is not None:
            entry["directions"] = _largest(_array(part.directions)[i])
        if part is not None and part.nearest is not None:
            entry["nearest"] = _array(part.nearest)[i].astype(int).tolist()
            entry["distances"] = _array(part.distances)[i].tolist()
        result.append(entry)
    return result


def _largest(shares: Any) -> list[list[Any]]:
    """[direction, share] of the largest few, and [None, the rest]; empty where there is none."""
    if not np.isfinite(shares).all():
        return []
    order = np.argsort(-shares, kind="stable")[:DIRECTIONS]
    rest = float(shares.sum() - shares[order].sum())
    return [[int(i), float(shares[i])] for i in order] + ([[None, rest]] if len(shares) > DIRECTIONS else [])


def _array(values: Any) -> Any:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
