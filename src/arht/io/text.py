"""Tables in text: csv and lines of JSON, from a file or from standard input."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from arht.errors import ArhtWarning, InputError
from arht.io._arrow import stacked
from arht.io._checks import check_array, index_column, text_column
from arht.io._rows import Rows, Source, check_apart

__all__ = ["Layout", "csv_source", "head_of", "jsonl_source", "standard_input", "text_in_column"]

LONGEST = 1 << 26
"""Bytes of a first line beyond which a file is no table."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the first line of a csv file tells."""

    cells: list[str]
    header: bool
    skip: int
    """Lines above the data."""

    @classmethod
    def of(cls, file: Path, head: bytes) -> Layout:
        """From the first bytes, down to the end of the first line that is not blank."""
        import pyarrow.csv

        lines = io.StringIO(head.decode("utf-8-sig", errors="replace"), newline="")
        above, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
        cells = [cell.strip() for cell in next(csv.reader([first]), [])]
        counted = [str(i) for i in range(len(cells))]
        nulls = pyarrow.csv.ConvertOptions().null_values
        numbers = [cell for cell in cells if cell in nulls or _is_number(cell)]
        header = all(cell.isdigit() or not cell for cell in numbers) if len(numbers) < len(cells) else False
        if cells and not cells[0] and (header or cells[1:] == counted[:-1] != []):
            index_column(file, "")
        if len(cells) > 1 and cells == counted:
            header = True
            warnings.warn(
                f"read_table: the first line of {file} counts from 0 to {len(cells) - 1}; it is read "
                "as a header, not as data.",
                ArhtWarning,
                stacklevel=3,
            )
        return cls(cells, header, above + 1 if header else 0)

    def options(self, kinds: Mapping[str, str] | None = None) -> tuple[Any, Any]:
        """pyarrow's ways to read and to convert: numbers, but for columns that are read apart."""
        import pyarrow as pa
        import pyarrow.csv

        types = {"text": pa.string(), "integer": pa.int64()}
        names = [f"f{i}" for i in range(len(self.cells))]
        convert = pyarrow.csv.ConvertOptions(
            column_types={
                name: types[kinds[cell]] if kinds and cell in kinds else pa.float64()
                for name, cell in zip(names, self.cells, strict=True)
            }
        )
        block = max(1 << 22, 8 * sum(len(cell) + 1 for cell in self.cells))
        return pyarrow.csv.ReadOptions(column_names=names, skip_rows=self.skip, block_size=block), convert


def text_in_column(file: Path, layout: Layout, error: Exception) -> None:
    """Say which column holds text, if that is what the error of pyarrow is about."""
    text = re.search(r"column #(\d+).*?invalid value '(.*)'", str(error), re.DOTALL)
    if text is not None and int(text[1]) < len(layout.cells):
        column = int(text[1])
        text_column(file, layout.cells[column] if layout.header else column, f"{text[2][:40]!r}")


def head_of(stream: BinaryIO) -> bytes:
    """The first bytes, down to the end of the first line that is not blank."""
    head = b""
    while len(head) < LONGEST and not re.search(rb"[^\s\xef\xbb\xbf][^\r\n]*[\r\n]", head):
        more = stream.read(1 << 16)
        if not more:
            break
        head += more
    return head


