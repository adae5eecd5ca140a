"""Which inputs of a neural network are out of distribution: a test, a p-value, a decision."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "ARHTDetector": "arht.detectors",
    "ArhtError": "arht.errors",
    "ArhtWarning": "arht.errors",
    "Decision": "arht.stats",
    "DetectionResult": "arht.detectors",
    "Guard": "arht.guard",
    "InputError": "arht.errors",
    "Moments": "arht.stats",
    "Outcome": "arht.stats",
    "Reference": "arht.stats",
    "TestResult": "arht.stats",
    "arht_scores": "arht.stats",
    "arht_test": "arht.stats",
    "decide": "arht.stats",
    "hotelling_test": "arht.stats",
    "load": "arht.loading",
    "plan": "arht.evaluation",
    "rht_test": "arht.stats",
}

__all__ = ["__version__", *_HOMES]  # pinned by a test

if TYPE_CHECKING:
    from arht.detectors import ARHTDetector, DetectionResult
    from arht.errors import ArhtError, ArhtWarning, InputError
    from arht.evaluation import plan
    from arht.guard import Guard
    from arht.loading import load
    from arht.stats import (
        Decision,
        Moments,
        Outcome,
        Reference,
        TestResult,
        arht_scores,
        arht_test,
        decide,
        hotelling_test,
        rht_test,
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in ("stats", "io", "nets", "posterior", "training", "data", "detectors", "guard", "evaluation"):
        return import_module(f"arht.{name}")
    raise AttributeError(f"module 'arht' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
