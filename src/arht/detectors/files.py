"""Detectors in files: which there are, and plain values for the header."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from arht._shapes import Tensor
from arht.errors import InputError

if TYPE_CHECKING:
    from arht.detectors.base import Detector

__all__ = ["CLASSES", "of_artefact", "plain", "tuples"]

CLASSES = {
    "ARHTDetector": "arht.detectors.arht",
    "RHTDetector": "arht.detectors.rht",
    "HotellingDetector": "arht.detectors.hotelling",
    "MahalanobisDetector": "arht.detectors.mahalanobis",
    "MaximumProbability": "arht.detectors.predictive",
    "Entropy": "arht.detectors.predictive",
    "MutualInformation": "arht.detectors.predictive",
    "DifferentialEntropy": "arht.detectors.predictive",
    "Energy": "arht.detectors.predictive",
    "FromScorer": "arht.detectors.scorer",
}
"""Detectors that a file can hold, and where they live."""


def plain(value: Any) -> Any:
    """As JSON has it: arrays, tensors and tuples as lists."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") else value


def tuples(value: Any) -> Any:
    """Lists, as JSON gives them back, as tuples."""
    return tuple(tuples(entry) for entry in value) if isinstance(value, list) else value


def of_artefact(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any
) -> Detector:
    """The detector that an artefact describes; see `arht.load`."""
    name = header.get("class")
    if kind != "detector" or name not in CLASSES:
        raise InputError(
            f"load: {path} must hold a detector of this arht; it holds {name or kind!r}. "
            "Update arht, or load it with what wrote it."
        )
    cls: type[Detector] = getattr(import_module(CLASSES[name]), name)
    try:
        return cls._unpack(header, tensors, **options)
    except KeyError as error:
        raise InputError(f"load: {path} must hold a whole detector; it lacks {error}. Save it again.") from None
