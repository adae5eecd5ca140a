"""What every engine offers: draws of the embedding, predictions, banks of weight draws, a KL, a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from arht.errors import InputError
from arht.posterior.bank import Bank
from arht.posterior.calling import call
from arht.posterior.running import Runner, alone
from arht.posterior.taps import At, Tap, as_taps, find_module

__all__ = ["Draw", "Posterior"]

Draw = dict[str, Tensor]
"""One weight draw: name of a random tensor of the net -> its value."""
OUTPUT = ""
"""Path of the net itself: its output."""


class Posterior(nn.Module):
    """A net whose weights are random: base of the engines.

    Parameters
    ----------
    net : nn.Module
    embedding : str, optional
        Path of the layer whose output is the embedding. Default: what the net says (``net.embedding_layer``), and
        the net's own output where it says nothing.
    """

    net: nn.Module
    most: int | None = None
    """How many different draws there are; ``None`` without limit. Asking for more gives that many."""
    transform: Any = None
    """What turns raw inputs into the net's, where a file brought it."""
    record: Any = None
    """What the file said about the training."""

    def __init__(self, net: nn.Module, embedding: str | None = None) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise InputError(
                f"{self._who}: net must be a torch.nn.Module; got {type(net).__name__}. "
                "Wrap any other callable in FromCallable."
            )
        self.embedding = getattr(net, "embedding_layer", OUTPUT) if embedding is None else embedding
        find_module(self._who, net, self.embedding)

    @property
    def _who(self) -> str:
        return type(self).__name__

    # what an engine brings

    @property
    def random(self) -> tuple[str, ...]:
        """Names of the tensors of the net that are random, in the order in which they are drawn."""
        return ()

    def sample(self, generator: Generator | None = None) -> Draw:
        """One weight draw; differentiable where the posterior has parameters of its own."""
        return {}

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them: ``build(config, net)``."""
        return {"posterior": self._who, "embedding": self.embedding}

    def kl(self) -> Tensor:
        """KL divergence of the posterior from the prior, a scalar; zero where there is none."""
        return torch.zeros((), device=self._device)

    # what all share

    def forward(self, x: Tensor, generator: Generator | None = None) -> Any:
        """The net's output for one fresh weight draw, the same for the whole batch."""
        return call(self.net, self.sample(generator), x)

    def bank(self, draws: int, *, generator: Generator | None = None) -> Bank:
        """Weight draws to keep: hand the bank to `draw` or `predict`, as often as wanted."""
        with torch.inference_mode():
            parts = list(self._stream(self._count(draws), generator))
            names = parts[0].keys() if parts else ()
            return Bank(len(parts), {name: torch.stack([part[name] for part in parts]) for name in names})

    def draw(
        self,
        x: Any,
        draws: int = 20,
        *,
        at: At = "embedding",
        generator: Generator | None = None,
        bank: Bank | None = None,
        batch_size: int = 256,
    ) -> Any:
        """Draws of the embedding of every input, one for every weight draw.

        The same generator gives the same draws bit for bit, whatever the batch size and whichever inputs come
        along. All inputs meet the same K weight draws.

        Parameters
        ----------
        x : tensor or array [B, ...]
        draws : int
            K; not looked at where a bank is given.
        at : str, Tap or list of them
            "embedding", the path of a layer, or a `Tap` that also says how a feature map is reduced.
        generator : torch.Generator, optional
            Where the weight draws come from.
        bank : Bank, optional
            Fixed weight draws, all of which are used.
        batch_size : int
            Inputs at a time; bounds the memory and changes nothing else.

        Returns
        -------
        Tensor [B, K, P] of float32
            Several taps: a dict of them, by the taps' names, in order.
        """
        taps = [Tap(self.embedding, tap.pooling, tap.grid) if tap.layer == "embedding" else tap for tap in as_taps(at)]
        found = self._run(x, taps, draws, generator, bank, batch_size)
        if isinstance(at, str | Tap):
            return found[0][1]
        names = [
            name.replace(self.embedding, "embedding", 1) if tap.layer == "embedding" else name
            for tap, (name, _) in zip(as_taps(at), found, strict=True)
        ]
        if len(set(names)) < len(names):
            raise InputError(f"draw: each tap must be named once; got {', '.join(names)}.")
        return dict(zip(names, (values for _, values in found), strict=True))

    def predict_draws(
        self,
        x: Any,
        draws: int = 20,
        *,
        generator: Generator | None = None,
        bank: Bank | None = None,
        batch_size: int = 256,
    ) -> Tensor:
        """Class probabilities of every draw, [B, K, C]: the softmax of the net's output."""
        ((_, logits),) = self._run(x, [Tap(OUTPUT, "flatten")], draws, generator, bank, batch_size)
        return logits.softmax(-1)

    def predict(
        self,
        x: Any,
        draws: int = 20,
        *,
        generator: Generator | None = None,
        bank: Bank | None = None,
        batch_size: int = 256,
    ) -> Tensor:
        """Predictive class probabilities, [B, C]: the mean over the draws."""
        return self.predict_draws(x, draws, generator=generator, bank=bank, batch_size=batch_size).mean(1)

    def save(self, path: str | os.PathLike[str], *, transform: Any = None, record: Any = None) -> str:
        """Write the encoder to a file; see `arht.posterior.save`."""
        from arht.posterior.files import save

        return save(self, path, transform=transform, record=record)

    # inside

    def _stream(self, draws: int, generator: Generator | None) -> Iterator[Draw]:
        """Weight draws one after the other, without gradients."""
        for _ in range(draws):
            yield self.sample(generator)

    def _count(self, draws: int) -> int:
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise InputError(f"{self._who}: draws must be a whole number of at least 1; got {draws!r}.")
        return draws if self.most is None else min(draws, self.most)

    @property
    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self.parameters()), torch.device("cpu"))

    def _run(
        self, x: Any, taps: list[Tap], draws: int, generator: Generator | None, bank: Bank | None, batch_size: int
    ) -> list[tuple[str, Tensor]]:
        """Name and values [B, K, P] of each tap."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"draw: batch_size must be a whole number of at least 1; got {batch_size!r}.")
        for tap in taps:
            find_module("draw", self.net, tap.layer)
        count = self._count(draws) if bank is None else bank.draws
        with alone(self.net):
            flags = [module for module in self.net.modules() if module.training]
            try:
                for module in flags:
                    module.training = False
                with torch.inference_mode():
                    inputs = as_inputs(x)
                    runner = Runner(self, taps, inputs)
                    weights = self._stream(count, generator) if bank is None else _unstack(bank)
                    return runner(inputs, weights, count)
            finally:
                for module in flags:
                    module.training = True


def as_inputs(x: Any) -> Tensor:
    """Inputs [B, ...] of float32, or of whole numbers where they are such (token ids)."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind not in "fiub":
            raise InputError(f"draw: x must be numbers; got dtype {array.dtype}. Convert it first.")
        x = torch.from_numpy(array if array.flags.writeable else array.copy())
    if x.ndim < 1 or len(x) == 0:
        raise InputError(
            f"draw: x must hold at least one input, [B, ...]; got shape {tuple(x.shape)}. Check the selection."
        )
    x = x.detach()
    return x.to(torch.float32) if x.is_floating_point() else x


def _unstack(bank: Bank) -> Iterator[Draw]:
    for k in range(bank.draws):
        yield {name: tensor[k] for name, tensor in bank.tensors.items()}
