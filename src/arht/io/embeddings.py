"""Write arrays of one row per input, chunk by chunk, to parquet or npz: memory does not grow with their length.

In npz every array has a member of its own, [N, ...], and the record is the archive's comment. In parquet every array is
a column, a row's own axes being nested lists of one length, and the record stands under ``arht`` in the file's
metadata. The record is JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError

__all__ = ["SUFFIXES", "ArrayWriter", "read_record"]

SUFFIXES = (".parquet", ".npz")

Arrays = Mapping[str, npt.NDArray[Any]]


class ArrayWriter:
    """``with ArrayWriter(path, record) as writer: writer.write({name: array [b, ...]})``.

    The file appears whole when the block ends, and not at all if it ends with an error. The record may be changed
    until then.
    """

    def __init__(self, path: str | os.PathLike[str], record: dict[str, Any]) -> None:
        self.path, self.record = Path(path), record
        if self.path.suffix.lower() not in SUFFIXES:
            raise InputError(
                f"embed: the file must end in {' or '.join(SUFFIXES)}; got {self.path}. The suffix decides the format."
            )
        self._folder = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            self._folder.mkdir()
        except OSError as error:
            raise InputError(
                f"embed: needs a file in a folder that can be written to; got {self.path}: {error.strerror}. "
                "Make the folder, or name another."
            ) from None
        self._kind: _Parquet | _Npz = (_Parquet if self.path.suffix.lower() == ".parquet" else _Npz)(self._folder)

    def write(self, arrays: Arrays) -> None:
        """Some more rows: the same names each time, and the same shapes but for the number of rows."""
        self._kind.write(arrays)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._kind.close(json.dumps(self.record, allow_nan=False)).replace(self.path)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Npz:
    """Each array grows in a file of its own; at the end they are packed, without compression."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: dict[str, tuple[Path, tuple[int, ...], np.dtype[Any]]] = {}

    def write(self, arrays: Arrays) -> None:
        for i, (name, array) in enumerate(arrays.items()):
            path, shape, dtype = self.parts.get(name, (self.folder / str(i), (0, *array.shape[1:]), array.dtype))
            if shape[1:] != array.shape[1:] or dtype != array.dtype:
                raise ValueError(f"{name} {array.dtype} {array.shape} does not continue {dtype} {shape}")
            with path.open("ab") as opened:
                opened.write(np.ascontiguousarray(array).data)
            self.parts[name] = (path, (shape[0] + len(array), *shape[1:]), dtype)

    def close(self, record: str) -> Path:
        whole = self.folder / "whole"
        with zipfile.ZipFile(whole, "w", allowZip64=True) as archive:
            archive.comment = record.encode()[:65535]
            for name, (path, shape, dtype) in self.parts.items():
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member, path.open("rb") as opened:
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(opened, member, 1 << 20)
                path.unlink()
        return whole


class _Parquet:
    """A row group a chunk."""

    def __init__(self, folder: Path) -> None:
        self.whole = folder / "whole"
        self.writer: Any = None

    def write(self, arrays: Arrays) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: _column(array) for name, array in arrays.items()})
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.whole, table.schema, write_page_checksum=True, compression="zstd")
        self.writer.write_table(table)

    def close(self, record: str) -> Path:
        if self.writer is not None:
            self.writer.add_key_value_metadata({"arht": record})
            self.writer.close()
        return self.whole


def _column(array: npt.NDArray[Any]) -> Any:
    """[b, ...] as a column of nested lists of one length."""
    import pyarrow as pa

    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file says of how it was made."""
    file = Path(path)
    try:
        if file.suffix.lower() == ".npz":
            with zipfile.ZipFile(file) as archive:
                return dict(json.loads(archive.comment))
        import pyarrow.parquet as pq

        return dict(json.loads(pq.read_metadata(file).metadata[b"arht"]))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"read_record: {file} must be a file that arht embed wrote; got: {reason}. Its arrays can be read without."
        ) from None
