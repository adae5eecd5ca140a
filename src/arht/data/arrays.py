"""Pictures and labels in one npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from arht.data.images import Images
from arht.errors import InputError

__all__ = ["read_arrays"]


def read_arrays(path: Path, split: str) -> Images:
    """``x`` uint8 [N, H, W], [N, C, H, W] or [N, H, W, C], and ``y`` [N] of whole numbers, if it is there.

    A file with ``x_train``, ``y_train``, ``x_test``, ``y_test`` holds both splits; one with ``x`` alone is the split
    "train".
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as opened:
            names = {name: opened[name] for name in opened.files}
    except FileNotFoundError:
        raise InputError(f"load: needs the file {path}; it does not exist. Check the path.") from None
    except Exception as error:  # numpy and zipfile raise what a damaged byte leads them to
        error = ValueError("it is no archive, or holds pickled objects") if "pickle" in str(error) else error
        raise InputError(
            f"load: {path} must be an npz file of arrays; got: {error}. Write it with numpy.savez."
        ) from None
    suffix = f"_{split}" if f"x_{split}" in names else ""
    if f"x{suffix}" not in names or (not suffix and split != "train"):
        raise InputError(
            f"load: {path} must hold x_{split} (and y_{split}){' or x' if split == 'train' else ''}; it holds "
            f"{', '.join(names) or 'nothing'}. Name the arrays so."
        )
    x = names[f"x{suffix}"]
    y = names.get(f"y{suffix}")
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise InputError(
            f"load: {path}: x{suffix} must be uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]; got {x.dtype} "
            f"{list(x.shape)}. Scale the values to 0..255."
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    labels = None
    classes: tuple[str, ...] = ()
    if y is not None:
        y = np.ravel(y)
        if y.dtype.kind not in "iu" or len(y) != len(x) or (len(y) and y.min() < 0):
            raise InputError(
                f"load: {path}: y{suffix} must be {len(x)} whole numbers from 0; got {y.dtype} {list(y.shape)}. "
                "Number the classes 0, 1, 2, ..."
            )
        everything = [np.ravel(names[name]) for name in names if name == "y" or name.startswith("y_")]
        count = 1 + max(int(part.max()) for part in everything if part.dtype.kind in "iu" and len(part))
        labels, classes = torch.from_numpy(y.astype(np.int64)), tuple(map(str, range(count)))
    return Images(torch.from_numpy(np.ascontiguousarray(x)), labels, classes, path.stem, split)
