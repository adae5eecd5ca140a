"""Architectures: plain modules, embedding and head apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arht.errors import InputError
from arht.nets._base import Net
from arht.nets.alexnet import AlexNet
from arht.nets.cnn import CNN
from arht.nets.lenet import LeNet
from arht.nets.mlp import MLP
from arht.nets.resnet import ResNet18, ResNet50

__all__ = ["ARCHITECTURES", "CNN", "MLP", "AlexNet", "LeNet", "Net", "ResNet18", "ResNet50", "build"]

ARCHITECTURES: dict[str, type[Net]] = {net.__name__: net for net in (CNN, LeNet, AlexNet, ResNet18, ResNet50, MLP)}
"""The architectures by name."""


def build(config: Mapping[str, Any]) -> Net:
    """A new net from ``{"architecture": name, **arguments}``, the arguments as `Net.config` gives them.

    >>> from arht import nets
    >>> nets.build({"architecture": "LeNet", "in_channels": 1}).config()["in_channels"]
    1
    """
    arguments = dict(config)
    name = arguments.pop("architecture", None)
    lowered = {known.lower(): net for known, net in ARCHITECTURES.items()}
    if not isinstance(name, str) or name.lower() not in lowered:
        raise InputError(f"build: architecture must be one of {', '.join(ARCHITECTURES)}; got {name!r}.")
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    try:
        return lowered[name.lower()](**arguments)
    except TypeError as error:
        raise InputError(f"build: these arguments do not fit {name}: {error}.") from None
