"""What a training run makes small: the negative log-likelihood of a batch under one weight draw.

An objective is three functions: ``check`` refuses targets it cannot use, ``views`` makes the inputs of a batch,
``forward`` gives one loss per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from arht.errors import InputError

__all__ = ["OBJECTIVES", "Augmentation", "Classification", "Contrastive", "Objective", "Regression", "objective_of"]


class Augmentation(Protocol):
    """Inputs [B, ...] to as many others, with the randomness of the generator."""

    def __call__(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Other views of the inputs."""


class Objective(nn.Module):
    """Base of the objectives. An objective's own parameters, such as a noise level, are trained with the encoder."""

    name: str = "objective"

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Refuse what cannot be trained on: outputs of the first rows [b, ...], all targets [N, ...]."""

    def views(self, inputs: Tensor, augment: Augmentation | None, generator: torch.Generator) -> list[Tensor]:
        """What is run for a batch [B, ...]: a list of inputs [B, ...], all under one weight draw."""
        return [inputs if augment is None else augment(inputs, generator=generator)]

    def forward(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor:
        """The loss of each row [B], from the outputs of each view."""
        raise NotImplementedError

    def hits(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor | None:
        """How many rows are right; None where nothing is right or wrong."""
        return None


class Classification(Objective):
    """Cross-entropy: targets are class labels 0 to C - 1, outputs are logits [B, C]."""

    name = "classification"

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Labels must be integers in range, one per row."""
        if targets is None:
            raise InputError("training.fit: classification needs class labels; got none. Use objective='contrastive'.")
        if targets.ndim != 1 or targets.is_floating_point():
            raise InputError(
                f"training.fit: class labels must be integers [N]; got {targets.dtype} {list(targets.shape)}. "
                "For numbers to predict use objective='regression'."
            )
        if outputs.ndim != 2:
            raise InputError(
                f"training.fit: classification needs logits [B, C]; the net gives {list(outputs.shape)}. "
                "Give the net a head: num_classes=C."
            )
        classes = outputs.shape[1]
        wrong = (targets < 0) | (targets >= classes)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"training.fit: class labels must be 0 to {classes - 1}, as the net has {classes} outputs; got "
                f"{int(targets[row])} in row {row} ({int(wrong.sum())} such rows). Renumber them, or set num_classes."
            )

    def forward(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor:
        """-log softmax(output)[target]."""
        assert targets is not None
        return functional.cross_entropy(outputs[0], targets, reduction="none")

    def hits(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor | None:
        """Rows whose largest logit is the target's."""
        assert targets is not None
        return outputs[0].argmax(-1).eq(targets).sum()


class Regression(Objective):
    """Gaussian likelihood: targets [B] or [B, T], outputs their means, one noise level for all.

    nll = Σ_t [ (y_t - f_t)² / (2 noise²) + log(noise) + log(2π)/2 ]. With ``noise=None`` it is learned.
    """

    name = "regression"

    def __init__(self, noise: float | None = None):
        super().__init__()
        if noise is not None and not (noise > 0 and math.isfinite(noise)):
            raise InputError(f"training.Regression: noise must be a positive finite number or None; got {noise}.")
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise or 1.0)), requires_grad=noise is None)

    @property
    def noise(self) -> float:
        """The standard deviation of the targets around the net's output."""
        return math.exp(float(self.log_noise.detach()))

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Targets must be finite numbers of the outputs' shape."""
        if targets is None:
            raise InputError("training.fit: regression needs targets; got none.")
        if targets[:1].numel() != outputs[:1].numel():
            raise InputError(
                f"training.fit: targets must have as many columns as the net has outputs; got {list(targets.shape)} "
                f"and {outputs[:1].numel()} outputs. Set num_classes to the number of targets."
            )
        if targets.is_floating_point() and not targets.isfinite().all():
            raise InputError("training.fit: targets must be finite; got NaN or infinity. Drop or impute those rows.")

    def forward(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor:
        """The negative Gaussian log-density of each row."""
        assert targets is not None
        error = (targets.reshape(len(targets), -1) - outputs[0].reshape(len(targets), -1)) / self.log_noise.exp()
        return (error.square() / 2 + self.log_noise + math.log(2 * math.pi) / 2).sum(-1)


class Contrastive(Objective):
    """Triplet loss on normalised embeddings: needs no labels.

    Each input is augmented twice (anchor a, positive p); the negative n is an augmented view of another input of the
    batch. loss = ``max(0, |a - p| - |a - n| + margin)``, the paper's margin being 0.2.
    """

    name = "contrastive"

    def __init__(self, margin: float = 0.2):
        super().__init__()
        if not (margin > 0 and math.isfinite(margin)):
            raise InputError(f"training.Contrastive: margin must be a positive finite number; got {margin}.")
        self.margin = margin

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """The net's output must be an embedding [B, P]."""
        if outputs.ndim != 2:
            raise InputError(
                f"training.fit: contrastive needs embeddings [B, P]; the net gives {list(outputs.shape)}. "
                "Use a net with num_classes=None."
            )

    def views(self, inputs: Tensor, augment: Augmentation | None, generator: torch.Generator) -> list[Tensor]:
        """Anchor, positive, negative."""
        if augment is None:
            raise InputError(
                "training.fit: contrastive needs augment=...; got None. Without it anchor and positive are the same; "
                "use for instance arht.data.Augment()."
            )
        if len(inputs) < 2:
            return [augment(inputs, generator=generator) for _ in range(3)]
        shift = int(torch.randint(1, len(inputs), (), generator=generator))
        return [augment(view, generator=generator) for view in (inputs, inputs, inputs.roll(shift, 0))]

    def distances(self, outputs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """``|a - p|`` and ``|a - n|`` of the normalised embeddings."""
        anchor, positive, negative = (functional.normalize(output, dim=-1) for output in outputs)
        return functional.pairwise_distance(anchor, positive), functional.pairwise_distance(anchor, negative)

    def forward(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor:
        """``max(0, |a - p| - |a - n| + margin)``."""
        near, far = self.distances(outputs)
        return (near - far + self.margin).clamp_min(0)

    def hits(self, outputs: list[Tensor], targets: Tensor | None) -> Tensor | None:
        """Triplets whose positive is nearer than the negative."""
        near, far = self.distances(outputs)
        return (near < far).sum()


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "classification": Classification,
    "regression": Regression,
    "contrastive": Contrastive,
}


def objective_of(objective: str | Objective) -> Objective:
    """The objective of that name, or the one given."""
    if isinstance(objective, Objective):
        return objective
    if objective not in OBJECTIVES:
        raise InputError(
            f"training.fit: objective must be one of {', '.join(OBJECTIVES)} or an Objective; got {objective!r}."
        )
    return OBJECTIVES[objective]()
