"""Independent Gaussians over the weights of any module."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from arht.errors import InputError
from arht.posterior.base import Draw, Posterior
from arht.posterior.local import local_forward
from arht.posterior.normal import normal
from arht.posterior.taps import near

__all__ = ["MeanField", "random_parameters"]


class MeanField(Posterior):
    """Each chosen weight is N(mean, softplus(rho)²), independently; the mean is the net's own parameter.

    A pretrained net therefore becomes the posterior mean as it is. The prior of every weight is
    N(prior_mean, prior_scale²).

    Parameters
    ----------
    net : nn.Module
        Becomes a part of the encoder; it is not copied.
    layers : "all" or list of str
        Paths of layers, their prefixes, or names of parameters: ``["layer4.1.conv1", "fc"]``.
    embedding : str, optional
        Path of the layer whose output is the embedding; see `Posterior`.
    prior_mean, prior_scale : float
    rho_mean, rho_scale : float
        rho starts at N(rho_mean, rho_scale²): the paper's N(-3, 0.1²), a standard deviation of about 0.05.
    generator : torch.Generator, optional
        For the start of rho.
    """

    local_reparameterisation: bool = False
    """In `forward`, draw the outputs of linear layers and convolutions, one for each input, and not their weights."""

    def __init__(
        self,
        net: nn.Module,
        layers: str | Sequence[str] = "all",
        *,
        embedding: str | None = None,
        prior_mean: float = 0.0,
        prior_scale: float = 1.0,
        rho_mean: float = -3.0,
        rho_scale: float = 0.1,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(net, embedding)
        if not (math.isfinite(prior_mean) and math.isfinite(prior_scale) and prior_scale > 0):
            raise InputError(
                "MeanField: the prior must have a finite mean and a positive scale; "
                f"got N({prior_mean}, {prior_scale}²)."
            )
        self.net = net
        self.layers: str | list[str] = layers if isinstance(layers, str) else list(layers)
        self.prior_mean, self.prior_scale, self.rho_mean = float(prior_mean), float(prior_scale), float(rho_mean)
        self._random = random_parameters("MeanField", net, layers)
        means = dict(net.named_parameters())
        self.rho = nn.ParameterDict()
        for name in self._random:
            mean = means[name]
            start = rho_mean + rho_scale * normal(mean.shape, mean, generator)
            self.rho[_key(name)] = nn.Parameter(start)

    @property
    def random(self) -> tuple[str, ...]:
        """Names of the random parameters."""
        return self._random

    def means(self) -> dict[str, Tensor]:
        """Posterior mean of every random parameter: the net's own."""
        own = dict(self.net.named_parameters())
        return {name: own[name] for name in self._random}

    def scales(self) -> dict[str, Tensor]:
        """Posterior standard deviation of every random parameter, softplus(rho)."""
        return {name: F.softplus(self.rho[_key(name)]) for name in self._random}

    def sample(self, generator: Generator | None = None) -> Draw:
        """One weight draw, mean + scale * noise; gradients reach mean and rho."""
        return next(self._drawn(generator))

    def _stream(self, draws: int, generator: Generator | None) -> Iterator[Draw]:
        drawn = self._drawn(generator)
        for _ in range(draws):
            yield next(drawn)

    def _drawn(self, generator: Generator | None) -> Iterator[Draw]:
        means, scales = self.means(), self.scales()
        sizes = [mean.numel() for mean in means.values()]
        first = next(iter(means.values()))
        while True:
            noise = normal((sum(sizes),), first, generator).split(sizes)
            yield {
                name: torch.addcmul(mean, scales[name], part.view_as(mean).to(mean))
                for (name, mean), part in zip(means.items(), noise, strict=True)
            }

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior), summed over the random weights, of N(μ, σ²) from N(m, s²) each:

        ``log(s / σ) + (σ² + (μ - m)²) / (2 s²) - 1/2``.
        """
        total = torch.zeros((), device=self._device)
        scales = self.scales()
        for name, mean in self.means().items():
            scale = scales[name]
            square = (scale.square() + (mean - self.prior_mean).square()) / (2 * self.prior_scale**2)
            total = total + (square - torch.log(scale)).sum() + mean.numel() * (math.log(self.prior_scale) - 0.5)
        return total

    def forward(self, x: Tensor, generator: Generator | None = None) -> Any:
        """The net's output for one fresh weight draw, or, by local reparameterisation, one for each input."""
        if not self.local_reparameterisation:
            return super().forward(x, generator)
        return local_forward(self, x, generator)

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them."""
        return {
            **super().config(),
            "layers": self.layers,
            "prior_mean": self.prior_mean,
            "prior_scale": self.prior_scale,
        }


def random_parameters(who: str, net: nn.Module, layers: str | Sequence[str]) -> tuple[str, ...]:
    """Names of the parameters that the layers hold, in the net's order; tied ones once, by their first name."""
    own = {id(parameter): name for name, parameter in net.named_parameters()}
    names = [(name, own[id(parameter)]) for name, parameter in net.named_parameters(remove_duplicate=False)]
    if not names:
        raise InputError(f"{who}: the net must have parameters; {type(net).__name__} has none.")
    if layers == "all":
        return tuple(own.values())
    wanted = [layers] if isinstance(layers, str) else list(layers)
    if not wanted:
        raise InputError(f"{who}: layers must name at least one layer, or be 'all'; got none.")
    chosen: set[str] = set()
    for layer in wanted:
        found = {first for name, first in names if name == layer or name.startswith(f"{layer}.")}
        if not found:
            holders = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in names))
            raise InputError(
                f"{who}: no layer {layer!r} with parameters in {type(net).__name__}; near it: {near(layer, holders)}. "
                "All of them: [name for name, _ in net.named_parameters()]."
            )
        chosen |= found
    return tuple(name for name in own.values() if name in chosen)


def _key(name: str) -> str:
    """Name of a parameter without dots, which a ParameterDict does not take."""
    return name.replace(".", "/")
