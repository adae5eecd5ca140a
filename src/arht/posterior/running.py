"""Running a net for every input and every weight draw, up to the last wanted layer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call

from arht.errors import InputError
from arht.posterior.taps import Tap, find_module, pooled, tensor_of

if TYPE_CHECKING:
    from arht.posterior.base import Draw, Posterior

__all__ = ["Runner"]

BLOCK = 16
"""Inputs that go through the net together. Kernels may round differently for other shapes, so it never changes."""


class _Reached(Exception):
    """The last wanted layer has been computed."""


class Runner:
    """Draws at some taps, for inputs of one shape."""

    def __init__(self, posterior: Posterior, taps: list[Tap], inputs: Tensor) -> None:
        self.net = posterior.net
        self.taps = taps
        self.paths = list(dict.fromkeys(tap.layer for tap in taps))
        self.calls: dict[str, int] = {}
        weights = posterior.sample(torch.Generator(device="cpu").manual_seed(0)) if posterior.random else {}
        self.shapes = {path: value.shape for path, value in self._features(inputs[:1], weights).items()}

    def __call__(self, x: Tensor, weights: Iterator[Draw], count: int, batch_size: int) -> list[tuple[str, Tensor]]:
        """Name and values [B, K, P] of each tap."""
        out: list[Tensor] | None = None
        for k, draw in enumerate(islice(weights, count)):
            for start in range(0, len(x), BLOCK):
                block = x[start : start + BLOCK]
                rows = len(block)
                if rows < BLOCK:
                    block = torch.cat([block, block[:1].expand(BLOCK - rows, *block.shape[1:])])
                features = self._features(block, draw)
                values = [pooled(features[tap.layer], tap)[:rows].float() for tap in self.taps]
                if out is None:
                    out = [torch.empty(len(x), count, value.shape[1], device=value.device) for value in values]
                for full, value in zip(out, values, strict=True):
                    full[start : start + rows, k] = value
        assert out is not None
        names = [tap.name(len(self.shapes[tap.layer])) for tap in self.taps]
        return list(zip(names, out, strict=True))

    def _features(self, x: Tensor, weights: Draw) -> dict[str, Tensor]:
        """Output of every tapped layer; the last one, where a layer runs several times."""
        found: dict[str, Tensor] = {}
        met = dict.fromkeys(self.paths, 0)

        def keep(path: str) -> Any:
            def hook(module: Any, inputs: Any, output: Any) -> None:
                met[path] += 1
                found[path] = tensor_of(output, path)
                if self.calls and all(met[other] == self.calls[other] for other in self.paths):
                    raise _Reached

            return hook

        hooks = [find_module("draw", self.net, path).register_forward_hook(keep(path)) for path in self.paths]
        try:
            functional_call(self.net, weights, (x,))
        except _Reached:
            pass
        finally:
            for handle in hooks:
                handle.remove()
        missed = [path for path in self.paths if path not in found]
        if missed:
            raise InputError(f"draw: layer {missed[0]!r} does not run in the forward pass. Tap one that does.")
        self.calls = self.calls or met
        return found
