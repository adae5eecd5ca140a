"""From a scores file to everything the page shows, as one JSON record: a number on the page is a field of it.

Decisions come from `arht.stats.multiplicity`, metrics and their intervals from `arht.evaluation`; here is counting,
binning and choosing of rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError, ResolutionWarning
from arht.report.histograms import score_histograms
from arht.report.words import GUARANTEES

__all__ = ["FDRS", "METHODS", "collect", "finite"]

Columns = Mapping[str, npt.NDArray[Any]]

FDRS = (0.01, 0.05, 0.1, 0.2)
METHODS = ("bh", "by")
LONGEST = 2000
"""Items of a list in the run record that are kept in the page."""
PARTS = ("reference", "calibration", "audit", "settings", "versions", "detector")
BASIC = ("row", "score", "pvalue", "statistic", "ridge", "outcome", "adjusted_pvalue", "rejected")


def collect(
    columns: Columns,
    run: Mapping[str, Any],
    *,
    source: str = "scores",
    fdrs: Sequence[float] = FDRS,
    rows: int = 500,
    labels: Any = None,
    reference: Any = None,
    calibration: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The record behind the page: ``{"report": ..., "run": ...}``.

    `labels` are 0 or 1 (OOD) for each row; without them the column ``label`` is taken, where there is one.
    `reference` and `calibration` are scores of those inputs; without them the run record's summaries are taken.
    """
    _check(run)
    for name in BASIC:
        kind = np.asarray(columns[name]).dtype
        if kind.kind not in "fiub":
            raise InputError(f"arht report: column {name} must hold numbers; got {kind}. Score the queries again.")
    score, pvalue, outcome = (np.asarray(columns[name]) for name in ("score", "pvalue", "outcome"))
    score, pvalue = score.astype(np.float64), pvalue.astype(np.float64)
    truth = _truth(columns, labels, len(score))
    tested = ~np.isnan(pvalue)
    scored = ~np.isnan(score)
    chosen = run.get("decision") or {"fdr": 0.05, "method": "bh"}
    decisions = _decisions(score, pvalue, truth, run, fdrs, chosen)
    groups: dict[str, Any] = {
        "reference": (run.get("reference") if reference is None else reference),
        "calibration": (run.get("calibration") if calibration is None else calibration),
    }
    if truth is None:
        groups["queries"] = score
    else:
        groups["in-distribution queries"] = score[~truth]
        groups["OOD queries"] = score[truth]
    found = {
        "source": source,
        "queries": {
            "count": len(score),
            "tested": int(tested.sum()),
            "untested": int((~tested).sum()),
            "scored": int(scored.sum()),
            "reasons": [
                {"outcome": int(code), "count": int(count)}
                for code, count in zip(*np.unique(outcome[~tested], return_counts=True), strict=True)
            ],
            "ood": None if truth is None else int(truth.sum()),
        },
        "chosen": {"fdr": float(chosen["fdr"]), "method": chosen["method"]},
        "decisions": decisions,
        "file_decision": _file_decision(columns, decisions, chosen),
        "scores": score_histograms(groups),
        "pvalues": _pvalue_plots(pvalue[tested], None if truth is None else truth[tested], run),
        "ranking": _ranking(score, truth, seed),
        "table": _table(columns, score, tested, truth, rows),
    }
    record: dict[str, Any] = finite({"report": found, "run": _trimmed(dict(run))})
    return record


def _check(run: Mapping[str, Any]) -> None:
    """The few fields of the run record that decide anything."""
    decision = run.get("decision") or {"fdr": 0.05, "method": "bh"}
    floor = run.get("smallest_pvalue")
    for name, value, right in (
        ("guarantee", run.get("guarantee"), run.get("guarantee") in GUARANTEES),
        ("decision", decision, isinstance(decision, Mapping) and {"fdr", "method"} <= {*decision}),
        ("smallest_pvalue", floor, floor is None or isinstance(floor, int | float)),
        *((name, run.get(name), _is_part(run.get(name))) for name in PARTS),
    ):
        if not right:
            raise InputError(
                f"arht report: the run record must be that of arht score; got {name} = {str(value)[:60]!r}. "
                "Score the queries again."
            )


def _is_part(value: Any) -> bool:
    """Nothing or an object; if it summarises scores, by numbers."""
    if not isinstance(value or {}, Mapping):
        return False
    numbers = [*((value or {}).get("quantiles") or []), (value or {}).get("n") or 0]
    return all(isinstance(number, int | float) for number in numbers)


