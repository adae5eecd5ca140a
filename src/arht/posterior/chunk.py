"""Values of a chunk of k draws, and the weights that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor

__all__ = ["Each", "Rows", "Weights", "Wide"]


@dataclass(slots=True)
class Rows:
    """[k, B, ...]."""

    tensor: Tensor


@dataclass(slots=True)
class Wide:
    """[B, k * C, H, W]."""

    tensor: Tensor
    draws: int

    def rows(self) -> Rows:
        """The same as [k, B, C, H, W]."""
        b, channels, height, width = self.tensor.shape
        split = self.tensor.reshape(b, self.draws, channels // self.draws, height, width)
        return Rows(split.transpose(0, 1).contiguous())


@dataclass(slots=True)
class Each:
    """One object a draw."""

    values: list[Any]


class Weights:
    """The tensors of a chunk of draws, stacked where a step wants them so; a chunk that is short repeats its last."""

    def __init__(self, draws: Sequence[Mapping[str, Tensor]], k: int) -> None:
        self.count = len(draws)
        self.draws = [*draws, *[draws[-1]] * (k - len(draws))]
        self._made: dict[Any, Tensor] = {}
        self._lock = RLock()

    def of(self, name: str, k: int) -> Tensor:
        """The tensor of one draw."""
        return self.draws[k][name]

    def made(self, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """What all blocks of inputs share, made once."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def stack(self, name: str) -> Tensor:
        """The tensor of all draws, [k, ...]."""
        return self.made(name, lambda: torch.stack([draw[name] for draw in self.draws]))
