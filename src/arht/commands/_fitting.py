"""The work of ``arht fit``."""

from __future__ import annotations

import inspect
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arht.commands._common import read_numbers
from arht.errors import InputError

if TYPE_CHECKING:
    from arht.commands.fit import Fit

__all__ = ["METHODS", "fit", "text"]

WHO = "arht fit"

METHODS: Mapping[str, tuple[str, str]] = {
    "arht": ("arht.detectors.arht", "ARHTDetector"),
    "rht": ("arht.detectors.rht", "RHTDetector"),
    "hotelling": ("arht.detectors.hotelling", "HotellingDetector"),
    "mahalanobis": ("arht.detectors.mahalanobis", "MahalanobisDetector"),
}

OPTIONS = {"against": "reference", "ridge_unit": "ridge_unit", "ridge": "ridge", "multiples": "multiples"} | {
    "prior": "prior",
    "null": "null",
    "tail": "tail",
}
"""Options that only some methods have, and the detector's argument of each."""

SAMPLE = 64 << 20
"""Bytes of reference rows that are kept to be scored, so that the report can show them: 10,000 rows at most."""


def fit(options: Fit) -> dict[str, Any]:
    from arht.commands._fitted import summary, versions, with_record, writable

    _check(options)
    out = writable(WHO, options.out)
    started = time.perf_counter()
    if options.encoder is None:
        fitted, heldout, sample = _detector(options)
    else:
        from arht.commands._guards import fit_guard

        fitted, heldout, sample = fit_guard(options)
    reference = None
    if sample is not None and (options.tail != "two-sided" or fitted.calibrated):
        reference = summary(fitted.score(sample))
    temporary = out.with_name(f".{out.name}.fit.tmp")
    try:
        fitted.save(temporary)
        record = {
            "command": shlex.join(["arht", *sys.argv[1:]]),
            "settings": {field.name: getattr(options, field.name) for field in fields(options)},
            "versions": versions(),
            "inputs": fitted.inputs,
            "calibration": heldout,
            "reference": reference,
            "seconds": round(time.perf_counter() - started, 3),
        }
        digest = with_record(temporary, record)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    from arht.commands._fitted import Fitted

    about = Fitted(options.out, "", fitted, digest, None).about()
    return {"out": options.out, "digest": digest, **{k: about[k] for k in ("class", "parameters", "P")}, **record}


def _check(options: Fit) -> None:
    """Whatever can be refused before a file is read."""
    part = options.calibration_fraction
    if options.method not in METHODS:
        raise InputError(f"{WHO}: --method must be one of {', '.join(METHODS)}; got {options.method!r}.")
    if part is not None and not 0 < part < 1:
        raise InputError(f"{WHO}: --calibration-fraction must be between 0 and 1; got {part}. Write for instance 0.2.")
    if part is not None and options.calibration is not None:
        raise InputError(f"{WHO}: --calibration-fraction goes without --calibration; got both. Leave one out.")
    if part is not None and "-" in options.reference:
        raise InputError(
            f"{WHO}: standard input can be read once; --calibration-fraction reads twice. Save it to a file."
        )
    alone = {name: getattr(options, name) for name in ("mode", "draws", "data_dir", "calibration_split")}
    if options.encoder is None:
        for name, value in alone.items():
            if value is not None:
                raise InputError(f"{WHO}: --{name.replace('_', '-')} goes with --encoder; got none. Leave it out.")
    else:
        for name in (*OPTIONS, "labels"):
            if getattr(options, name) is not None:
                raise InputError(
                    f"{WHO}: --{name.replace('_', '-')} is for detectors of embeddings; got --encoder. Leave it out."
                )
        if options.mode not in (None, "auto", "paper"):
            raise InputError(f"{WHO}: --mode must be auto or paper; got {options.mode!r}.")


# a detector -----------------------------------------------------------------------------------------------------


def _make(options: Fit) -> Any:
    """The detector, not fitted yet."""
    from importlib import import_module

    module, name = METHODS[options.method]
    cls = getattr(import_module(module), name)
    known = inspect.signature(cls.__init__).parameters
    arguments: dict[str, Any] = {}
    for option, argument in OPTIONS.items():
        value = getattr(options, option)
        if value is None:
            continue
        if argument not in known:
            raise InputError(
                f"{WHO}: --{option.replace('_', '-')} is no option of --method {options.method}. Leave it out."
            )
        if option == "ridge":
            value = None if value == "grid" else read_numbers(WHO, "--ridge", [value])[0]
        elif option == "multiples":
            value = read_numbers(WHO, "--multiples", value)
        elif option == "prior":
            priors = [read_numbers(WHO, "--prior", prior.split(",")) for prior in value]
            value = priors[0] if len(priors) == 1 else tuple(priors)
        arguments[argument] = value
    return cls(**arguments)


