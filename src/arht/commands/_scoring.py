"""The work of ``arht score``."""

from __future__ import annotations

import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arht.errors import ArhtWarning, InputError
from arht.io._checks import split_key

if TYPE_CHECKING:
    from arht.commands._fitted import Fitted
    from arht.commands.score import Score
    from arht.io.pieces import Pieces

__all__ = ["score", "text"]

WHO = "arht score"

PIECE_SECONDS = 5.0
"""At most so much work is lost by an interruption, and one chunk."""
PIECE_ROWS = 1 << 18


def score(options: Score) -> dict[str, Any]:
    from arht.commands._fitted import load_fitted, sources_of, writable
    from arht.io.pieces import Pieces
    from arht.io.scores import format_of, write_scores
    from arht.stats.multiplicity import check_fdr
    from arht.stats.tally import Tally

    if options.out == "-" and options.json:
        raise InputError(
            f"{WHO}: --json prints the record, and --out - the scores; got both. Write the scores to a file."
        )
    if options.method not in ("bh", "by"):
        raise InputError(f"{WHO}: --method must be bh or by; got {options.method!r}.")
    check_fdr(options.fdr)
    out = writable(WHO, options.out if options.out != "-" else f"scores.{os.getpid()}.csv")
    format_of(out)
    started = time.perf_counter()
    fitted = load_fitted(WHO, options.detector)
    kinds = {name: kind for name, kind in ((options.id, "text"), (options.label, "integer")) if name is not None}
    encoder = getattr(fitted.object, "encoder", None)
    sources = sources_of(WHO, options.query, kinds, encoder=encoder, split=options.split, data_dir=options.data_dir)
    made_of = _made_of(options, fitted, sources)
    once = "-" in options.query or options.out == "-"  # a pipe cannot be read again
    pieces = Pieces(out.with_name(out.name + ".part"), made_of, anew=options.restart or once)
    tally = Tally()
    try:
        about = _run(options, fitted, sources, pieces, tally)
        record = _record(options, fitted, about, tally, started)
        schema, batches = _decided(pieces, record.pop("rule"))
        write_scores(out, schema, _until(batches, record, started), record)
        pieces.remove()
    except InputError:
        if not pieces.count:
            pieces.remove()
        raise
    finally:
        if once:  # nothing can go on from there
            pieces.remove()
    if options.out == "-":
        _copy_out(out)
    return {**record, "out": options.out}


def _made_of(options: Score, fitted: Fitted, sources: list[Any]) -> dict[str, Any]:
    """What the scores depend on: the detector, and of each query its file as it is now, or its pictures."""
    queries = []
    for path, source in zip(options.query, sources, strict=True):
        if hasattr(source, "digest"):
            queries.append([path, source.digest()])
            continue
        file = split_key(path)[0]
        stat = file.stat() if file.is_file() else None
        size, time_ns = (stat.st_size, stat.st_mtime_ns) if stat is not None else (None, None)
        queries.append([str(Path(path).absolute()), size, time_ns])
    names = {"id": options.id, "label": options.label, "split": options.split, "data_dir": options.data_dir}
    return {"detector": fitted.digest, "queries": queries, **names}


