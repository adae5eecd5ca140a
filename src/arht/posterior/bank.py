"""A bank: weight draws fixed once, to be reused for reference, calibration and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from arht.errors import InputError

__all__ = ["Bank"]


@dataclass(frozen=True, slots=True)
class Bank:
    """K weight draws. The first k draws of a bank of K are the bank of k from the same generator."""

    draws: int
    tensors: dict[str, Tensor]
    """Each random tensor, stacked: [K, ...]."""

    def __len__(self) -> int:
        return self.draws

    def first(self, draws: int) -> Bank:
        """The first draws alone."""
        if not 1 <= draws <= self.draws:
            raise InputError(f"draw: the bank holds {self.draws} draws; got draws={draws}. Make a larger bank.")
        return Bank(draws, {name: tensor[:draws] for name, tensor in self.tensors.items()})

    def state(self) -> dict[str, Tensor]:
        """The bank as tensors, for a file."""
        return {"draws": torch.tensor(self.draws), **{f"draw/{name}": tensor for name, tensor in self.tensors.items()}}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Bank:
        """The bank that `state` described."""
        tensors = {name.removeprefix("draw/"): tensor for name, tensor in state.items() if name.startswith("draw/")}
        if "draws" not in state or any(len(tensor) != int(state["draws"]) for tensor in tensors.values()):
            raise InputError(f"Bank: needs what Bank.state() gave; got tensors {', '.join(sorted(state)) or 'none'}.")
        return cls(int(state["draws"]), tensors)
