"""What the architectures share: their arguments kept for a file, the embedding apart from the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.fx
from torch import Tensor, nn

from arht.errors import InputError

__all__ = ["Net", "Size", "activation", "after_window", "image_size", "positive"]

Size = int | Sequence[int]
ACTIVATIONS = {"softplus": nn.Softplus, "relu": nn.ReLU}


class Net(nn.Module):
    """An architecture: ``trunk(x)`` is the embedding [B, P], ``head`` turns it into logits [B, C].

    Every activation, pooling and flattening is a module of its own, so that each can be tapped by its path.
    """

    embedding_layer: ClassVar[str]
    """Path of the module whose output is the embedding."""
    head: nn.Linear | None

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._arguments = arguments

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them: ``build({"architecture": type(net).__name__, **config})``."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in self._arguments.items()}

    def embed(self, x: Tensor) -> Tensor:
        """The embedding, [B, P]."""
        return self.trunk(_checked(x, type(self).__name__, self.input_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C]; the embedding where there is no head."""
        embedding = self.embed(x)
        return embedding if self.head is None else self.head(embedding)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, as the arguments say."""
        height, width = image_size(type(self).__name__, self._arguments["image_size"], 1)
        return (self._arguments["in_channels"], height, width)

    def trunk(self, x: Tensor) -> Tensor:
        """The embedding of a checked input."""
        raise NotImplementedError

    def chain(self, x: Tensor, *names: str) -> Tensor:
        """The named modules, one after the other."""
        for name in names:
            x = getattr(self, name)(x)
        return x


def _checked(x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """The input itself, if each row has the wanted shape."""
    if len(shape) == 1:
        if x.ndim != 2 or x.shape[1] != shape[0]:
            raise InputError(
                f"{name}: inputs must be [B, {shape[0]}]; got shape {tuple(x.shape)}. "
                f"Select those columns, or build {name}(in_features=...) for yours."
            )
        return x
    channels, height, width = shape
    if x.ndim != 4:
        raise InputError(
            f"{name}: inputs must be [B, {channels}, {height}, {width}]; got shape {tuple(x.shape)}. "
            "Give a batch of images, channels first."
        )
    if x.shape[1] != channels:
        raise InputError(
            f"{name}: images must have {channels} channels; got {x.shape[1]}, shape {tuple(x.shape)}. "
            f"Convert them, or build {name}(in_channels={x.shape[1]})."
        )
    if tuple(x.shape[2:]) != (height, width):
        raise InputError(
            f"{name}: images must be {height}x{width}; got {x.shape[2]}x{x.shape[3]}. "
            f"Resize them, or build {name}(image_size={x.shape[2]})."
        )
    return x


torch.fx.wrap("_checked")  # a tracer meets it as one step and does not look inside


def activation(name: str, kind: str) -> nn.Module:
    """A new activation module."""
    if kind not in ACTIVATIONS:
        raise InputError(f"{name}: activation must be one of {', '.join(ACTIVATIONS)}; got {kind!r}.")
    made: nn.Module = ACTIVATIONS[kind]()
    return made


def positive(name: str, **values: int | None) -> None:
    """Each must be a whole number of at least one, or None."""
    for key, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: {key} must be a whole number of at least 1; got {value!r}.")


def image_size(name: str, size: Size, smallest: int) -> tuple[int, int]:
    """Height and width, each large enough for the windows of the net."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side >= smallest for side in pair):
        raise InputError(
            f"{name}: image_size must be a number of at least {smallest} or a pair (height, width) of them; "
            f"got {size!r}. Resize the images."
        )
    return pair


def after_window(side: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Side of a feature map after a convolution or a pooling."""
    return (side + 2 * padding - kernel) // stride + 1
