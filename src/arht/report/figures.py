"""The page's figures, drawn from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from arht.report.svg import Board, Scale, short

__all__ = ["pvalue_figure", "ranking_figure", "score_figure"]

KINDS = {
    "reference": "reference",
    "calibration": "calibration",
    "queries": "query",
    "in-distribution queries": "query",
    "OOD queries": "ood",
}
FLAGGED = "flagged from here on"
ROW = 66


def score_figure(scores: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]], width: int, key: str) -> str:
    """One histogram under another on one axis, and where each decision cuts it."""
    edges, groups = scores["edges"], scores["groups"]
    left, right, top = 12.0, width - 12.0, 24.0
    base = top + ROW * len(groups)
    about = "; ".join(
        f"{group['name']}: {group['count']:,}, median {short(group['median'])}, largest {short(group['largest'])}"
        for group in groups
    )
    board = Board(width, base + 40, "Distribution of the scores", about, key, "wide" if width > 500 else "narrow")
    across = Scale(edges[0], edges[-1], left, right, scores["log"])
    for value in across.ticks(8 if width > 500 else 5):
        board.line(across(value), top - 10, across(value), base, "grid")
    for i, group in enumerate(groups):
        floor = top + ROW * (i + 1)
        up = Scale(0, max(group["share"]) or 1, floor, floor - ROW + 24)
        kind = KINDS.get(group["name"], "query")
        board.steps([across(edge) for edge in edges], [up(share) for share in group["share"]], floor, f"bars {kind}")
        board.line(left, floor, right, floor, "axis")
        words = f"{group['name']} ({group['count']:,})"
        board.text(left, floor - ROW + 18, words, "name")
    for i, decision in enumerate(decisions):
        if decision["score_cut"] is not None:
            x = across(decision["score_cut"])
            hidden = "" if decision["chosen"] else ' hidden="hidden"'
            board.add(f'<g data-when="{i}"{hidden}>')
            board.line(x, top - 10, x, base, "cut")
            near = x > width / 2
            board.text(x - 5 if near else x + 5, top - 3, FLAGGED, "cut-label", "end" if near else "start")
            board.add("</g>")
    board.axis_x(across, base, "score" + (", logarithmic axis" if scores["log"] else ""), count=8 if width > 500 else 5)
    return board.render()


def pvalue_figure(plots: Sequence[Mapping[str, Any]], key: str) -> str:
    """Sorted p-values against those of a uniform law, both logarithmic, with the pointwise band of the first."""
    first = plots[0]
    values = [value for plot in plots for name in ("expected", "observed") for value in plot[name] if value > 0]
    lowest = 10 ** math.floor(math.log10(max(min(values), 1e-12)) + 1e-9)
    low = min(lowest, 0.1)
    board = Board(
        360,
        340,
        "Quantiles of the p-values",
        "; ".join(
            f"{plot['of']}: smallest {short(plot['observed'][0])} where {short(plot['expected'][0])} is expected, "
            f"median near {short(plot['observed'][_middle(plot)])} where {short(plot['expected'][_middle(plot)])} is"
            for plot in plots
        ),
        key,
    )
    across, up = Scale(low, 1, 50, 352, True), Scale(low, 1, 290, 12, True)
    board.axis_x(across, 290, "uniform quantile", top=12)
    board.axis_y(up, 50, "p-value", right=352)
    inside = [i for i, value in enumerate(first["expected"]) if value >= low]
    board.band(
        [across(first["expected"][i]) for i in inside],
        [up(max(first["low"][i], low)) for i in inside],
        [up(max(first["high"][i], low)) for i in inside],
        "band",
    )
    board.line(across(low), up(low), across(1), up(1), "diagonal")
    for plot in reversed(plots):
        kind = "ood" if len(plots) > 1 and plot["of"] == "all queries" else "query"
        points = [(across(x), up(max(y, low))) for x, y in zip(plot["expected"], plot["observed"], strict=True)]
        board.dots(points, f"dot {kind}")
    return board.render()


def ranking_figure(curve: Mapping[str, Any], blind: float | None, name: str, key: str) -> str:
    """ROC or precision-recall: the curve, its band, and what a blind score would draw."""
    roc = name == "roc"
    title = "ROC curve" if roc else "Precision-recall curve"
    labels = ("false alarms", "OOD found") if roc else ("OOD found (recall)", "share of OOD (precision)")
    middle = min(range(len(curve["x"])), key=lambda i: abs(curve["x"][i] - (0.05 if roc else 0.8)))
    board = Board(
        360,
        340,
        title,
        f"At {curve['x'][middle]:.0%} {labels[0]}, {labels[1]} is {curve['y'][middle]:.1%}.",
        key,
    )
    across, up = Scale(0, 1, 50, 352), Scale(0, 1, 290, 12)
    board.axis_x(across, 290, labels[0], top=12)
    board.axis_y(up, 50, labels[1], right=352)
    x = [across(value) for value in curve["x"]]
    if curve["low"] is not None:
        board.band(x, [up(v or 0) for v in curve["low"]], [up(v or 0) for v in curve["high"]], "band")
    if roc:
        board.line(across(0), up(0), across(1), up(1), "diagonal")
    elif blind is not None:
        board.line(across(0), up(blind), across(1), up(blind), "diagonal")
    points = list(zip(x, (up(v or 0) for v in curve["y"]), strict=True))
    board.path([(across(0), up(0)), *points] if roc else points, "curve")
    return board.render()


def _middle(plot: Mapping[str, Any]) -> int:
    return min(range(len(plot["expected"])), key=lambda i: abs(plot["expected"][i] - 0.5))
