"""A test result in memory as the columns and the run record that `arht score` would write of it."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from arht.errors import ResolutionWarning

__all__ = ["scores_of"]


def scores_of(
    result: Any,
    *,
    fdr: float = 0.05,
    method: str = "bh",
    labels: Any = None,
    ids: Any = None,
    calibration: Any = None,
    reference: Any = None,
    audit: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and run record of a result [B], for `collect`.

    Parameters
    ----------
    result : TestResult
    fdr, method
        The decision that the page opens with.
    labels, ids : array-like [B], optional
        1 where a query is known to be OOD, else 0; names.
    calibration, reference : array-like, optional
        Scores of those inputs.
    audit : Audit, optional
    settings : mapping, optional
        What else the page is to state of the run.
    """
    from arht.stats.multiplicity import decide

    pvalue = _array(result.pvalue)
    count = len(pvalue)
    ridge = np.full(count, np.nan) if result.ridge is None else np.broadcast_to(_array(result.ridge), (count,))
    columns = {
        "row": np.arange(count),
        "statistic": _array(result.statistic),
        "score": _array(result.score),
        "pvalue": pvalue,
        "ridge": ridge,
        "outcome": _array(result.outcome).astype(np.int64),
    }
    if ids is not None:
        columns["id"] = np.asarray(ids, dtype=object)
    if labels is not None:
        columns["label"] = _array(labels).astype(np.int64)
    if getattr(result, "nearest_class", None) is not None:
        columns["nearest_class"] = _array(result.nearest_class)
    for name, layer in (getattr(result, "layers", None) or {}).items():
        columns |= {f"score.{name}": _array(layer.score), f"pvalue.{name}": _array(layer.pvalue)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolutionWarning)  # the page says it
        decision = decide(pvalue, fdr=fdr, method=method, smallest_pvalue=result.smallest_pvalue)
    columns |= {"adjusted_pvalue": decision.adjusted, "rejected": decision.rejected}
    codes, counts = np.unique(columns["outcome"], return_counts=True)
    names = ("arht", "torch", "numpy")
    run = {
        "schema": 1,
        "kind": "scores",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in names},
        "settings": {"fdr": fdr, "method": method, **(settings or {})},
        "rows": count,
        "tested": decision.tested,
        "untested": decision.untested,
        "outcomes": {str(code): int(n) for code, n in zip(codes, counts, strict=True)},
        **{name: getattr(result, name) for name in ("method", "null", "guarantee", "smallest_pvalue")},
        "decision": {
            "fdr": fdr,
            "method": method,
            "threshold": decision.threshold,
            "rejected": decision.rejected_count,
            "tested": decision.tested,
        },
        "calibration": _summary(calibration),
        "reference": _summary(reference),
        "audit": None if audit is None else audit.as_dict(),
    }
    return columns, run


def _summary(scores: Any) -> dict[str, Any] | None:
    if scores is None:
        return None
    values = _array(scores).astype(np.float64)
    values = values[np.isfinite(values)]
    return {"n": len(values), "quantiles": np.quantile(values, np.linspace(0, 1, 201)).tolist()}


def _array(values: Any) -> Any:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