def _run(options: Score, fitted: Fitted, sources: list[Any], pieces: Pieces, tally: Any) -> dict[str, Any]:
    """Score whatever the pieces lack; return what the record needs to know."""
    from arht.data.progress import Bar
    from arht.io.ahead import ahead

    counts = [source.count for source in sources]
    _leave_a_core_to_the_reader(sources)
    about: dict[str, Any] = {"queries": [], "outcomes": {}, "law": None}
    done = [0] * len(sources)
    last = 0  # the files before this one are done
    for batch in pieces.batches():
        _count(about, tally, batch)
        last = batch.column("file").indices[0].as_py() if len(sources) > 1 else 0
        done[last] += len(batch)
    if any(done) and not options.quiet:
        print(f"{WHO}: goes on at row {sum(done):,}", file=sys.stderr)
    waiting: list[Any] = []
    since = time.monotonic()
    total = None if None in counts else sum(count for count in counts if count is not None)
    first = 0  # row of the first query of a file
    with Bar("scoring", total, shown=not options.quiet) as bar:
        bar.update(sum(done))
        for number, source in enumerate(sources):
            rows = done[number]
            if number >= last and rows != source.count:
                for chunk in ahead(source.chunks(start=rows)):
                    result = fitted.object.test(chunk.x)
                    about["law"] = {name: getattr(result, name) for name in ("method", "null", "guarantee")}
                    about["law"]["smallest_pvalue"] = result.smallest_pvalue
                    batch = _batch(result, chunk.apart, options, first + rows, number, len(sources) > 1)
                    _count(about, tally, batch)
                    rows += len(batch)
                    waiting.append(batch)
                    if sum(map(len, waiting)) >= PIECE_ROWS or time.monotonic() - since > PIECE_SECONDS:
                        pieces.append(waiting)
                        waiting, since = [], time.monotonic()
                    bar.update(len(batch))
            about["queries"].append({"path": options.query[number], "rows": rows})
            first += rows
    if waiting:
        pieces.append(waiting)
    if about["law"] is None:
        about["law"] = _law_again(fitted, sources)
    return about


def _leave_a_core_to_the_reader(sources: list[Any]) -> None:
    """Rows of one draw cost a matrix product each, about what reading them costs: the two go on side by side."""
    import torch

    if all(len(getattr(source, "shape", (1, 1)) or (1,)) == 1 for source in sources):
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))


def _law_again(fitted: Fitted, sources: list[Any]) -> dict[str, Any]:
    """Everything was there already: one row tells under which law."""
    for source in sources:
        for chunk in source.chunks(rows=1):
            result = fitted.object.test(chunk.x)
            names = ("method", "null", "guarantee", "smallest_pvalue")
            return {name: getattr(result, name) for name in names}
    raise InputError(f"{WHO}: needs at least one query; got none.")


