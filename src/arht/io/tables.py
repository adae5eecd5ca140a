"""Read a table of numbers [n, P] from npy, npz, csv or parquet."""

from __future__ import annotations

import csv
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from arht.errors import ArhtWarning, InputError

__all__ = ["SUFFIXES", "read_table"]

Array = npt.NDArray[np.floating[Any]]

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
"""Suffixes that `read_table` reads, in lower or upper case."""


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
    file, key = _split(os.fspath(path))
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"read_table: the suffix must be one of {', '.join(SUFFIXES)}; got {file}. "
            "Convert the file, or rename it if only its name is wrong."
        )
    try:
        size = file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"read_table: needs an existing file; got {file}, which does not exist. "
            "Check the path and the working folder."
        ) from None
    except (OSError, ValueError) as error:
        _unreadable(file, error)
    if file.is_dir():
        raise InputError(f"read_table: needs a file; got {file}, which is a folder. Name a file in it.")
    if size == 0:
        raise InputError(f"read_table: the file must not be empty; got {file} with 0 bytes. Check what wrote it.")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)  # headers written by Python 2
            array = _npz(file, key) if suffix == ".npz" else _READERS[suffix](file)
    except (InputError, ArhtWarning):
        raise
    except Exception as error:  # the readers raise whatever a damaged byte leads them to
        if "bject arrays" in str(error) or "Python objects" in str(error):
            raise InputError(
                f"read_table: {file} must hold plain numbers; got pickled Python objects. "
                "Loading a pickle can run code, so it is refused; save the array with a numeric dtype."
            ) from None
        _unreadable(file, error)
    return _table(file, array)


def _split(path: str) -> tuple[Path, str | None]:
    """``file.npz:key`` -> the file and the key."""
    found = re.fullmatch(r"(.*\.npz):(.+)", path, re.IGNORECASE | re.DOTALL)
    return (Path(found[1]), found[2]) if found else (Path(path), None)


def _unreadable(file: Path, error: Exception) -> NoReturn:
    if isinstance(error, OSError) and error.errno is not None:
        raise InputError(
            f"read_table: needs a file that can be opened; got {file}: {error.strerror}. "
            "Check its name and its permissions."
        ) from None
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    reason = reason if len(reason) <= 160 else reason[:160] + "..."
    raise InputError(
        f"read_table: {file} must be a readable {file.suffix.lower()} file; got: {reason}. "
        "It is cut short or damaged, or its suffix is wrong; write it again."
    ) from None


def _table(file: Path, array: npt.NDArray[Any]) -> Array:
    """Check shape and type, and bring to [n, P] of float32 or float64."""
    if array.dtype.kind == "c":
        raise InputError(
            f"read_table: {file} must hold real numbers; got dtype {array.dtype}. "
            "Save the real part, or real and imaginary parts as columns."
        )
    if array.dtype.kind not in "fiub":
        raise InputError(f"read_table: {file} must hold numbers; got dtype {array.dtype}. Convert it to numbers first.")
    if array.ndim not in (1, 2):
        raise InputError(
            f"read_table: {file} must hold a table [n, P] or n numbers; got shape {array.shape}. "
            "Reshape it to one row per embedding."
        )
    if array.size == 0:
        raise InputError(
            f"read_table: needs at least one row and one column; got shape {array.shape} in {file}. "
            "There is nothing to test; check the selection that produced it."
        )
    kind = np.float32 if array.dtype.newbyteorder("=") == np.float32 else np.float64
    table: Array = np.asarray(array, dtype=kind)
    return table[:, None] if table.ndim == 1 else table


def _npy(file: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.lib.format.open_memmap(file, mode="c")  # writable in memory, never on disk
    return array


def _npz(file: Path, key: str | None) -> npt.NDArray[Any]:
    if not zipfile.is_zipfile(file):
        raise ValueError("no archive of arrays")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        names = archive.files
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
        array = archive[key or names[0]]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"member {key or names[0]!r} is not an array")
        return array


