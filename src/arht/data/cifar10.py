"""CIFAR-10: photographs of ten kinds of things, 32 x 32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.cifar import PAGE, count_records, read_records
from arht.data.dataset import DataSet
from arht.data.files import File
from arht.data.images import Images

__all__ = ["SET"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 3, 32, 32]."""
    return read_records("cifar10", split, paths, CLASSES, label_bytes=1, label=0)


def count(paths: Sequence[Path], split: str) -> int:
    """The number of pictures."""
    return count_records(paths, 1)


SET = DataSet(
    "cifar10",
    "photographs of 10 classes, colour, 32 x 32",
    {
        "train": tuple(File(f"data_batch_{i}.bin", PAGE, URL, MD5) for i in range(1, 6)),
        "test": (File("test_batch.bin", PAGE, URL, MD5),),
    },
    read,
    count,
    folders=("cifar-10-batches-bin", "cifar10", "cifar-10", "."),
)
