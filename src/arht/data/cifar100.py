"""CIFAR-100: photographs of a hundred kinds of things, 32 x 32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.cifar import PAGE, count_records, read_records
from arht.data.dataset import DataSet
from arht.data.files import File, unreadable
from arht.data.images import Images

__all__ = ["SET"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 3, 32, 32] with their fine labels; the coarse ones are passed over."""
    classes = tuple(paths[1].read_text(encoding="utf-8", errors="replace").split())
    if len(classes) != 100:
        raise unreadable("cifar100", paths[1], "100 names of classes", f"{len(classes)} names")
    return read_records("cifar100", split, paths[:1], classes, label_bytes=2, label=1)


def count(paths: Sequence[Path], split: str) -> int:
    """The number of pictures."""
    return count_records(paths[:1], 2)


NAMES = File("fine_label_names.txt", PAGE, URL, MD5)

SET = DataSet(
    "cifar100",
    "photographs of 100 classes, colour, 32 x 32",
    {
        "train": (File("train.bin", PAGE, URL, MD5), NAMES),
        "test": (File("test.bin", PAGE, URL, MD5), NAMES),
    },
    read,
    count,
    folders=("cifar-100-binary", "cifar100", "cifar-100"),
)