def _csv(file: Path) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.csv

    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        above, first = next(((i, line) for i, line in enumerate(lines) if line.strip()), (0, ""))
    cells = [cell.strip() for cell in next(csv.reader([first]), [])]
    counted = [str(i) for i in range(len(cells))]
    convert = pyarrow.csv.ConvertOptions()
    numbers = [cell for cell in cells if cell in convert.null_values or _is_number(cell)]
    header = all(cell.isdigit() or not cell for cell in numbers) if len(numbers) < len(cells) else False
    if cells and not cells[0] and (header or cells[1:] == counted[:-1] != []):
        _index_column(file, "")
    if len(cells) > 1 and cells == counted:
        header = True
        warnings.warn(
            f"read_table: the first line of {file} counts from 0 to {len(cells) - 1}; it is read "
            "as a header, not as data.",
            ArhtWarning,
            stacklevel=3,
        )
    names = [f"f{i}" for i in range(len(cells))]
    convert.column_types = dict.fromkeys(names, pa.float64())
    try:
        table = pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=above + 1 if header else 0),
            convert_options=convert,
        )
    except pa.ArrowInvalid as error:
        text = re.search(r"column #(\d+).*?invalid value '(.*)'", str(error), re.DOTALL)
        if text is None:
            raise
        column = int(text[1])
        _text_column(file, cells[column] if header else column, f"{text[2][:40]!r}")
    return _columns(table)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(file: Path) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as opened:
        table = opened.read()
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if table.num_columns == 1 and any(is_list(table.schema.types[0]) for is_list in lists):
        name = table.column_names[0]
        values = [_lists(file, name, chunk) for chunk in table.column(0).chunks if len(chunk)]
        widths = {array.shape[1] for array in values}
        if len(widths) > 1:
            _ragged(file, name, min(widths), max(widths))
        return np.concatenate(values) if values else np.empty((0, 1))
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if name.startswith("__index_level_"):
            _index_column(file, name)
        if not _numeric(kind):
            _text_column(file, name, str(kind))
    return _columns(table)


def _lists(file: Path, name: str, chunk: Any) -> npt.NDArray[Any]:
    """One chunk of a list column -> [n, P]."""
    if not _numeric(chunk.type.value_type):
        _text_column(file, name, str(chunk.type))
    import pyarrow.compute

    lengths = np.asarray(pyarrow.compute.list_value_length(chunk).fill_null(0).to_numpy(zero_copy_only=False))
    if lengths.min() != lengths.max():
        _ragged(file, name, int(lengths.min()), int(lengths.max()))
    return _floats(chunk.flatten()).reshape(len(chunk), -1) if lengths[0] else np.empty((len(chunk), 0))


def _numeric(kind: Any) -> bool:
    import pyarrow as pa

    checks = (
        pa.types.is_floating,
        pa.types.is_integer,
        pa.types.is_decimal,
        pa.types.is_boolean,
        pa.types.is_null,
    )
    return any(check(kind) for check in checks)


def _floats(column: Any) -> npt.NDArray[Any]:
    import pyarrow as pa

    kind = pa.float32() if column.type == pa.float32() else pa.float64()
    column = column.cast(kind, safe=False) if column.type != kind else column
    keep = {} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}
    return np.asarray(column.to_numpy(**keep))


def _columns(table: Any) -> npt.NDArray[Any]:
    """Numeric columns -> [n, P]."""
    import pyarrow as pa

    single = table.num_columns > 0 and all(kind == pa.float32() for kind in table.schema.types)
    array = np.empty((table.num_rows, table.num_columns), dtype=np.float32 if single else np.float64)
    for i in range(table.num_columns):
        array[:, i] = _floats(table.column(i))
    return array


def _text_column(file: Path, name: str | int, got: str) -> NoReturn:
    raise InputError(
        f"read_table: {file} must hold numbers; column {name!r} holds {got}. "
        "Drop it, or convert it to numbers; commas separate columns."
    )


def _index_column(file: Path, name: str) -> NoReturn:
    raise InputError(
        f"read_table: {file} must hold nothing but embeddings; its column {name!r} is a row index as pandas "
        "writes it. Write the file with index=False."
    )


def _ragged(file: Path, name: str, shortest: int, longest: int) -> NoReturn:
    raise InputError(
        f"read_table: {file} must hold lists of one length; column {name!r} has lengths {shortest} to "
        f"{longest}. They are not embeddings of one layer."
    )


_READERS: dict[str, Callable[[Path], npt.NDArray[Any]]] = {".npy": _npy, ".csv": _csv, ".parquet": _parquet}
