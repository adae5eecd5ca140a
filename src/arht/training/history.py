"""What happened in training: one record an epoch, as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arht.errors import InputError

__all__ = ["Epoch", "History"]


@dataclass(frozen=True)
class Epoch:
    """One epoch; means over its training rows. Epochs and steps are counted from 1."""

    epoch: int
    step: int
    """Steps taken since the start of the run."""
    loss: float
    """nll + kl_weight * warm-up * KL / N."""
    nll: float
    """Mean negative log-likelihood (contrastive: mean triplet loss)."""
    kl: float
    """Divergence from the prior, in nats, not divided by N; mean over the steps."""
    accuracy: float | None
    """Share of rows right under their own weight draw; None for regression."""
    validation_loss: float | None
    validation_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class History:
    """All epochs of a run, and how it ended."""

    epochs: tuple[Epoch, ...]
    stopped_early: bool = False
    best_epoch: int | None = None
    """The epoch whose weights were kept, where a patience was set; otherwise None and the last are kept."""

    @property
    def seconds(self) -> float:
        """Time spent in training and validation."""
        return sum(epoch.seconds for epoch in self.epochs)

    def as_dict(self) -> dict[str, Any]:
        """The history as JSON has it."""
        return {
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "stopped_early": self.stopped_early,
            "best_epoch": self.best_epoch,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> History:
        """The history that ``as_dict`` wrote."""
        epochs = tuple(Epoch(**epoch) for epoch in record["epochs"])
        return cls(epochs, record["stopped_early"], record["best_epoch"])

    def write(self, path: str | os.PathLike[str]) -> None:
        """One JSON object a line, one line an epoch; the file is replaced in one go."""
        path = Path(path)
        lines = "".join(json.dumps(asdict(epoch), allow_nan=False) + "\n" for epoch in self.epochs)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(lines, encoding="utf-8")
        os.replace(temporary, path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """The epochs of a history.jsonl."""
        try:
            rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            return cls(tuple(Epoch(**row) for row in rows))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"History.read: {path} must be a readable history.jsonl; got: {error}. Check the path."
            ) from None
