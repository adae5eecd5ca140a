"""Read a table of numbers [n, P] from npy, npz, csv or parquet."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import ArhtWarning, InputError
from arht.io._arrow import check_columns, floats, is_list, is_single, lists
from arht.io._checks import SUFFIXES, check_array, existing, ragged, refuse
from arht.io.text import Layout, head_of, text_in_column

__all__ = ["SUFFIXES", "choose", "read_table"]

Array = npt.NDArray[np.floating[Any]]


def read_table(path: str | os.PathLike[str]) -> Array:
    """Read the table of numbers [n, P] that a file holds, one row per embedding.

    * ``.npy``: one array; mapped into memory, not copied, where it is stored as native float32 or float64.
    * ``.npz``: its only array, or the one named by a key: ``"file.npz:key"``.
    * ``.csv``: columns separated by commas, with or without a header line. A first line of nothing but
      numbers is data, except ``0,1,...,P-1`` with P > 1: pandas writes that as a header, so it is read as
      one, with a warning. An empty cell is NaN.
    * ``.parquet``: numeric columns, or one column of lists of numbers of one length. A null is NaN.

    n numbers alone are read as [n, 1]; booleans as 0 and 1. The result is float32 if all of it is stored so,
    float64 otherwise. Writing to it never changes the file. Pickled arrays are refused: they can run code.

    Raises `InputError`, with one line that says what to change, for anything that is not such a table.
    """
    file, key = existing(path)
    suffix = file.suffix.lower()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)  # headers written by Python 2
            array = _npz(file, key) if suffix == ".npz" else _READERS[suffix](file)
    except (InputError, ArhtWarning):
        raise
    except Exception as error:  # the readers raise whatever a damaged byte leads them to
        refuse(file, error)
    return _table(file, array)


def _table(file: Path, array: npt.NDArray[Any]) -> Array:
    """Check shape and type, and bring to [n, P] of float32 or float64."""
    check_array(file, array.shape, array.dtype)
    kind = np.float32 if array.dtype.newbyteorder("=") == np.float32 else np.float64
    table: Array = np.asarray(array, dtype=kind)
    return table[:, None] if table.ndim == 1 else table


def _npy(file: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.lib.format.open_memmap(file, mode="c")  # writable in memory, never on disk
    return array


def choose(file: Path, key: str | None) -> str:
    """The name of the one array in an npz file, or of the one that the key names."""
    if not zipfile.is_zipfile(file):
        raise ValueError("no archive of arrays")
    with zipfile.ZipFile(file) as archive:
        members = archive.namelist()
    names = [name.removesuffix(".npy") for name in members]
    if not names:
        raise InputError(f"read_table: {file} must hold an array; got an empty archive. Write it again.")
    shown = [name if name.isprintable() else repr(name) for name in names[:8]]
    listed = ", ".join(shown) + (", ..." if len(names) > 8 else "")
    if key is None and len(names) > 1:
        raise InputError(
            f"read_table: {file} must hold one array, or be given with a key; it holds: {listed}. "
            f"Say which, for instance {file}:{shown[0]}."
        )
    if key is not None and key not in names:
        raise InputError(f"read_table: the key must be in {file}; got {key!r}, it holds: {listed}.")
    name = key or names[0]
    if f"{name}.npy" not in members:
        raise ValueError(f"member {name!r} is not an array")
    return name


def _npz(file: Path, key: str | None) -> npt.NDArray[Any]:
    name = choose(file, key)
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        array = archive[name]
    if not isinstance(array, np.ndarray):
        raise ValueError(f"member {name!r} is not an array")
    return array


def _csv(file: Path) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.csv

    with file.open("rb") as opened:
        layout = Layout.of(file, head_of(opened))
    options, convert = layout.options()
    try:
        return _columns(pyarrow.csv.read_csv(file, options, convert_options=convert))
    except pa.ArrowInvalid as error:
        text_in_column(file, layout, error)
        raise


def _parquet(file: Path) -> npt.NDArray[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as opened:
        table = opened.read()
    names, kinds = table.column_names, table.schema.types
    check_columns(file, names, kinds)
    if len(kinds) != 1 or not is_list(kinds[0]):
        return _columns(table)
    values = [lists(file, names[0], chunk) for chunk in table.column(0).chunks if len(chunk)]
    widths = {array.shape[1] for array in values}
    if len(widths) > 1:
        ragged(file, names[0], min(widths), max(widths))
    return np.concatenate(values) if values else np.empty((0, 1))


def _columns(table: Any) -> npt.NDArray[Any]:
    """Numeric columns -> [n, P]."""
    array = np.empty(
        (table.num_rows, table.num_columns), dtype=np.float32 if is_single(table.schema.types) else np.float64
    )
    for i in range(table.num_columns):
        array[:, i] = floats(table.column(i))
    return array


_READERS: dict[str, Callable[[Path], npt.NDArray[Any]]] = {".npy": _npy, ".csv": _csv, ".parquet": _parquet}
