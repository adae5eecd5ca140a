"""``arht report``: a scores file as one HTML page."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import read_numbers, to_json
from arht.errors import InputError

__all__ = ["Report"]

WHO = "arht report"


@dataclass(frozen=True)
class Report:
    """Write a report of a scores file: one HTML file that needs no network.

    SCORES is what arht score wrote: parquet, csv or jsonl, with its run record. The page shows the decisions at several
    false-discovery rates, the distribution of the scores, the p-values, the queries, the audit and the settings.
    """

    scores: Annotated[Positional[str], arg(metavar="SCORES")]
    """The scores file."""
    out: Annotated[str, arg(metavar="FILE")] = "report.html"
    """The page."""
    fdr: Annotated[tuple[str, ...], arg(metavar="NUMBER...")] = ("0.01", "0.05", "0.1", "0.2")
    """False-discovery rates to switch between; that of the scores file is always among them."""
    rows: Annotated[int, arg(metavar="COUNT")] = 500
    """Queries in the page's table: the most suspicious, some of the least, some untested."""
    labels: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """0 (in-distribution) or 1 (OOD) for each query, for ROC and precision-recall. Default: the file's column label."""
    reference: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Scores of the reference inputs. Default: the summary in the run record."""
    calibration: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Scores of the calibration inputs. Default: the summary in the run record."""
    images: Annotated[str | None, arg(metavar="DATA", help_behavior_hint="")] = None
    """The queries' pictures in their order: name of a data set, a folder or an npz file."""
    split: Annotated[str, arg(metavar="NAME")] = "test"
    """Which part of the pictures."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """Where the data sets lie."""
    explain: Annotated[int, arg(metavar="COUNT")] = 0
    """Explain so many of the most suspicious queries: reads the detector and the query files that the record names."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Read, decide, draw, write."""
        done = _report(self)
        sys.stdout.write(to_json(done) if self.json else f"{done['out']}: {done['headline']}\n")
        return 0


def _report(options: Report) -> dict[str, Any]:
    fdrs = read_numbers(WHO, "--fdr", options.fdr)
    if not all(0 < fdr < 1 for fdr in fdrs):
        raise InputError(f"{WHO}: --fdr must be numbers above 0 and below 1; got {' '.join(options.fdr)}.")
    for name in ("rows", "explain"):
        if getattr(options, name) < (1 if name == "rows" else 0):
            raise InputError(f"{WHO}: --{name} must be a count; got {getattr(options, name)}. Write for instance 100.")
    out = Path(options.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"{WHO}: --out must be a file in an existing folder; got {out}. Make the folder first.")
    from arht.io import read_scores
    from arht.report import collect, render, thumbnails, write

    scores = read_scores(options.scores)
    record = collect(
        scores.columns,
        scores.record,
        source=os.path.basename(options.scores),
        fdrs=fdrs,
        rows=options.rows,
        labels=None if options.labels is None else _values(options.labels, "label"),
        reference=None if options.reference is None else _values(options.reference, "score"),
        calibration=None if options.calibration is None else _values(options.calibration, "score"),
    )
    rows = record["report"]["table"]["columns"]["row"]
    if options.explain:
        pvalues = record["report"]["table"]["columns"]["pvalue"]
        tested = [row for row, p in zip(rows, pvalues, strict=True) if p is not None]
        record["report"]["explanations"] = _explain(scores.record, rows, tested[: options.explain])
    pictures = None if options.images is None else thumbnails(_images(options), rows)
    html = render(record, pictures=pictures)
    write(out, html)
    report = record["report"]
    own = next((entry for entry in report["decisions"] if entry["chosen"]), None)
    count = report["queries"]["count"]
    headline = f"{count} queries, nothing decided"
    if own is not None:
        headline = f"{own['rejected']} of {count} queries flagged at fdr={own['fdr']:g} by {own['method']}"
    if report["queries"]["untested"]:
        headline += f", {report['queries']['untested']} not tested"
    return {
        "out": str(out),
        "bytes": len(html.encode()),
        "headline": headline,
        **{key: report[key] for key in ("queries", "decisions")},
    }


def _values(path: str, column: str) -> Any:
    """The column of a scores file, or the numbers of a table with one."""
    from arht.io import read_scores, read_table

    if Path(path.partition(":")[0]).suffix.lower() in (".npy", ".npz"):
        return read_table(path).ravel()
    columns = read_scores(path).columns
    if column not in columns:
        raise InputError(f"{WHO}: {path} must have a column {column}; it has {', '.join(columns)}.")
    return columns[column]


def _images(options: Report) -> Any:
    from arht import data

    assert options.images is not None
    size = 96 if Path(options.images).is_dir() else None  # pictures of several shapes
    return data.load(options.images, options.split, data_dir=options.data_dir, size=size)


def _explain(run: dict[str, Any], rows: list[int], wanted: list[int]) -> dict[str, Any]:
    """Explanations by place in the table, from the detector and the query files that the run record names."""
    from arht.commands._fitted import load_fitted, sources_of
    from arht.report.explain import explanations

    about, settings = run.get("detector") or {}, run.get("settings") or {}
    fitted = load_fitted(WHO, str(about.get("path")))
    if about.get("digest") != fitted.digest:
        raise InputError(
            f"{WHO}: --explain needs the detector that made the scores; {fitted.path} has changed since. "
            "Score again, or leave --explain out."
        )
    apart = {name: "text" for name in (settings.get("id"), settings.get("label")) if name}
    encoder = getattr(fitted.object, "encoder", None)
    split, folder = settings.get("split") or "test", settings.get("data_dir")
    paths = [query["path"] for query in run["queries"]]
    sources = sources_of(WHO, paths, apart, encoder=encoder, split=split, data_dir=folder)
    places = {row: place for place, row in enumerate(rows)}
    found: dict[str, Any] = {}
    first = 0
    for source, query in zip(sources, run["queries"], strict=True):
        for row in wanted:
            if first <= row < first + query["rows"]:
                one = next(iter(source.chunks(rows=1, start=row - first)))
                found[str(places[row])] = explanations(fitted.object, one.x)[0]
        first += query["rows"]
    return found
