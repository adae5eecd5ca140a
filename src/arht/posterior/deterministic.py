"""A net as it is: one draw of each embedding."""

from __future__ import annotations

from torch import nn

from arht.posterior.base import Posterior

__all__ = ["Deterministic"]


class Deterministic(Posterior):
    """Nothing is random: K = 1, whatever is asked.

    Parameters
    ----------
    net : nn.Module
        Any module, trained elsewhere or not.
    embedding : str, optional
        Path of the layer whose output is the embedding; see `Posterior`.
    """

    most = 1

    def __init__(self, net: nn.Module, embedding: str | None = None) -> None:
        super().__init__(net, embedding)
        self.net = net
