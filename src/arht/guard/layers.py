"""One watched layer: what its detector learns from, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arht.detectors import ClassMoments, Detector
from arht.detectors.kept import Kept
from arht.errors import InputError
from arht.guard.recipe import Watch
from arht.stats.moments import Moments

__all__ = ["Layer", "Learner", "names_of", "predicted"]


@dataclass
class Layer:
    """A watched layer, fitted."""

    watch: Watch
    detector: Detector
    scale: Tensor | None
    """What every feature is divided by, [P] in float64."""

    def rows(self, draws: Tensor) -> Tensor:
        """Draws [B, K, P] as the detector measures them."""
        values = draws.to(torch.float64)
        if self.watch.softmax:
            values = values.softmax(-1)
        if self.watch.mean:
            values = values.mean(1, keepdim=True)
        return values if self.scale is None else values / self.scale


class Learner:
    """What one detector needs of the reference, gathered batch by batch: moments, or all rows where it wants these."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.detector = watch.detector._clone()
        self.moments: ClassMoments | Moments | None = None
        self.kept: Kept | None = None
        self.whole: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.inputs = 0

    @property
    def by_class(self) -> bool:
        """Whether its detector compares with classes."""
        return self.detector.needs_fit and getattr(self.detector, "reference", "global") != "global"

    def add(self, draws: Tensor, labels: Tensor | None) -> None:
        """Draws [B, K, P] of further inputs."""
        if self.detector.needs_fit:
            part = _moments(draws, labels if self.by_class else None)
            self.moments = part if self.moments is None else self.moments.merge(part)  # type: ignore[arg-type]
            keep = getattr(self.detector, "keep", 0)
            if keep:
                kept = Kept.of(draws.to(torch.float64).mean(1), keep, self.inputs)
                self.kept = kept if self.kept is None else self.kept.merge(kept)
        elif not self.detector.merges:
            self.whole.append(draws)
            if labels is not None:
                self.labels.append(labels)
        self.inputs += len(draws)

    def layer(self) -> Layer:
        """The layer, fitted on what was added."""
        detector, scale = self.detector, None
        if self.whole:
            detector.fit(torch.cat(self.whole), torch.cat(self.labels) if self.labels else None)
        if self.moments is not None:
            moments, kept = self.moments, self.kept
            if self.watch.standardised:
                scale = _scale(moments)
                moments = _scaled(moments, scale)
                kept = None if kept is None else Kept(kept.size, kept.rows / scale, kept.positions, kept.keys)
            detector._take(moments, None)
            if kept is not None:
                detector._kept = kept  # type: ignore[attr-defined]
            detector._inputs = self.inputs
        return Layer(self.watch, detector, scale)


def names_of(watches: Sequence[Watch]) -> list[str]:
    """A name for each watch: its layer and pooling, numbered where two are alike."""
    names = [w.tap.layer or ("probabilities" if w.softmax else "output") for w in watches]
    names = [n if w.tap.pooling == "mean" else f"{n}:{w.tap.pooling}" for n, w in zip(names, watches, strict=True)]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def predicted(encoder: Any, x: Tensor, bank: Any) -> Tensor:
    """The classes that the encoder itself sees, [B]."""
    probabilities: Tensor = encoder.predict(x, bank=bank)
    if probabilities.shape[1] < 2:
        raise InputError(
            f"Guard.fit: a detector that compares with classes needs labels; got none, and the net's output, [B, "
            f"{probabilities.shape[1]}], names no classes. Pass fit(data, labels), or a detector with "
            "reference='global'."
        )
    return probabilities.argmax(1)


def _moments(draws: Tensor, labels: Tensor | None) -> ClassMoments | Moments:
    rows = draws.reshape(-1, draws.shape[2])
    if labels is None:
        return Moments.of(rows)
    return ClassMoments.of(rows, labels.to(rows.device).repeat_interleave(draws.shape[1]))


def _scale(moments: ClassMoments | Moments) -> Tensor:
    """Standard deviation of every feature over all rows; 1 where a feature never varies."""
    total = moments.total() if isinstance(moments, ClassMoments) else moments
    deviation = (total.scatter.diagonal() / max(total.n - 1, 1)).clamp_min(0).sqrt()
    return torch.where(deviation > 1e-12 * total.mean.abs(), deviation, torch.ones_like(deviation))


def _scaled(moments: ClassMoments | Moments, scale: Tensor) -> ClassMoments | Moments:
    scatter = moments.scatter / (scale[:, None] * scale)
    if isinstance(moments, ClassMoments):
        return ClassMoments(moments.labels, moments.counts, moments.means / scale, scatter)
    return Moments(moments.n, moments.mean / scale, scatter)
