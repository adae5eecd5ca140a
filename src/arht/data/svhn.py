"""SVHN: house numbers cut to single digits, 32 x 32 in colour, in MATLAB files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arht.data.dataset import DataSet
from arht.data.files import File, unreadable
from arht.data.images import Images

__all__ = ["SET"]

PAGE = "http://ufldl.stanford.edu/housenumbers/"
CLASSES = tuple("0123456789")
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 9, 12, 13)
"""How MATLAB names the types that numbers are stored in."""
MUST = "a MATLAB file with X [32, 32, 3, N] of unsigned bytes and N labels y from 1 to 10"


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 3, 32, 32]. The files call the digit 0 by 10; here it is 0."""
    from scipy.io import loadmat

    (path,) = paths
    try:
        _check_types(path)
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # the reader raises whatever a damaged byte leads it to
        raise unreadable("svhn", path, MUST, error) from None
    x: Any = content.get("X", np.zeros(0))
    y: Any = np.ravel(content.get("y", np.zeros(0)))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or len(y) != x.shape[3]:
        got = f"X {list(x.shape)} of {x.dtype} and {len(y)} labels"
        raise unreadable("svhn", path, MUST, got)
    if len(y) and not (y.min() >= 0 and y.max() <= 10):
        raise unreadable("svhn", path, MUST, f"labels from {y.min()} to {y.max()}")
    pixels = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    return Images(pixels, torch.from_numpy(y.astype(np.int64) % 10), CLASSES, "svhn", split)


def _check_types(path: Path) -> None:
    """Raise unless every variable is an array of numbers stored as numbers: of others, loadmat ends the process.

    A variable is an element 14, or an element 15 that unpacks to one; in it are flags, sizes, name and numbers.
    """
    with path.open("rb") as opened:
        if opened.read(128)[126:] != b"IM":
            raise ValueError("no MATLAB file of version 5")
        while tag := opened.read(8):
            kind, size = struct.unpack("<II", tag)
            after = opened.tell() + size
            head = opened.read(min(size, 4096))
            head = zlib.decompressobj().decompress(head, 4096) if kind == 15 else tag + head
            if struct.unpack_from("<I", head)[0] != 14 or not 6 <= head[16] <= 15:
                raise ValueError("a variable that is no array of numbers")
            at = 8
            for _ in range(3):
                short, length = struct.unpack_from("<II", head, at)
                at += 8 if short >> 16 else 8 + length + -length % 8
            if struct.unpack_from("<H", head, at)[0] not in NUMBERS:
                raise ValueError("numbers of an unknown type")
            opened.seek(after)


def count(paths: Sequence[Path], split: str) -> int:
    """The number of pictures, from the header of the file."""
    from scipy.io import whosmat

    return next((int(shape[-1]) for name, shape, _ in whosmat(paths[0]) if name == "X"), 0)


SET = DataSet(
    "svhn",
    "house numbers cut to single digits, colour, 32 x 32",
    {
        "train": (File("train_32x32.mat", PAGE, PAGE + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),),
        "test": (File("test_32x32.mat", PAGE, PAGE + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),),
    },
    read,
    count,
    folders=("svhn", "SVHN", "."),
)
