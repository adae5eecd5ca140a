"""Normal numbers from the caller's generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

__all__ = ["normal", "seeds"]


def normal(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Standard normal numbers, drawn where the generator lives and brought to the device of another tensor."""
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=torch.float32).to(like.device)


def seeds(count: int, generator: Generator | None) -> Tensor:
    """Seeds for generators that belong to one draw each, [count]."""
    device = "cpu" if generator is None else generator.device
    return torch.randint(2**62, (count,), generator=generator, device=device).cpu()
