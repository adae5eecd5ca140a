"""A table that is read in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import ArhtError, ArhtWarning, InputError
from arht.io._checks import ragged, refuse

__all__ = ["Rows", "Source", "check_apart", "readable"]

BYTES = 8 << 20
"""Size of a chunk, about, where no number of rows is given: what a processor keeps near, and an allocator keeps."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A chunk of a table."""

    x: npt.NDArray[np.floating[Any]]
    """[b, P], or draws [b, K, P] where the file holds such; float32 or float64."""
    apart: dict[str, Any] = field(default_factory=dict)
    """The columns that were named to be no part of x, as pyarrow arrays [b]."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.x[part], {name: column[part] for name, column in self.apart.items()})


@dataclass(frozen=True)
class Source:
    """A table to be read in chunks. `open_table` makes it; none of its rows has been read yet."""

    path: str
    count: int | None
    """Number of rows, where the format tells it beforehand."""
    shape: tuple[int, ...] | None
    """(P,) or (K, P), where the format tells it beforehand."""
    single: bool
    """Whether the numbers are float32."""
    read: Callable[[int, int], Iterator[Rows]] = field(repr=False)
    """(rows at most, first row) -> chunks of any size up to that."""

    def rows(self) -> int:
        """Rows of a chunk of about `BYTES`."""
        each = math.prod(self.shape) if self.shape else 128
        return int(min(max(BYTES // ((4 if self.single else 8) * max(each, 1)), 64), 1 << 16))

    def chunks(self, rows: int | None = None, start: int = 0) -> Iterator[Rows]:
        """Chunks of exactly so many rows, the last one of what is left; rows before `start` are passed over."""
        size = rows or self.rows()
        with readable(self.path):
            yield from _regroup(self.path, self.read(size, start), size)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Whatever a damaged byte leads a reader to raise becomes the one line."""
    try:
        yield
    except (ArhtError, ArhtWarning):
        raise
    except Exception as error:
        refuse(Path(name), error)


def check_apart(name: str, wanted: Iterable[str], names: Sequence[str]) -> None:
    """Every column to be read apart is there, once."""
    for column in wanted:
        if names.count(column) != 1:
            listed = ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")
            raise InputError(f"read_table: the column must be in {name}, once; got {column!r}, it holds: {listed}.")


def _regroup(path: str, chunks: Iterator[Rows], size: int) -> Iterator[Rows]:
    held: list[Rows] = []
    count, shape = 0, None
    for chunk in chunks:
        if shape is not None and chunk.x.shape[1:] != shape:
            ragged(Path(path), "of lists", *sorted((shape[-1], chunk.x.shape[-1])))
        shape = chunk.x.shape[1:]
        while count + len(chunk) >= size:
            cut = size - count
            yield _join([*held, chunk[:cut] if cut < len(chunk) else chunk])
            chunk, held, count = chunk[cut:], [], 0
        if len(chunk):
            held.append(chunk)
            count += len(chunk)
    if held:
        yield _join(held)


def _join(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    import pyarrow as pa

    apart = {name: pa.chunked_array([part.apart[name] for part in parts]).combine_chunks() for name in parts[0].apart}
    if all(part.x.ndim == 2 and part.x.flags.f_contiguous for part in parts):  # joined along their contiguous axis
        return Rows(np.concatenate([part.x.T for part in parts], axis=1).T, apart)
    return Rows(np.concatenate([part.x for part in parts]), apart)
