"""Local reparameterisation: the output of a layer is drawn, for each input its own, and not the layer's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from arht.posterior.calling import call
from arht.posterior.normal import normal

if TYPE_CHECKING:
    from arht.posterior.mean_field import MeanField

__all__ = ["local_forward"]

_TINY = 1e-16  # under the root, so that its gradient exists at zero


def local_forward(encoder: MeanField, x: Tensor, generator: Generator | None) -> Any:
    """One pass of the net in which every linear layer and convolution with random weights draws its outputs.

    A layer with weights N(M, S²) has, given its input h, independent outputs

        N(M h, S² h²), biases likewise,

    so these are drawn: the gradient has less variance than with one weight draw for the whole batch. Layers of
    another kind, and those whose weights are tied to others, meet a weight draw as before.
    """
    means, scales = encoder.means(), encoder.scales()
    holders: dict[str, list[str]] = {name: [] for name in means}
    own = {id(parameter): name for name, parameter in encoder.net.named_parameters()}
    for path, parameter in encoder.net.named_parameters(remove_duplicate=False):
        if own[id(parameter)] in holders:
            holders[own[id(parameter)]].append(path)
    local = {}
    for path, module in encoder.net.named_modules():
        names = [f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)]
        if type(module) in (nn.Linear, nn.Conv2d) and all(holders.get(name) == [name] for name in names):
            local[path] = (module, names)
    inside = {name for _, names in local.values() for name in names}
    draw = {} if inside == set(means) else {k: v for k, v in encoder.sample(generator).items() if k not in inside}
    for path, (module, _) in local.items():
        module.forward = _drawn_output(module, path, means, scales, generator)
    try:
        return call(encoder.net, draw, x)
    finally:
        for module, _ in local.values():
            del module.forward


def _drawn_output(
    module: nn.Linear | nn.Conv2d,
    path: str,
    means: dict[str, Tensor],
    scales: dict[str, Tensor],
    generator: Generator | None,
) -> Callable[[Tensor], Tensor]:
    prefix = f"{path}." if path else ""

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(module, nn.Linear):
            return F.linear(x, weight, bias)
        return module._conv_forward(x, weight, bias)

    def forward(x: Tensor) -> Tensor:
        bias = None if module.bias is None else means[f"{prefix}bias"]
        spread = None if module.bias is None else scales[f"{prefix}bias"].square()
        mean = apply(x, means[f"{prefix}weight"], bias)
        variance = apply(x.square(), scales[f"{prefix}weight"].square(), spread)
        return mean + torch.sqrt(variance + _TINY) * normal(mean.shape, mean, generator).to(mean)

    return forward
