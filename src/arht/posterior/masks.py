"""Dropout whose mask belongs to a draw: a seed makes it, and every input meets the same one."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

__all__ = ["Dropped", "Mask"]

OFF = -1
"""The seed without which nothing is dropped."""


class Mask(nn.Module):
    """Multiplies by a mask of zeros and 1 / (1 - rate).

    In training each row has its own mask, from ``generator``. In evaluation ``seed`` makes one for all rows, so that
    a draw of a seed is a draw of the function; without a seed the input stays as it is.

    Parameters
    ----------
    rate : float
    channels : bool
        Whole channels are dropped, and not single values.
    """

    seed: Tensor

    def __init__(self, rate: float, channels: bool = False) -> None:
        super().__init__()
        self.rate, self.channels = rate, channels
        self.generator: Generator | None = None
        self.register_buffer("seed", torch.tensor(OFF), persistent=False)

    def _made(self, shape: torch.Size, x: Tensor, generator: Generator | None) -> Tensor:
        device = x.device if generator is None else generator.device
        kept = torch.rand(shape, generator=generator, device=device) >= self.rate
        return kept.to(x) / (1 - self.rate)

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, ...]."""
        if self.training:
            shape = x.shape[:2] + torch.Size([1] * (x.ndim - 2)) if self.channels else x.shape
            return x * self._made(shape, x, self.generator)
        seed = int(self.seed)
        return x if seed == OFF else x * self.of_seed(seed, x)

    def of_seed(self, seed: int, x: Tensor) -> Tensor:
        """The mask of a seed, as it multiplies one row of x [B, ...]."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        shape = x.shape[1:2] + torch.Size([1] * (x.ndim - 2)) if self.channels else x.shape[1:]
        return self._made(shape, x, generator)


class Dropped(nn.Module):
    """A module and a mask on its output."""

    def __init__(self, inner: nn.Module, mask: Mask) -> None:
        super().__init__()
        self.inner, self.mask = inner, mask

    def forward(self, *args: Tensor) -> Tensor:
        """The masked output of the inner module."""
        return self.mask(self.inner(*args))
