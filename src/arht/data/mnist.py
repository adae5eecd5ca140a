"""MNIST: handwritten digits, white on black, 28 x 28."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.dataset import DataSet
from arht.data.idx import count_idx, four_files, read_pair
from arht.data.images import Images

__all__ = ["SET"]

CLASSES = tuple("0123456789")
FILES = four_files(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 1, 28, 28]."""
    return read_pair("mnist", split, paths, CLASSES)


SET = DataSet(
    "mnist",
    "handwritten digits, grey, 28 x 28",
    FILES,
    read,
    count_idx,
    folders=("mnist", "MNIST/raw", "MNIST", "."),
)
