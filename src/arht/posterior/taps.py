"""Where an embedding is taken, and how a feature map becomes a vector."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arht.errors import InputError

__all__ = ["POOLINGS", "At", "Tap", "as_taps", "find_module", "near", "pooled"]

POOLINGS = ("mean", "spread", "moments", "grid", "flatten")
SOFTENING = 0.02
"""Added to a standard deviation before its logarithm, so that a dead channel has one."""
CLIP = 0.999
"""Correlations are clipped there before Fisher's transform."""


@dataclass(frozen=True, slots=True)
class Tap:
    """A layer, by its path, and what a feature map [B, C, H, W] of it is reduced to.

    Parameters
    ----------
    layer : str
        Path as in ``net.get_submodule``: the module whose output is taken; "embedding" for the encoder's own.
    pooling : str
        * ``mean``: the mean of every channel, [B, C].
        * ``spread``: also log(sd + 0.02) of every channel, [B, 2C].
        * ``moments``: also artanh of the correlations of every two channels, clipped at ±0.999,
          [B, 2C + C(C - 1) / 2].
        * ``grid``: averages over a grid x grid partition, [B, C * grid²].
        * ``flatten``: every value, [B, C * H * W].

        An output [B, P] stays as it is, one of tokens [B, T, P] becomes its mean over T, whatever is said here.
    grid : int
    """

    layer: str
    pooling: str = "mean"
    grid: int = 4

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise InputError(f"Tap: pooling must be one of {', '.join(POOLINGS)}; got {self.pooling!r}.")
        if not isinstance(self.grid, int) or self.grid < 1:
            raise InputError(f"Tap: grid must be a whole number of at least 1; got {self.grid!r}.")

    def name(self, dimensions: int) -> str:
        """How the tap is called, for outputs of that many axes: the pooling is named where it applies."""
        grid = self.grid if self.pooling == "grid" else ""
        return f"{self.layer}:{self.pooling}{grid}" if dimensions == 4 else self.layer


At = str | Tap | Sequence[str | Tap]


def as_taps(at: At) -> list[Tap]:
    """One tap or several; "layer:pooling" is ``Tap(layer, pooling)``."""
    if isinstance(at, str | Tap):
        at = [at]
    if not isinstance(at, Sequence) or not at or not all(isinstance(tap, str | Tap) for tap in at):
        raise InputError(f"draw: at must be a layer, a Tap or a list of them; got {at!r}.")
    return [tap if isinstance(tap, Tap) else _parsed(tap) for tap in at]


def _parsed(text: str) -> Tap:
    layer, colon, pooling = text.partition(":")
    if pooling.startswith("grid") and pooling[4:].isdecimal():
        return Tap(layer, "grid", int(pooling[4:]))
    return Tap(layer, pooling) if colon else Tap(layer)


def near(name: str, names: Sequence[str], shown: int = 4) -> str:
    """The names closest to a wrong one, for a message."""
    known = [known for known in names if known]
    close = difflib.get_close_matches(name, known, n=shown, cutoff=0.4)
    close += [known for known in known if known.split(".")[-1] == name.split(".")[-1] and known not in close]
    return ", ".join((close or known)[:shown])


def find_module(who: str, net: nn.Module, path: str) -> nn.Module:
    """The module at a path; `InputError` that lists near names where there is none."""
    modules: dict[str, nn.Module] = dict(net.named_modules(remove_duplicate=False))
    if path not in modules:
        raise InputError(
            f"{who}: no layer {path!r} in {type(net).__name__}; near it: {near(path, list(modules))}. "
            "All of them: [name for name, _ in net.named_modules()]."
        )
    return modules[path]


def tensor_of(output: Any, path: str) -> Tensor:
    """The tensor in what a module returns: itself, its first part, or the states or logits that it names."""
    for name in ("last_hidden_state", "logits"):
        output = getattr(output, name, output)
    while isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim == 0:
        got = f"a tensor of {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        layer = f"layer {path!r}" if path else "the net"
        raise InputError(f"draw: the output of {layer} must be a tensor of floats; got {got}. Tap a layer inside it.")
    return output


def pooled(features: Tensor, tap: Tap) -> Tensor:
    """The output of the tapped layer as vectors, [B, P]."""
    if features.ndim == 4:
        return _POOL[tap.pooling](features, tap.grid)
    if features.ndim == 3:
        return features.mean(1)
    return features.flatten(1) if features.ndim > 1 else features[:, None]


def _spread(features: Tensor, grid: int) -> Tensor:
    mean = features.mean((2, 3))
    deviation = features.std((2, 3), correction=0)
    return torch.cat([mean, torch.log(deviation + SOFTENING)], 1)


def _moments(features: Tensor, grid: int) -> Tensor:
    maps = features.flatten(2)
    mean = maps.mean(2)
    centred = maps - mean[:, :, None]
    covariance = centred @ centred.mT / maps.shape[2]
    deviation = covariance.diagonal(dim1=1, dim2=2).sqrt()
    scale = deviation[:, :, None] * deviation[:, None, :]
    correlation = torch.where(scale > 0, covariance / torch.where(scale > 0, scale, 1), 0)
    upper = torch.triu_indices(maps.shape[1], maps.shape[1], 1, device=maps.device)
    fisher = torch.atanh(correlation[:, upper[0], upper[1]].clamp(-CLIP, CLIP))
    return torch.cat([mean, torch.log(deviation + SOFTENING), fisher], 1)


_POOL: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda features, grid: features.mean((2, 3)),
    "spread": _spread,
    "moments": _moments,
    "grid": lambda features, grid: F.adaptive_avg_pool2d(features, grid).flatten(1),
    "flatten": lambda features, grid: features.flatten(1),
}
