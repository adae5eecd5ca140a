"""A set of pictures in memory, and the two changes of form that every set can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from arht.errors import InputError

__all__ = ["Images", "convert_channels", "resize", "spaced"]

CHUNK = 4096
"""Pictures changed at a time, so that the float copies in between stay small."""


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures and their labels.

    ``pixels`` is uint8 [N, C, H, W] with C = 1 (grey) or 3 (red, green, blue); ``labels`` is int64 [N], positions in
    ``classes``, or None. ``files`` names the file of each picture where every picture is a file. ``skipped`` names
    the unreadable files that were left out because the caller asked so.
    """

    pixels: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    name: str
    split: str
    files: tuple[str, ...] = field(default=(), repr=False)
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] not in (1, 3):
            raise InputError(
                f"Images: pixels must be uint8 [N, C, H, W] with C = 1 or 3; got {self.pixels.dtype} "
                f"{list(self.pixels.shape)}. Put the channels second and scale the values to 0..255."
            )
        if self.labels is not None and (self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]):
            raise InputError(
                f"Images: labels must be int64 [N] with N = {len(self.pixels)}; got {self.labels.dtype} "
                f"{list(self.labels.shape)}. Every picture needs one label, or leave labels out with None."
            )
        if self.labels is not None and len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < 0 or high >= len(self.classes):
                raise InputError(
                    f"Images: labels must be 0..{len(self.classes) - 1}, one for each of the {len(self.classes)} "
                    f"classes; got {low}..{high}. Name more classes, or check which labels belong to these pictures."
                )

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        count, channels, height, width = self.pixels.shape
        labels = "no labels" if self.labels is None else f"{len(self.classes)} classes"
        return f"Images({self.name}/{self.split}: {count} of {channels}x{height}x{width}, {labels})"

    def __getitem__(self, index: int | slice | Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Images:
        """Some of the pictures: by a slice, by positions, or by a mask. One position gives a set of one."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"picture {index} of {len(self)}")
            index = [int(index)]
        where = torch.arange(len(self))[index if isinstance(index, slice) else torch.as_tensor(index)]
        contiguous = index if isinstance(index, slice) else where  # a slice is a view: nothing is copied
        return replace(
            self,
            pixels=self.pixels[contiguous],
            labels=None if self.labels is None else self.labels[contiguous],
            files=tuple(self.files[i] for i in where.tolist()) if self.files else (),
        )

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> Images:
        """So many pictures, drawn without replacement."""
        if not 0 <= count <= len(self):
            raise InputError(
                f"Images.sample: needs 0 <= count <= N = {len(self)}; got {count}. Pictures are drawn without "
                "replacement; ask for fewer."
            )
        device = "cpu" if generator is None else generator.device
        return self[torch.randperm(len(self), generator=generator, device=device)[:count].cpu()]

    def of_class(self, *labels: int) -> Images:
        """The pictures with one of these labels."""
        if self.labels is None:
            raise InputError("Images.of_class: needs labels; these pictures have none.")
        return self[torch.isin(self.labels, torch.tensor(labels))]

    def reshaped(self, size: int | tuple[int, int] | None = None, channels: int | None = None) -> Images:
        """The same pictures with another size or number of channels."""
        return replace(self, pixels=resize(convert_channels(self.pixels, channels), size))


def convert_channels(pixels: Tensor, channels: int | None) -> Tensor:
    """Grey from colour, or colour from grey by repetition; uint8 [N, C, H, W].

    grey = 0.299 red + 0.587 green + 0.114 blue (ITU-R 601), in 16-bit fixed point as Pillow computes it.
    """
    if channels is None or pixels.shape[1] == channels:
        return pixels
    if channels not in (1, 3):
        raise InputError(f"load: channels must be 1 (grey) or 3 (colour); got {channels!r}.")
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    grey = torch.empty((len(pixels), 1, *pixels.shape[2:]), dtype=torch.uint8)
    for start in range(0, len(pixels), CHUNK):
        red, green, blue = pixels[start : start + CHUNK].to(torch.int32).unbind(1)
        grey[start : start + CHUNK, 0] = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return grey


def resize(pixels: Tensor, size: int | tuple[int, int] | None) -> Tensor:
    """Another height and width; uint8 ``[N, C, H, W] -> [N, C, *size]``. The aspect ratio is not kept.

    Bilinear with antialiasing: when a picture shrinks, every pixel is an average over the area it stands for. It is
    Pillow's ``resize(..., BILINEAR)`` up to one grey level.
    """
    if size is None:
        return pixels
    target = side_lengths(size)
    if tuple(pixels.shape[2:]) == target:
        return pixels
    out = torch.empty((*pixels.shape[:2], *target), dtype=torch.uint8)
    for start in range(0, len(pixels), CHUNK):
        out[start : start + CHUNK] = interpolate(pixels[start : start + CHUNK], target, mode="bilinear", antialias=True)
    return out


def side_lengths(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width from one number or two."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise InputError(f"load: size must be a positive integer or (height, width); got {size!r}.")
    return pair[0], pair[1]


def spaced(total: int, limit: int | None) -> Tensor:
    """``limit`` of ``total`` positions, evenly spaced: a set sorted by class keeps its classes."""
    if limit is None or limit >= total:
        return torch.arange(total)
    if limit < 1:
        raise InputError(f"load: limit must be a positive number of pictures; got {limit}.")
    return torch.arange(limit) * total // limit
