"""The 1,797 small digits that ship with scikit-learn, 8 x 8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from arht.data.dataset import DataSet
from arht.data.images import Images

__all__ = ["SET"]


def read(paths: Sequence[Path], split: str) -> Images:
    """The pictures [N, 1, 8, 8], their 17 levels spread over 0..255. Every third one, from the first, is in test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = (np.arange(len(bunch.target)) % 3 == 0) == (split == "test")
    pixels = np.rint(bunch.images[chosen] * (255 / 16)).astype(np.uint8)
    labels = torch.from_numpy(bunch.target[chosen].astype(np.int64))
    return Images(torch.from_numpy(pixels)[:, None], labels, tuple("0123456789"), "digits", split)


def count(paths: Sequence[Path], split: str) -> int:
    """The number of pictures."""
    return 599 if split == "test" else 1198


SET = DataSet(
    "digits", "handwritten digits, grey, 8 x 8; ships with scikit-learn", {"train": (), "test": ()}, read, count
)
