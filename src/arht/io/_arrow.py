"""Columns of arrow to arrays. pyarrow is imported when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.io._checks import index_column, ragged, text_column

__all__ = ["check_columns", "fixed_shape", "floats", "innermost", "is_list", "is_single", "lists", "numeric", "stacked"]

Array = npt.NDArray[np.floating[Any]]


def numeric(kind: Any) -> bool:
    """Whether a type of arrow is one of numbers (nulls alone are NaN)."""
    import pyarrow as pa

    types = pa.types
    checks = (types.is_floating, types.is_integer, types.is_decimal, types.is_boolean, types.is_null)
    return any(check(kind) for check in checks)


def is_list(kind: Any) -> bool:
    """Whether a type of arrow is one of lists."""
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_single(kinds: Sequence[Any]) -> bool:
    """Whether columns, or the lists in the one column, are all float32."""
    import pyarrow as pa

    return bool(kinds) and all(innermost(kind) == pa.float32() for kind in kinds)


def innermost(kind: Any) -> Any:
    """The type of the numbers in lists of lists."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def fixed_shape(kind: Any) -> tuple[int, ...] | None:
    """Lengths of lists of fixed length, the outermost first; None where a type does not say them."""
    import pyarrow as pa

    shape: tuple[int, ...] = ()
    while is_list(kind):
        if not pa.types.is_fixed_size_list(kind):
            return None
        shape, kind = (*shape, kind.list_size), kind.value_type
    return shape


def check_columns(file: Path, names: Sequence[str], kinds: Sequence[Any]) -> None:
    """Nothing but numbers, or one column of lists of numbers."""
    if len(kinds) == 1 and is_list(kinds[0]):
        if not numeric(innermost(kinds[0])) or (
            is_list(kinds[0].value_type) and is_list(kinds[0].value_type.value_type)
        ):
            text_column(file, names[0], str(kinds[0]))
        return
    for name, kind in zip(names, kinds, strict=True):
        if name.startswith("__index_level_"):
            index_column(file, name)
        if not numeric(kind):
            text_column(file, name, str(kind))


def floats(column: Any, single: bool | None = None) -> Array:
    """One column as float32, if it is stored so (or `single` says so), else float64; a null is NaN."""
    import pyarrow as pa

    if single is None:
        single = column.type == pa.float32()
    kind = pa.float32() if single else pa.float64()
    column = column.cast(kind, safe=False) if column.type != kind else column
    keep = {} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}
    return np.asarray(column.to_numpy(**keep))


def stacked(columns: Sequence[Any], rows: int, single: bool) -> Array:
    """Columns side by side, [n, P]: in memory column after column, as they come."""
    array = np.empty((len(columns), rows), dtype=np.float32 if single else np.float64)
    for i, column in enumerate(columns):
        array[i] = floats(column, single)
    return array.T


def lists(file: Path, name: str, chunk: Any) -> Array:
    """One chunk of a list column -> [n, P]; of lists of lists -> [n, K, P]."""
    import pyarrow.compute

    lengths = np.asarray(pyarrow.compute.list_value_length(chunk).fill_null(0).to_numpy(zero_copy_only=False))
    if len(lengths) and lengths.min() != lengths.max():
        ragged(file, name, int(lengths.min()), int(lengths.max()))
    if not len(lengths) or not lengths[0]:
        return np.empty((len(chunk), 0))
    flat = chunk.flatten()
    inner = lists(file, name, flat) if is_list(flat.type) else floats(flat)
    return inner.reshape(len(chunk), int(lengths[0]), *inner.shape[1:])
