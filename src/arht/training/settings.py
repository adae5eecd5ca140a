"""How to train: the numbers that a run is made with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arht.errors import InputError

__all__ = ["Settings"]

WHO = "training.Settings"


@dataclass(frozen=True)
class Settings:
    """The numbers of a training run. ``Settings.paper()`` has the paper's.

    The loss of a minibatch is ``nll + kl_weight * warm-up * KL / N``: the mean negative log-likelihood of its rows and
    the divergence from the prior, shared among the N training inputs. ``kl_weight=1`` is the evidence bound, less is
    a tempered (cold) posterior, 0 leaves the prior out.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 20
    kl_weight: float = 1.0
    warmup_epochs: int = 0
    """Epochs over which the weight of the KL rises linearly to its full value."""
    schedule: str = "constant"
    """Of the learning rate: "constant", or "cosine" (to zero at the last step)."""
    patience: int | None = None
    """Stop after this many epochs without a lower validation loss, and go back to the best. None: never."""
    local_reparameterisation: bool = False
    """Draw the noise of each layer's outputs, one per input, rather than of its weights: gradients of less variance."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay", "kl_weight"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (name == "learning_rate" and value == 0):
                least = "> 0" if name == "learning_rate" else ">= 0"
                raise InputError(f"{WHO}: {name} must be a finite number {least}; got {value}.")
        for name, fewest in (("batch_size", 1), ("epochs", 1), ("warmup_epochs", 0), ("patience", 1)):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < fewest):
                raise InputError(f"{WHO}: {name} must be an integer >= {fewest}; got {count!r}.")
        if self.schedule not in ("constant", "cosine"):
            raise InputError(f"{WHO}: schedule must be one of constant, cosine; got {self.schedule!r}.")

    @classmethod
    def paper(cls) -> Settings:
        """Adam with learning rate 5e-5 and weight decay 1e-5, 100 epochs with possible early stopping (appendix)."""
        return cls(learning_rate=5e-5, weight_decay=1e-5, epochs=100, patience=10)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of step ``step`` of ``steps``, counted from 0."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2

    def warmup(self, epoch: int) -> float:
        """Part of the full KL weight in epoch ``epoch``, counted from 0."""
        return min(1.0, (epoch + 1) / (self.warmup_epochs + 1))
