"""Read tables of numbers a few rows at a time: memory does not grow with their length."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.io import text
from arht.io._arrow import check_columns, fixed_shape, is_list, is_single, lists, stacked
from arht.io._checks import SUFFIXES, check_array, existing
from arht.io._rows import Rows, Source, check_apart, readable
from arht.io.tables import choose

__all__ = ["STREAMS", "Rows", "Source", "iter_tables", "open_table"]

Array = npt.NDArray[np.floating[Any]]

STREAMS = (*SUFFIXES, ".jsonl")
"""Suffixes that can be streamed."""


def iter_tables(path: str | os.PathLike[str], rows: int | None = None) -> Iterator[Array]:
    """Chunks [b, P] of the table that `arht.io.read_table` would read whole, `rows` at a time.

    Besides its formats: ``.jsonl`` (a line is a list of numbers, an object with one list, or an object of numbers),
    ``-`` for csv or jsonl on standard input, and draws [n, K, P]: arrays in npy and npz, lists of lists in parquet.
    Without `rows`, a chunk has about 8 MB. Raises `InputError` as `read_table` does, for a bad row when it gets there.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.zeros((10, 3)))
    ...     [chunk.shape for chunk in iter_tables(f"{folder}/x.npy", 4)]
    [(4, 3), (4, 3), (2, 3)]
    """
    for chunk in open_table(path).chunks(rows):
        yield chunk.x


def open_table(
    path: str | os.PathLike[str], apart: Mapping[str, str] | Sequence[str] = (), *, absent: bool = False
) -> Source:
    """The table in a file, to be read in chunks.

    `apart` names columns that are no part of the embedding, with what they hold where a text file does not tell:
    "text" (default) or "integer". With `absent`, a file may lack them.
    """
    kinds = dict(apart) if isinstance(apart, Mapping) else dict.fromkeys(apart, "text")
    name = os.fspath(path)
    if name == "-":
        return text.standard_input(sys.stdin.buffer, kinds, absent=absent)
    file, key = existing(name, STREAMS)
    suffix = file.suffix.lower()
    if absent and suffix in (".npy", ".npz"):
        kinds = {}
    if kinds and suffix in (".npy", ".npz"):
        raise InputError(
            f"read_table: {file} has no names of columns; got {next(iter(kinds))!r} to be read apart. "
            "Write csv or parquet, or give the column as a file of its own."
        )
    with readable(name):
        if suffix == ".npy":
            return _npy(name, file)
        if suffix == ".npz":
            return _npz(name, file, key)
        if suffix == ".parquet":
            return _parquet(name, file, kinds, absent)
        if suffix == ".csv":
            return text.csv_source(name, lambda: file.open("rb"), kinds, absent=absent)
        return text.jsonl_source(name, lambda: file.open("rb"), kinds, absent=absent)


def _checked_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[tuple[int, ...], bool]:
    """Shape of a row, and whether it is single precision; as `read_table` checks, with draws allowed."""
    check_array(file, shape if len(shape) != 3 else (shape[0] * shape[1], shape[2]), dtype)
    return shape[1:] or (1,), dtype.newbyteorder("=") == np.float32


def _npy(name: str, file: Path) -> Source:
    def mapped() -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)  # headers written by Python 2
            return np.lib.format.open_memmap(file, mode="r")

    array = mapped()
    row, single = _checked_array(file, array.shape, array.dtype)
    count = len(array)
    del array

    def read(rows: int, start: int) -> Iterator[Rows]:
        for at in range(start, count, rows):  # mapped anew each time: pages that were read are given back
            block: Array = np.array(mapped()[at : at + rows], dtype=np.float32 if single else np.float64, order="K")
            yield Rows(block.reshape(len(block), *row))

    return Source(name, count, row, single, read)


def _npz(name: str, file: Path, key: str | None) -> Source:
    member = choose(file, key) + ".npy"

    @contextmanager
    def opened() -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]]:
        with zipfile.ZipFile(file) as archive, archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in headers:
                raise ValueError(f"format {version} of an array")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)
                shape, fortran, dtype = headers[version](stream)
            yield stream, shape, fortran, dtype

    with opened() as (_, shape, fortran, dtype):
        if dtype.hasobject:
            raise ValueError("Object arrays cannot be read")
        row, single = _checked_array(file, shape, dtype)
    count = shape[0]

    def read(rows: int, start: int) -> Iterator[Rows]:
        if start >= count:
            return
        if fortran and len(shape) > 1:  # rows lie scattered: unpack the array beside, and map that
            with tempfile.TemporaryDirectory(prefix="arht-") as folder:
                with zipfile.ZipFile(file) as archive:
                    inner = Path(archive.extract(member, folder))
                plain = inner.rename(Path(folder) / "array.npy")
                yield from _npy(name, plain).read(rows, start)
            return
        with opened() as (stream, *_):
            each = math.prod(row) * dtype.itemsize
            _pass_over(stream, start * each)
            for at in range(start, count, rows):
                size = min(rows, count - at)
                data = stream.read(size * each)
                if len(data) != size * each:
                    raise ValueError("the array is cut short")
                block: Array = np.frombuffer(data, dtype=dtype).astype(np.float32 if single else np.float64)
                yield Rows(block.reshape(size, *row))

    return Source(name, count, row, single, read)


def _pass_over(stream: IO[bytes], count: int) -> None:
    while count > 0:
        got = len(stream.read(min(count, 1 << 20)))
        if not got:
            raise ValueError("the array is cut short")
        count -= got


def _parquet(name: str, file: Path, kinds: dict[str, str], absent: bool) -> Source:
    import pyarrow.parquet as pq

    def opened() -> Any:
        # pages are fetched as they are needed: a row group can be as large as the file
        return pq.ParquetFile(file, page_checksum_verification=True, buffer_size=1 << 18, pre_buffer=False)

    with opened() as parquet:
        schema, count = parquet.schema_arrow, parquet.metadata.num_rows
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
    names = list(schema.names)
    kinds = {kind: what for kind, what in kinds.items() if not absent or kind in names}
    check_apart(name, kinds, names)
    kept = [i for i, column in enumerate(names) if column not in kinds]
    columns, types = [names[i] for i in kept], [schema.field(i).type for i in kept]
    as_lists = len(types) == 1 and is_list(types[0])
    check_columns(file, columns, types)
    single = is_single(types)
    check_array(file, (count, len(columns)), np.dtype("f4" if single else "f8"))

    def read(rows: int, start: int) -> Iterator[Rows]:
        first = 0
        while first < len(groups) and start >= groups[first]:
            start -= groups[first]
            first += 1
        with opened() as parquet:
            for batch in parquet.iter_batches(rows, row_groups=range(first, len(groups)), use_threads=True):
                if start >= len(batch):
                    start -= len(batch)
                    continue
                batch, start = batch.slice(start), 0
                if as_lists:
                    x = lists(file, columns[0], batch.column(kept[0]))
                else:
                    x = stacked([batch.column(i) for i in kept], len(batch), single)
                yield Rows(x, {kind: batch.column(names.index(kind)) for kind in kinds})

    return Source(name, count, fixed_shape(types[0]) if as_lists else (len(columns),), single, read)