def _count(about: dict[str, Any], tally: Any, batch: Any) -> None:
    tally.add(batch.column("pvalue").to_numpy())
    codes, counts = np.unique(batch.column("outcome").to_numpy(), return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        about["outcomes"][str(code)] = about["outcomes"].get(str(code), 0) + count


def _batch(result: Any, apart: dict[str, Any], options: Score, first: int, number: int, several: bool) -> Any:
    """The rows of one chunk."""
    import pyarrow as pa

    count = len(result.score)
    columns: dict[str, Any] = {"row": np.arange(first, first + count)}
    if several:
        names = pa.array(list(options.query), pa.string())
        columns["file"] = pa.DictionaryArray.from_arrays(pa.array(np.full(count, number, np.int32)), names)
    if options.id is not None:
        columns["id"] = apart[options.id].cast(pa.string())
    if options.label is not None:
        columns["label"] = _labels(options.label, apart[options.label])
    ridge = np.full(count, np.nan) if result.ridge is None else result.ridge
    columns |= {"statistic": result.statistic, "score": result.score, "pvalue": result.pvalue, "ridge": ridge}
    columns["outcome"] = result.outcome
    if result.nearest_class is not None:
        columns["nearest_class"] = result.nearest_class
    for name, layer in (result.layers or {}).items():
        columns |= {f"score.{name}": layer.score, f"pvalue.{name}": layer.pvalue}
    arrays = [column if isinstance(column, pa.Array) else pa.array(np.asarray(column)) for column in columns.values()]
    return pa.record_batch(arrays, names=list(columns))


def _labels(name: str, column: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise InputError(
            f"{WHO}: --label must name a column of integers, 0 in distribution and 1 out of it; {name!r} holds others."
        ) from None


def _decided(pieces: Pieces, rule: Any) -> tuple[Any, Iterator[Any]]:
    """The schema, and all rows with their adjusted p-values: the second pass."""
    import pyarrow as pa

    empty = next(iter(pieces.batches()), None)
    if empty is None:
        raise InputError(f"{WHO}: needs at least one query; got none.")
    schema = empty.schema.append(pa.field("adjusted_pvalue", pa.float64())).append(pa.field("rejected", pa.bool_()))

    def batches() -> Iterator[Any]:
        for batch in pieces.batches():
            adjusted = rule.adjusted(batch.column("pvalue").to_numpy())
            columns = [*batch.columns, pa.array(adjusted), pa.array(rule.rejected(adjusted))]
            yield pa.record_batch(columns, schema=schema)

    return schema, batches()


def _until(batches: Iterator[Any], record: dict[str, Any], started: float) -> Iterator[Any]:
    """The batches; when they end, the record says when that was."""
    yield from batches
    record["seconds"] = round(time.perf_counter() - started, 3)
    record["created"] = datetime.now(UTC).isoformat(timespec="seconds")


def _record(options: Score, fitted: Fitted, about: dict[str, Any], tally: Any, started: float) -> dict[str, Any]:
    """The run record, and under ``rule`` the decision's rule."""
    from arht.commands._fitted import audited, summary, versions
    from arht.commands.audit import json_of
    from arht.io.scores import SCHEMA

    law = about["law"]
    if law["guarantee"] == "none":
        warnings.warn(
            f"{WHO}: {options.detector} gives no p-values, so that nothing is rejected. Fit it with --calibration.",
            ArhtWarning,
            stacklevel=2,
        )
    if law["guarantee"] == "asymptotic":
        warnings.warn(
            f"{WHO}: {options.detector} has no calibration: its p-values are asymptotic, and the false-discovery rate "
            "holds only as far as they do. Fit it with --calibration for p-values that hold at every sample size.",
            ArhtWarning,
            stacklevel=2,
        )
    rule = tally.decide(fdr=options.fdr, method=options.method, smallest_pvalue=law["smallest_pvalue"])
    audit = None
    if options.heldout is not None:
        where = {"split": options.split, "data_dir": options.data_dir}
        found = audited(WHO, fitted, options.heldout, options.fdr, rule.tested or None, **where)
        audit = json_of(found.as_dict())
    record = fitted.record or {}
    rows = sum(query["rows"] for query in about["queries"])
    return {
        "rule": rule,
        "schema": SCHEMA,
        "kind": "scores",
        "command": shlex.join(["arht", *sys.argv[1:]]),
        "versions": versions(),
        "settings": {field.name: getattr(options, field.name) for field in fields(options)},
        "queries": about["queries"],
        "rows": rows,
        "tested": rule.tested,
        "untested": rule.untested,
        "outcomes": about["outcomes"],
        "detector": fitted.about(),
        **law,
        "decision": {
            "fdr": options.fdr,
            "method": options.method,
            "threshold": rule.threshold,
            "rejected": rule.rejections,
            "tested": rule.tested,
        },
        "calibration": summary(fitted.calibration),
        "reference": record.get("reference"),
        "audit": audit,
    }


def _copy_out(path: Path) -> None:
    """The finished csv to standard output; nothing of it was printed before all was well."""
    import shutil

    beside = path.with_name(path.name + ".json")
    try:
        sys.stdout.flush()
        with path.open("rb") as opened:
            if hasattr(sys.stdout, "buffer"):
                shutil.copyfileobj(opened, sys.stdout.buffer, 1 << 20)
            else:
                sys.stdout.write(opened.read().decode())
    finally:
        path.unlink()
        beside.unlink()


def text(record: dict[str, Any]) -> str:
    from arht.commands._common import GUARANTEES
    from arht.commands._table import two_columns

    decision, audit = record["decision"], record["audit"]
    outcomes = ", ".join(f"{count:,} of outcome {code}" for code, count in record["outcomes"].items() if code != "0")
    return two_columns(
        f"arht score: {record['out']}",
        {
            "detector": f"{record['detector']['path']}: {record['detector']['class']}",
            "queries": f"{record['rows']:,}" + (f"; not tested: {outcomes}" if outcomes else ""),
            "guarantee": GUARANTEES.get(record["guarantee"], record["guarantee"]),
            "rejected": f"{decision['rejected']:,} of {decision['tested']:,} at FDR {decision['fdr']:g} "
            f"({decision['method']}), p <= {decision['threshold']:.6g}",
            "audit": None if audit is None else "passed" if audit["passed"] else "; ".join(audit["reasons"]),
            "seconds": f"{record['seconds']:.1f}",
            "next": None if record["out"].endswith(".csv") else f"arht report {record['out']} --out report.html",
        },
    )
