"""Fashion-MNIST: pieces of clothing in MNIST's format, 28 x 28."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.dataset import DataSet
from arht.data.idx import count_idx, four_files, read_pair
from arht.data.images import Images

__all__ = ["SET"]

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FILES = four_files(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 1, 28, 28]."""
    return read_pair("fashion-mnist", split, paths, CLASSES)


SET = DataSet(
    "fashion-mnist",
    "pieces of clothing, grey, 28 x 28",
    FILES,
    read,
    count_idx,
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),  # not ".": the names are those of MNIST
)