def _detector(options: Fit) -> tuple[Any, int, Any]:
    """The fitted detector, the number of calibration inputs, and some rows of the reference."""
    from arht.data.progress import Bar

    detector = _make(options)
    column, labels = _labels(options)
    sample = _Sample(options.seed)

    def pairs() -> Iterator[Any]:
        at = 0
        for x, apart, kept in _chunks(options, options.reference, column, False, bar):
            given = None
            if column is not None:
                given = _integers(f"column {column!r}", apart[column])[kept]
            elif labels is not None:
                if at + len(kept) > len(labels):
                    raise InputError(
                        f"{WHO}: --labels must have one number per reference row; got {len(labels)} for "
                        f"{at + len(kept)} rows or more."
                    )
                given = labels[at : at + len(kept)][kept]
            at += len(kept)
            if len(x):
                sample.add(x)
                yield x if given is None else (x, given)
        if labels is not None and at != len(labels):
            raise InputError(
                f"{WHO}: --labels must have one number per reference row; got {len(labels)} for {at} rows."
            )

    with Bar("fitting", _total(options, options.reference), shown=not options.quiet) as bar:
        detector.fit(pairs())
    heldout = 0

    def held() -> Iterator[Any]:
        nonlocal heldout
        part = options.calibration is None
        for x, *_ in _chunks(options, options.calibration or options.reference, column, part, bar):
            heldout += len(x)
            if len(x):
                yield x

    if options.calibration is not None or options.calibration_fraction is not None:
        with Bar("calibrating", None, shown=not options.quiet) as bar:
            detector.calibrate(held())
    return detector, heldout, sample.rows()


def _chunks(
    options: Fit, paths: tuple[str, ...], column: str | None, heldout: bool, bar: Any
) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """(rows, columns apart, which rows of the chunk these are): the reference without what is held out, or that."""
    from arht.commands._fitted import sources_of
    from arht.io.ahead import ahead

    fraction = options.calibration_fraction if paths is options.reference else None
    generator = np.random.default_rng(options.seed)
    absent = paths is not options.reference  # held-out inputs need no classes
    for source in sources_of(WHO, paths, {} if column is None else {column: "integer"}, absent=absent):
        for chunk in ahead(source.chunks()):
            chosen = np.ones(len(chunk), dtype=bool)
            if fraction is not None:
                chosen = (generator.random(len(chunk)) < fraction) == heldout
            yield chunk.x if chosen.all() else chunk.x[chosen], chunk.apart, chosen
            bar.update(len(chunk))


def _total(options: Fit, paths: tuple[str, ...]) -> int | None:
    from arht.commands._fitted import sources_of

    if "-" in paths:
        return None
    counts = [source.count for source in sources_of(WHO, paths)] if options.labels is None else [None]
    return None if None in counts else sum(count for count in counts if count is not None)


def _labels(options: Fit) -> tuple[str | None, Any]:
    """The column, or the integers of a file."""
    if options.labels is None:
        return None, None
    from arht.io import SUFFIXES, read_table

    file = options.labels.partition(".npz:")[0] + (".npz" if ".npz:" in options.labels else "")
    if Path(file).suffix.lower() not in SUFFIXES:
        return options.labels, None
    table = read_table(options.labels)
    if table.shape[1] != 1:
        raise InputError(
            f"{WHO}: --labels must hold one number a row; got {table.shape[1]} columns in {options.labels}."
        )
    return None, _integers(options.labels, table[:, 0])


def _integers(where: str, values: Any) -> Any:
    array = values.to_numpy(zero_copy_only=False) if hasattr(values, "null_count") else np.asarray(values)
    if array.dtype.kind not in "iufb" or not (np.isfinite(array).all() and (array == np.round(array)).all()):
        raise InputError(f"{WHO}: --labels must be integers; {where} holds others. Encode the classes as 0, 1, 2, ...")
    return array.astype(np.int64)


class _Sample:
    """Some rows of a stream, all alike likely to be among them."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng([seed, 1])
        self.keys = np.empty(0)
        self.kept: Any = None

    def add(self, x: Any) -> None:
        """Rows of the stream."""
        size = max(1, min(10_000, SAMPLE // max(x[0].nbytes, 1)))
        keys = self.generator.random(len(x))
        if len(self.keys) >= size:  # none below the largest that is kept: nothing to do for the others
            chosen = keys < self.keys.max()
            x, keys = x[chosen], keys[chosen]
        elif len(x) > size:
            chosen = np.argpartition(keys, size - 1)[:size]
            x, keys = x[chosen], keys[chosen]
        rows = np.ascontiguousarray(x) if self.kept is None else np.concatenate([self.kept, x])
        keys = np.concatenate([self.keys, keys])
        best = np.argsort(keys)[:size] if len(keys) > size else slice(None)
        self.kept, self.keys = rows[best], keys[best]

    def rows(self) -> Any:
        """The sample."""
        return self.kept


def text(record: dict[str, Any]) -> str:
    from arht.commands._table import two_columns

    parameters = ", ".join(f"{name}={value}" for name, value in record["parameters"].items())
    held = record["calibration"]
    return two_columns(
        f"arht fit: {record['out']}",
        {
            "detector": f"{record['class']}: {parameters}",
            "reference": f"{record['inputs']:,} inputs" + ("" if record["P"] is None else f", P = {record['P']}"),
            "calibration": f"{held:,} held-out inputs: conformal p-values" if held else "none",
            "seconds": f"{record['seconds']:.1f}",
            "digest": record["digest"],
            "next": f"arht score {record['out']} QUERY --out scores.parquet",
        },
    )