class _Chained(io.RawIOBase):
    """Bytes already taken from a stream, and the stream after them."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.head, self.rest = memoryview(head), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if self.head:
            count = min(len(view), len(self.head))
            view[:count], self.head = self.head[:count], self.head[count:]
            return count
        data = self.rest.read(len(view))
        view[: len(data)] = data
        return len(data)


def standard_input(stream: BinaryIO, kinds: Mapping[str, str], *, absent: bool = False) -> Source:
    """csv, or lines of JSON where the first character is ``{`` or ``[``."""
    head = head_of(stream)
    if not head.strip():
        raise InputError("read_table: standard input must hold a table; got nothing. Check what writes to the pipe.")
    is_json = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    make = jsonl_source if is_json else csv_source

    def opened() -> BinaryIO:
        return io.BufferedReader(_Chained(head, stream), 1 << 16)

    return make("standard input", opened, kinds, head, absent=absent)


def csv_source(
    name: str,
    opened: Callable[[], BinaryIO],
    kinds: Mapping[str, str],
    head: bytes | None = None,
    *,
    absent: bool = False,
) -> Source:
    """A csv file, or a stream of one; with `absent` it may lack the columns of `kinds`."""
    file = Path(name)
    if head is None:
        with opened() as stream:
            head = head_of(stream)
    layout = Layout.of(file, head)
    if absent:
        kinds = {kind: what for kind, what in kinds.items() if layout.header and kind in layout.cells}
    if kinds and not layout.header:
        raise InputError(
            f"read_table: {file} has no names of columns; got {next(iter(kinds))!r} to be read apart. "
            "Write a header line."
        )
    check_apart(name, kinds, layout.cells)
    taken = {layout.cells.index(kind) for kind in kinds}
    kept = [i for i in range(len(layout.cells)) if i not in taken]
    check_array(file, (1, len(kept)), np.dtype("f8"))

    def read(rows: int, start: int) -> Iterator[Rows]:
        import pyarrow as pa
        import pyarrow.csv

        found = False
        options, convert = layout.options(kinds)
        try:
            with opened() as stream, pyarrow.csv.open_csv(stream, options, convert_options=convert) as reader:
                for batch in reader:
                    found = found or len(batch) > 0
                    if start >= len(batch):
                        start -= len(batch)
                        continue
                    part, start = batch.slice(start), 0
                    for at in range(0, len(part), rows):
                        some = part.slice(at, rows)
                        x = stacked([some.column(i) for i in kept], len(some), False)
                        yield Rows(x, {kind: some.column(layout.cells.index(kind)) for kind in kinds})
        except pa.ArrowInvalid as error:
            if "Empty CSV file" not in str(error):
                text_in_column(file, layout, error)
                raise
        if not found:
            check_array(file, (0, len(kept)), np.dtype("f8"))

    return Source(name, None, (len(kept),), False, read)


def jsonl_source(
    name: str,
    opened: Callable[[], BinaryIO],
    kinds: Mapping[str, str],
    head: bytes | None = None,
    *,
    absent: bool = False,
) -> Source:
    """Lines of JSON: a list of numbers, an object with one list of numbers, or an object of numbers.

    With `absent` they may lack the columns of `kinds`: the first line tells.
    """
    if absent and kinds:
        if head is None:
            with opened() as stream:
                head = head_of(stream)
        kinds = {kind: what for kind, what in kinds.items() if kind in _keys(head)}

    def read(rows: int, start: int) -> Iterator[Rows]:
        held: list[list[Any]] = []
        apart: dict[str, list[Any]] = {kind: [] for kind in kinds}
        width: int | None = None
        number = -1
        with opened() as stream:
            for line in stream:
                if not line.strip():
                    continue
                number += 1
                if number < start:
                    continue
                values, aside = _row(name, number, line, kinds)
                if width is not None and len(values) != width:
                    _bad(name, number, f"{len(values)} numbers after rows of {width}")
                width = len(values)
                held.append(values)
                for kind in kinds:
                    apart[kind].append(aside[kind])
                if len(held) == rows:
                    yield _block(held, apart, kinds)
                    held, apart = [], {kind: [] for kind in kinds}
        if held:
            yield _block(held, apart, kinds)
        elif number < 0:
            check_array(Path(name), (0, 0), np.dtype("f8"))

    return Source(name, None, None, False, read)


def _keys(head: bytes) -> list[str]:
    """The keys of the first line, if it is an object."""
    line = next((line for line in head.splitlines() if line.strip()), b"")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return []  # the reader says so
    return list(value) if isinstance(value, dict) else []


def _row(name: str, number: int, line: bytes, kinds: Mapping[str, str]) -> tuple[list[Any], dict[str, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        _bad(name, number, repr(line[:40].decode("utf-8", errors="replace")))
    aside: dict[str, Any] = {}
    if isinstance(value, dict):
        check_apart(name, kinds, list(value))
        aside = {kind: value.pop(kind) for kind in kinds}
        inner = list(value.values())
        value = inner[0] if len(inner) == 1 and isinstance(inner[0], list) else inner
    elif kinds:
        _bad(name, number, f"a list, which has no {next(iter(kinds))!r}")
    for kind, what in kinds.items():
        if what == "integer" and not (isinstance(aside[kind], int) or aside[kind] is None):
            _bad(name, number, f"{kind!r} = {aside[kind]!r:.40}, which is no integer")
    if not isinstance(value, list) or not value:
        _bad(name, number, repr(line[:40].decode("utf-8", errors="replace")))
    wrong = next((entry for entry in value if not isinstance(entry, int | float | None)), None)
    if wrong is not None:
        _bad(name, number, f"{wrong!r:.40}")
    return value, aside


def _bad(name: str, number: int, got: str) -> NoReturn:
    raise InputError(
        f"read_table: each line of {name} must be a JSON list or object of numbers; got {got} in row {number}. "
        "Write one row a line, all of one length."
    ) from None


def _block(held: list[list[Any]], apart: Mapping[str, list[Any]], kinds: Mapping[str, str]) -> Rows:
    import pyarrow as pa

    columns = {}
    for kind, what in kinds.items():
        values: Sequence[Any] = apart[kind]
        if what == "text":
            values = [None if value is None else str(value) for value in values]
        columns[kind] = pa.array(values, type=pa.string() if what == "text" else pa.int64())
    return Rows(np.array(held, dtype=np.float64), columns)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
