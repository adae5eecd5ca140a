"""Nets that were trained apart: each is a draw."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from arht.errors import InputError
from arht.posterior.base import Draw, Posterior
from arht.posterior.calling import call
from arht.posterior.deterministic import Deterministic

__all__ = ["Ensemble"]


class Ensemble(Posterior):
    """K is at most the number of nets; draw k is net k, whatever the generator.

    `arht.training.fit` trains the members one after the other.

    Parameters
    ----------
    nets : list of nn.Module, or one
        Of one architecture. One net stands for as many copies of it as `members` says, to be loaded or trained.
    members : int, optional
    embedding : str, optional
        Path of the layer whose output is the embedding; see `Posterior`.
    """

    def __init__(
        self, nets: nn.Module | Sequence[nn.Module], members: int | None = None, *, embedding: str | None = None
    ) -> None:
        if isinstance(nets, nn.Module) and not isinstance(nets, nn.ModuleList):
            if members is None or isinstance(members, bool) or not isinstance(members, int) or members < 1:
                raise InputError(f"Ensemble: members must be a whole number of at least 1; got {members!r}.")
            nets = [nets, *(copy.deepcopy(nets) for _ in range(members - 1))]
        found = list(nets)
        if not found:
            raise InputError("Ensemble: nets must hold at least one net; got none.")
        super().__init__(found[0], embedding)
        shapes = [{name: tensor.shape for name, tensor in _held(net).items()} for net in found]
        for k, other in enumerate(shapes):
            if other != shapes[0]:
                raise InputError(
                    f"Ensemble: all nets must be of one architecture; net {k} has other tensors than net 0. "
                    "Make one Ensemble of each architecture."
                )
        if members not in (None, len(found)):
            raise InputError(f"Ensemble: members must be the number of nets, {len(found)}; got {members}.")
        self.nets = nn.ModuleList(found)
        self.most = len(found)

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        """The first net: the architecture of all."""
        return self.nets[0]

    @property
    def members(self) -> list[Deterministic]:
        """Each net as an encoder of its own; training it trains the ensemble's."""
        return [Deterministic(net, self.embedding) for net in self.nets]

    @property
    def random(self) -> tuple[str, ...]:
        """Names of all tensors of a net."""
        return tuple(_held(self.nets[0]))

    def sample(self, generator: Generator | None = None) -> Draw:
        """One of the nets, all equally likely."""
        device = "cpu" if generator is None else generator.device
        return _held(self.nets[int(torch.randint(len(self.nets), (), generator=generator, device=device))])

    def _stream(self, draws: int, generator: Generator | None) -> Iterator[Draw]:
        yield from (_held(net) for net in self.nets[:draws])

    def forward(self, x: Tensor, generator: Generator | None = None) -> Any:
        """The output of one of the nets."""
        return call(self.net, self.sample(generator), x)

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them."""
        return {**super().config(), "members": len(self.nets)}


def _held(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}
