"""Other views of pictures: a random crop, a flip, a colour jitter; each picture its own, from one generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from arht.errors import InputError

__all__ = ["Augment"]

GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """uint8 pictures [B, C, H, W] to as many others. ``Augment.digits()`` and ``Augment.photos()`` are common choices.

    Parameters
    ----------
    shift : int
        The picture is moved by up to so many pixels each way; what enters is the nearest edge pixel.
    flip : float
        Probability of a mirror image, left to right.
    brightness, contrast, saturation : float
        Each is multiplied by a number drawn evenly from [1 - value, 1 + value].
    """

    shift: int = 4
    flip: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise InputError(f"Augment: shift must be a whole number of pixels >= 0; got {self.shift!r}.")
        for name in ("flip", "brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"Augment: {name} must be between 0 and 1; got {value!r}.")

    @classmethod
    def digits(cls) -> Augment:
        """Moved by up to two pixels; never mirrored."""
        return cls(shift=2, flip=0.0)

    @classmethod
    def photos(cls) -> Augment:
        """Moved by up to four pixels, mirrored half of the time, colours jittered by a fifth."""
        return cls(shift=4, flip=0.5, brightness=0.2, contrast=0.2, saturation=0.2)

    def __call__(self, inputs: Tensor, *, generator: Generator) -> Tensor:
        """Pictures of the same shape, uint8."""
        if inputs.dtype != torch.uint8 or inputs.ndim != 4:
            raise InputError(
                f"Augment: needs pictures uint8 [B, C, H, W]; got {inputs.dtype} {list(inputs.shape)}. "
                "Augment the stored pixels, before the transform."
            )
        moved = self._flipped(self._shifted(inputs, generator), generator)
        return self._jittered(moved, generator)

    def _shifted(self, x: Tensor, generator: Generator) -> Tensor:
        if not self.shift:
            return x
        count, channels, height, width = x.shape
        offset = torch.randint(0, 2 * self.shift + 1, (2, count), generator=generator).to(x.device)
        # replicate works on floats only; bytes are exact in them
        padded = pad(x.float(), [self.shift] * 4, mode="replicate").to(torch.uint8)
        rows = (offset[0][:, None] + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (offset[1][:, None] + torch.arange(width, device=x.device))[:, None, None, :]
        picture = torch.arange(count, device=x.device)[:, None, None, None]
        channel = torch.arange(channels, device=x.device)[None, :, None, None]
        return padded[picture, channel, rows, columns]

    def _flipped(self, x: Tensor, generator: Generator) -> Tensor:
        if not self.flip:
            return x
        chosen = (torch.rand(len(x), generator=generator) < self.flip).to(x.device)
        return torch.where(chosen[:, None, None, None], x.flip(3), x)

    def _jittered(self, x: Tensor, generator: Generator) -> Tensor:
        if not (self.brightness or self.contrast or self.saturation):
            return x
        reach = torch.tensor([self.brightness, self.contrast, self.saturation])
        factors = 1 + reach * (2 * torch.rand(len(x), 3, generator=generator) - 1)
        brightness, contrast, saturation = factors.to(x.device).T[:, :, None, None, None]
        out = x.float() * brightness
        if x.shape[1] == 3:
            weights = torch.tensor(GREY, device=x.device)[:, None, None]
            grey = (out * weights).sum(1, keepdim=True)
            out = grey + saturation * (out - grey)
        middle = out.mean((1, 2, 3), keepdim=True)
        out = middle + contrast * (out - middle)
        return out.round().clamp(0, 255).to(torch.uint8)
