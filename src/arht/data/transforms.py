"""From stored pictures to what a network eats: the one place where size, channels and scaling are stated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arht.data.images import CHUNK, Images, convert_channels, resize, side_lengths
from arht.errors import InputError

__all__ = ["Transform"]


@dataclass(frozen=True)
class Transform:
    """uint8 pictures ``[B, C, H, W]`` to float32 ``[B, channels, *size]``.

    out = (pixels / 255 - mean) / scale, channel by channel, after the change of channels and size. With the default
    mean and scale the result lies in [0, 1].
    """

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", side_lengths(self.size))
        if self.channels not in (1, 3):
            raise InputError(f"Transform: channels must be 1 (grey) or 3 (colour); got {self.channels!r}.")
        for name in ("mean", "scale"):
            given = getattr(self, name)
            values = tuple(float(value) for value in (given if isinstance(given, tuple | list) else (given,)))
            values = values * self.channels if len(values) == 1 else values
            if len(values) != self.channels or not np.isfinite(values).all():
                raise InputError(
                    f"Transform: {name} must be one finite number, or one for each of the {self.channels} channels; "
                    f"got {values}."
                )
            object.__setattr__(self, name, values)
        if min(self.scale) <= 0:
            raise InputError(f"Transform: scale must be positive; got {self.scale}. A constant channel has no scale.")

    @classmethod
    def of(cls, images: Images, *, size: int | tuple[int, int] | None = None, channels: int | None = None) -> Transform:
        """The transform that gives these pictures mean 0 and standard deviation 1 in every channel.

        A channel that is constant keeps scale 1. Measure it on the pictures the network is trained on, and on no
        others.
        """
        if not len(images):
            raise InputError("Transform.of: needs at least one picture; got none. There is nothing to measure.")
        target = side_lengths(size if size is not None else (images.pixels.shape[2], images.pixels.shape[3]))
        levels = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.zeros(channels or images.pixels.shape[1], 256, dtype=torch.float64)
        for start in range(0, len(images), CHUNK):
            pixels = resize(convert_channels(images.pixels[start : start + CHUNK], channels), target)
            for channel, values in zip(counts, pixels.unbind(1), strict=True):
                channel += torch.from_numpy(np.bincount(values.numpy().ravel(), minlength=256))
        shares = counts / counts.sum(1, keepdim=True)
        mean = shares @ levels
        spread = (shares * (levels - mean[:, None]) ** 2).sum(1).sqrt()
        spread[spread == 0] = 1.0
        return cls(target, len(counts), tuple(mean.tolist()), tuple(spread.tolist()))

    def __call__(self, pixels: Tensor | np.ndarray[Any, Any] | Images) -> Tensor:
        """uint8 [B, C, H, W] -> float32 [B, channels, *size]."""
        values = pixels.pixels if isinstance(pixels, Images) else torch.as_tensor(pixels)
        if values.dtype != torch.uint8 or values.ndim != 4 or values.shape[1] not in (1, 3):
            raise InputError(
                f"Transform: needs pictures uint8 [B, C, H, W] with C = 1 or 3; got {values.dtype} "
                f"{list(values.shape)}. Give the stored pixels; values already scaled are not scaled again."
            )
        values = resize(convert_channels(values, self.channels), self.size)
        mean = torch.tensor(self.mean, device=values.device)[:, None, None]
        scale = torch.tensor(self.scale, device=values.device)[:, None, None]
        return values.to(torch.float32).div_(255).sub_(mean).div_(scale)

    def config(self) -> dict[str, Any]:
        """What makes this transform again: ``Transform(**config)``. Nothing in it that JSON does not have."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
