"""Calling a net with other tensors in the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["call", "canonical", "places"]


def places(net: nn.Module) -> dict[str, Tensor]:
    """Each place that holds a parameter or buffer, once, though its module has several paths -> what it holds.

    A tied tensor has as many places as modules hold it.
    """
    found: dict[str, Tensor] = {}
    for path, module in net.named_modules():
        held = [*module._parameters.items(), *module._buffers.items()]
        found |= {f"{path}.{name}" if path else name: tensor for name, tensor in held if tensor is not None}
    return found


def canonical(net: nn.Module) -> dict[int, str]:
    """Identity of each parameter and buffer -> its first name, by which draws call it."""
    held = [*net.named_parameters(), *net.named_buffers()]
    return {id(tensor): name for name, tensor in reversed(held)}


def call(net: nn.Module, draw: Mapping[str, Tensor], *args: Any) -> Any:
    """The net's output with the tensors of a draw, each in all the places of the one that it stands for.

    Each place is named once: torch's own tying leaves the drawn tensor behind in a module that has two paths.
    """
    names = canonical(net)
    held = {place: draw[name] for place, tensor in places(net).items() if (name := names[id(tensor)]) in draw}
    return functional_call(net, held, args, tie_weights=False)
