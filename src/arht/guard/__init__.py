"""The whole thing around a model: which layers are watched, by which detectors, and one calibrated verdict."""

from __future__ import annotations

from arht.guard.guard import Guard
from arht.guard.recipe import Watch

__all__ = ["Guard", "Watch"]
