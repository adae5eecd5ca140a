"""What every reader of tables checks, and the one line it says when that does not hold."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from arht.errors import InputError

__all__ = [
    "SUFFIXES",
    "check_array",
    "existing",
    "index_column",
    "ragged",
    "refuse",
    "split_key",
    "text_column",
    "unreadable",
]

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
"""Suffixes that `read_table` reads, in lower or upper case."""


def existing(path: str | os.PathLike[str], suffixes: Sequence[str] = SUFFIXES) -> tuple[Path, str | None]:
    """The file, which is there and not empty, and the key of ``file.npz:key``."""
    file, key = split_key(os.fspath(path))
    if file.suffix.lower() not in suffixes:
        raise InputError(
            f"read_table: the suffix must be one of {', '.join(suffixes)}; got {file}. "
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
        unreadable(file, error)
    if file.is_dir():
        raise InputError(f"read_table: needs a file; got {file}, which is a folder. Name a file in it.")
    if size == 0:
        raise InputError(f"read_table: the file must not be empty; got {file} with 0 bytes. Check what wrote it.")
    return file, key


def split_key(path: str) -> tuple[Path, str | None]:
    """``file.npz:key`` -> the file and the key."""
    found = re.fullmatch(r"(.*\.npz):(.+)", path, re.IGNORECASE | re.DOTALL)
    return (Path(found[1]), found[2]) if found else (Path(path), None)


def refuse(file: Path, error: Exception) -> NoReturn:
    """Whatever a damaged byte leads a reader to raise, as one line."""
    if "bject arrays" in str(error) or "Python objects" in str(error):
        raise InputError(
            f"read_table: {file} must hold plain numbers; got pickled Python objects. "
            "Loading a pickle can run code, so it is refused; save the array with a numeric dtype."
        ) from None
    unreadable(file, error)


def unreadable(file: Path, error: Exception) -> NoReturn:
    """The file cannot be opened, or it is damaged."""
    if isinstance(error, OSError) and error.errno is not None:
        raise InputError(
            f"read_table: needs a file that can be opened; got {file}: {error.strerror}. "
            "Check its name and its permissions."
        ) from None
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    reason = reason if len(reason) <= 160 else reason[:160] + "..."
    what = f"a readable {file.suffix.lower()} file" if file.suffix else "readable"
    raise InputError(
        f"read_table: {file} must be {what}; got: {reason}. "
        "It is cut short or damaged, or its suffix is wrong; write it again."
    ) from None


def check_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """A table [n, P], or n numbers, of real numbers."""
    if dtype.kind == "c":
        raise InputError(
            f"read_table: {file} must hold real numbers; got dtype {dtype}. "
            "Save the real part, or real and imaginary parts as columns."
        )
    if dtype.kind not in "fiub":
        raise InputError(f"read_table: {file} must hold numbers; got dtype {dtype}. Convert it to numbers first.")
    if len(shape) not in (1, 2):
        raise InputError(
            f"read_table: {file} must hold a table [n, P] or n numbers; got shape {shape}. "
            "Reshape it to one row per embedding."
        )
    if 0 in shape:
        raise InputError(
            f"read_table: needs at least one row and one column; got shape {shape} in {file}. "
            "There is nothing to test; check the selection that produced it."
        )


def text_column(file: Path, name: str | int, got: str) -> NoReturn:
    """A column that is not numeric."""
    raise InputError(
        f"read_table: {file} must hold numbers; column {name!r} holds {got}. "
        "Drop it, or convert it to numbers; commas separate columns."
    )


def index_column(file: Path, name: str) -> NoReturn:
    """A column that only counts rows."""
    raise InputError(
        f"read_table: {file} must hold nothing but embeddings; its column {name!r} is a row index as pandas "
        "writes it. Write the file with index=False."
    )


def ragged(file: Path, name: str, shortest: int, longest: int) -> NoReturn:
    """Lists of several lengths."""
    raise InputError(
        f"read_table: {file} must hold lists of one length; column {name!r} has lengths {shortest} to "
        f"{longest}. They are not embeddings of one layer."
    )
