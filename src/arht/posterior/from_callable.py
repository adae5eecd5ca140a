"""Draws that another program makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from arht.errors import InputError
from arht.posterior.bank import Bank
from arht.posterior.base import Posterior, as_inputs
from arht.posterior.normal import seeds
from arht.posterior.running import BLOCK, padded
from arht.posterior.taps import At

__all__ = ["FromCallable"]


class FromCallable(Posterior):
    """An encoder around ``function(x, draws, generator) -> [B, K, P]``.

    The function is called with blocks of one size and a generator in the same state for each block: if its randomness
    comes from there, and rows do not touch one another, draws do not depend on the batch.

    Parameters
    ----------
    function : callable
        Inputs [B, ...], K and a generator to draws [B, K, P], as a tensor or an array.
    """

    def __init__(self, function: Callable[[Tensor, int, Generator], Any]) -> None:
        if not callable(function):
            raise InputError(f"FromCallable: function must be callable; got {type(function).__name__}.")
        super().__init__(nn.Identity(), "")
        self.net = nn.Identity()
        self.function = function

    def config(self) -> dict[str, Any]:
        """There is none: a function does not go into a file."""
        raise InputError("save: FromCallable holds a function, which no file of ours can. Save what it computes from.")

    def bank(self, draws: int, *, generator: Generator | None = None) -> Bank:
        """The seed of the function's generator."""
        return Bank(self._count(draws), {"seed": seeds(1, generator).expand(draws).clone()})

    def draw(
        self,
        x: Any,
        draws: int = 20,
        *,
        at: At = "embedding",
        generator: Generator | None = None,
        bank: Bank | None = None,
        batch_size: int = 256,
    ) -> Tensor:
        """Draws [B, K, P] as `Posterior.draw` has them; there is one layer, the embedding."""
        if at != "embedding":
            raise InputError(f"draw: FromCallable has one layer, 'embedding'; got at={at!r}. Make one for each layer.")
        bank = self.bank(draws, generator=generator) if bank is None else bank
        inputs = as_inputs(x)
        parts = []
        for start in range(0, len(inputs), BLOCK):
            block = padded(inputs[start : start + BLOCK])
            source = torch.Generator().manual_seed(int(bank.tensors["seed"][0]))
            found = torch.as_tensor(self.function(block, bank.draws, source)).detach().float()
            if found.ndim != 3 or found.shape[:2] != (BLOCK, bank.draws):
                raise InputError(
                    f"draw: the function of FromCallable must give draws [{BLOCK}, {bank.draws}, P]; "
                    f"got shape {tuple(found.shape)}."
                )
            parts.append(found[: len(inputs) - start])
        return torch.cat(parts)

    def predict_draws(self, x: Any, draws: int = 20, **options: Any) -> Tensor:
        """There are none: the function gives embeddings."""
        raise InputError("predict: FromCallable gives embeddings and no classes. Predict with the model behind it.")
