"""The idx format of MNIST and its relatives: a header, then bytes."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from arht.data.files import File, unreadable
from arht.data.images import Images

__all__ = ["count_idx", "four_files", "read_idx", "read_pair"]

HEADERS = {1: b"\0\0\x08\x01", 3: b"\0\0\x08\x03"}  # two zeros, unsigned bytes, number of axes
MUST = {1: "a gzipped idx file of labels (axis 1)", 3: "a gzipped idx file of pictures (axes 3)"}


def four_files(address: str, page: str, sums: Sequence[str]) -> dict[str, tuple[File, ...]]:
    """The four files of MNIST's layout: pictures and labels of train, pictures and labels of test."""
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    files = [File(name, page, address + name, md5) for name, md5 in zip(names, sums, strict=True)]
    return {"train": tuple(files[:2]), "test": tuple(files[2:])}


def read_idx(who: str, path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes that an idx file holds, gzipped or not."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(who, path, MUST[axes], error) from None
    if raw[:4] != HEADERS[axes] or len(raw) < 4 + 4 * axes:
        raise unreadable(who, path, MUST[axes], f"a file that begins with {raw[:4].hex(' ') or 'nothing'}")
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    body = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes)
    if len(body) != math.prod(shape):
        raise unreadable(who, path, f"{' x '.join(map(str, shape))} bytes after its header", f"{len(body)} bytes")
    return body.reshape(shape).copy()  # torch wants memory of its own


def read_pair(name: str, split: str, paths: Sequence[Path], classes: tuple[str, ...]) -> Images:
    """Pictures and labels from their two files."""
    pixels, labels = read_idx(name, paths[0], 3), read_idx(name, paths[1], 1)
    if len(pixels) != len(labels):
        raise unreadable(name, paths[1], f"the labels of the {len(pixels)} pictures beside it", f"{len(labels)} labels")
    if len(labels) and labels.max() >= len(classes):
        raise unreadable(name, paths[1], f"labels from 0 to {len(classes) - 1}", f"label {labels.max()}")
    return Images(torch.from_numpy(pixels)[:, None], torch.from_numpy(labels.astype(np.int64)), classes, name, split)


def count_idx(paths: Sequence[Path], split: str) -> int:
    """The number of pictures, from the header."""
    with gzip.open(paths[0]) if paths[0].suffix == ".gz" else paths[0].open("rb") as opened:
        return int.from_bytes(opened.read(8)[4:], "big")