def finite(value: Any) -> Any:
    """Plain JSON: numbers that are not finite are None, arrays are lists."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return finite(value.tolist())
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        return finite(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _trimmed(value: Any) -> Any:
    """The run record with its very long lists cut: the page is not an archive."""
    if isinstance(value, Mapping):
        return {key: _trimmed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > LONGEST:
            return {"first": list(value[:10]), "left_out": len(value) - 10}
        return [_trimmed(item) for item in value]
    return value


def _truth(columns: Columns, labels: Any, count: int) -> npt.NDArray[np.bool_] | None:
    if labels is None:
        if "label" not in columns:
            return None
        labels = columns["label"]
    values = np.asarray(labels).ravel()
    if len(values) != count or values.dtype.kind not in "fiub" or not np.isin(values, (0, 1)).all():
        raise InputError(
            f"arht report: labels must be 0 (in-distribution) or 1 (OOD) for each of {count} rows; got "
            f"{len(values)} values. Class labels do not belong here; write 1 where an input is OOD."
        )
    return values.astype(bool)


def _decisions(
    score: npt.NDArray[Any],
    pvalue: npt.NDArray[Any],
    truth: npt.NDArray[np.bool_] | None,
    run: Mapping[str, Any],
    fdrs: Sequence[float],
    chosen: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Each method at each FDR, the file's own among them."""
    from arht.evaluation import power, realised_fdr
    from arht.stats.multiplicity import decide

    if run.get("guarantee") == "none" or np.isnan(pvalue).all():
        return []
    methods = [*METHODS] if chosen["method"] in METHODS else [*METHODS, chosen["method"]]
    found = []
    for method in methods:
        for fdr in sorted({*map(float, fdrs), float(chosen["fdr"])}):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ResolutionWarning)
                decision = decide(pvalue, fdr=fdr, method=method, smallest_pvalue=run.get("smallest_pvalue") or 0.0)
            flagged = decision.rejected
            highest = np.max(score[~flagged & ~np.isnan(score)], initial=-np.inf)
            lowest = np.min(score[flagged], initial=np.inf)
            entry = {
                "method": method,
                "fdr": fdr,
                "chosen": method == chosen["method"] and fdr == float(chosen["fdr"]),
                "rejected": decision.rejected_count,
                "tested": decision.tested,
                "threshold": decision.threshold,
                # a cut on the score exists where every flagged score is above every other
                "score_cut": float(lowest) if decision.rejected_count and lowest > highest else None,
                "limit": str(caught[0].message).partition(". ")[2] if caught else None,
            }
            if truth is not None:
                entry["realised_fdr"] = realised_fdr(decision, truth).as_dict()
                entry["power"] = power(decision, truth).as_dict() if truth.any() else None
            found.append(entry)
    return found


def _file_decision(columns: Columns, decisions: list[dict[str, Any]], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the file's column of decisions is what its p-values give; rows may have been taken out of it."""
    own = next((entry for entry in decisions if entry["chosen"]), None)
    if own is None or "rejected" not in columns:
        return {"rejected": None, "agrees": None}
    count = int(np.asarray(columns["rejected"]).astype(bool).sum())
    same = count == own["rejected"] and own["tested"] == chosen.get("tested", own["tested"])
    return {"rejected": count, "agrees": same}


def _pvalue_plots(
    pvalue: npt.NDArray[Any], truth: npt.NDArray[np.bool_] | None, run: Mapping[str, Any]
) -> list[dict[str, Any]]:
    from arht.evaluation import pvalue_plot

    calibration = (run.get("calibration") or {}).get("n") if run.get("guarantee") == "conformal" else None
    parts = {"all queries": pvalue}
    if truth is not None and not truth.all():
        parts = {"in-distribution queries": pvalue[~truth], "all queries": pvalue}
    return [
        {"of": name, **{key: getattr(plot, key) for key in ("expected", "observed", "low", "high", "count", "level")}}
        for name, values in parts.items()
        if len(values)
        for plot in [pvalue_plot(values, calibration=calibration)]
    ]


def _ranking(score: npt.NDArray[Any], truth: npt.NDArray[np.bool_] | None, seed: int) -> dict[str, Any] | None:
    """Metrics and curves with intervals; None without inputs of both kinds."""
    import torch

    from arht.evaluation import evaluate, precision_recall, roc

    if truth is None:
        return None
    inside, outside = score[~truth], score[truth]
    tested = inside[~np.isnan(inside)], outside[~np.isnan(outside)]
    if not len(tested[0]) or not len(tested[1]):
        return None
    generator = torch.Generator().manual_seed(seed)
    curves = {}
    for name, curve in (("roc", roc), ("precision_recall", precision_recall)):
        drawn = curve(*tested, resamples=400, generator=generator)
        curves[name] = {key: getattr(drawn, key) for key in ("x", "y", "low", "high", "level")}
    metrics = evaluate(inside, outside, generator=generator).as_dict()
    blind = {"auroc": 0.5, "aupr": metrics["n_out"] / (metrics["n_in"] + metrics["n_out"]), "fpr95": 0.95}
    return {"metrics": metrics, "blind": blind, "curves": curves, "bootstrap_seed": seed}


def _table(
    columns: Columns,
    score: npt.NDArray[Any],
    tested: npt.NDArray[np.bool_],
    truth: npt.NDArray[np.bool_] | None,
    rows: int,
) -> dict[str, Any]:
    """All queries, or the most suspicious eight tenths, the least suspicious and the untested tenth of `rows`."""
    order = np.argsort(-np.where(np.isnan(score), -np.inf, score), kind="stable")
    order = np.concatenate([order[tested[order]], order[~tested[order]]])
    count, m = len(order), int(tested.sum())
    if count > rows:
        untested = min(count - m, max(1, rows // 10))
        low = min(m, max(1, rows // 10))
        top = min(m - low, max(1, rows - low - untested))
        order = np.concatenate([order[:top], order[m - low : m], order[m : m + untested]])
        parts = {"most": top, "least": low, "untested": untested}
    else:
        parts = {"most": m, "least": 0, "untested": count - m}
    names = ["row", *(name for name in ("file", "id") if name in columns), *BASIC[1:6]]
    names += [name for name in columns if name not in names and name not in BASIC and name != "label"]
    data = {name: [_cell(value) for value in np.asarray(columns[name])[order]] for name in names if name in columns}
    if truth is not None:
        data["ood"] = [bool(value) for value in truth[order]]
    rank = np.cumsum(np.ones(len(order), dtype=np.int64))
    if parts["least"]:
        rank[parts["most"] :] += m - parts["most"] - parts["least"]
    return {"columns": data, "rank": rank.tolist(), "shown": len(order), "of": count, **parts}


def _cell(value: Any) -> Any:
    """One cell, as JSON has it."""
    if isinstance(value, np.ndarray | list | tuple | Mapping):
        return finite(value)
    return finite(value.item() if hasattr(value, "item") else value)
