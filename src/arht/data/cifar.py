"""The binary records of CIFAR: label bytes, then 3 x 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from arht.data.files import unreadable
from arht.data.images import Images

__all__ = ["PAGE", "count_records", "read_records"]

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32


def read_records(
    name: str, split: str, paths: Sequence[Path], classes: tuple[str, ...], *, label_bytes: int, label: int
) -> Images:
    """The pictures [N, 3, 32, 32] of several files, one after the other; ``label`` is the byte that is kept."""
    parts = []
    for path in paths:
        raw = np.fromfile(path, dtype=np.uint8)
        if not len(raw) or len(raw) % (label_bytes + PIXELS):
            raise unreadable(name, path, f"whole records of {label_bytes + PIXELS} bytes", f"{len(raw)} bytes")
        records = raw.reshape(-1, label_bytes + PIXELS)
        if records[:, label].max() >= len(classes):
            got = f"label {records[:, label].max()}"
            raise unreadable(name, path, f"records with labels from 0 to {len(classes) - 1}", got)
        parts.append(records)
    pixels = np.concatenate([records[:, label_bytes:] for records in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([records[:, label] for records in parts]).astype(np.int64)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), classes, name, split)


def count_records(paths: Sequence[Path], label_bytes: int) -> int:
    """The number of pictures, from the sizes of the files."""
    return sum(path.stat().st_size for path in paths) // (label_bytes + PIXELS)
