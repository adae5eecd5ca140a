"""From what each layer measures to one verdict: the combined score, the result, the explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from arht.detectors import DetectionResult, Explanation
from arht.detectors.layers import Layers
from arht.detectors.measured import Measured, as_result
from arht.guard.layers import Layer
from arht.stats.nulls import Conformal
from arht.stats.results import Outcome, TestResult

__all__ = ["Measurement", "combined", "explained", "joined", "kind_of", "result_of"]


@dataclass(frozen=True)
class Measurement:
    """What the layers make of a block of inputs."""

    layers: dict[str, Measured]
    outcome: Tensor
    """[B]: the first layer's that is not OK."""

    @classmethod
    def of(cls, layers: Mapping[str, Layer], rows: Mapping[str, Tensor]) -> Measurement:
        """From what each detector is to measure."""
        measured = {name: layer.detector._measure(rows[name]) for name, layer in layers.items()}
        outcome: Tensor | None = None
        for one in measured.values():
            outcome = one.outcome if outcome is None else torch.where(outcome == Outcome.OK, one.outcome, outcome)
        assert outcome is not None
        return cls(measured, outcome)

    @property
    def scores(self) -> dict[str, Tensor]:
        """Of each layer, NaN where it has none."""
        return {name: one.score for name, one in self.layers.items()}

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """All blocks as one."""
        if len(parts) == 1:
            return parts[0]
        layers = {}
        for name, first in parts[0].layers.items():
            own = [part.layers[name] for part in parts]
            whole: dict[str, Any] = {
                field: torch.cat([getattr(one, field) for one in own])
                for field in ("statistic", "score", "outcome", "pvalue", "ridge", "theta1", "theta2", "nearest_class")
                if getattr(first, field) is not None
            }
            layers[name] = replace(first, **whole)
        return cls(layers, torch.cat([part.outcome for part in parts]))


def log_p(layers: Mapping[str, Layer], scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ln p of each layer by its own law."""
    out = {}
    for name, layer in layers.items():
        assert layer.detector._margin is not None
        out[name] = layer.detector._margin.log_pvalue(scores[name])
    return out


def combined(layers: Mapping[str, Layer], scores: Mapping[str, Tensor], rule: str) -> Tensor:
    """One score per input, NaN where a layer has none."""
    detectors = {name: layer.detector for name, layer in layers.items()}
    found: Tensor = Layers(detectors).combined(log_p(layers, scores), rule)
    return found


def result_of(
    layers: Mapping[str, Layer], measurement: Measurement, law: Conformal, rule: str, mode: str, kind: Any
) -> DetectionResult:
    """Score, p-value and outcome; of several layers, each with its own beside them."""
    results: dict[str, TestResult] = {}
    for name, layer in layers.items():
        detector, measured = layer.detector, measurement.layers[name]
        results[name] = detector._result("Guard.test", replace(measured, priors=None), kind)
    method = f"guard ({mode})"
    if len(layers) == 1:
        return replace(next(iter(results.values())), method=method)  # type: ignore[return-value]
    score = combined(layers, measurement.scores, rule)
    outcome = measurement.outcome
    lost = score.isnan() & (outcome == Outcome.OK)
    outcome = torch.where(lost, torch.tensor(int(Outcome.DEGENERATE), dtype=torch.int8), outcome)
    score = torch.where(outcome == Outcome.OK, score, torch.nan)
    near = [one.nearest_class for one in measurement.layers.values() if one.nearest_class is not None]
    whole = Measured(score, score, outcome, nearest_class=near[-1] if near else None)
    return as_result(method, whole, score, law, kind, layers=results)


def explained(
    layers: Mapping[str, Layer], measurement: Measurement, rows: Mapping[str, Tensor], nearest: int
) -> Explanation:
    """Share of the evidence, ln p of a layer over the sum of all by any rule, and each layer's own explanation."""
    parts = {
        name: layer.detector._explain(rows[name], measurement.layers[name], nearest)
        for name, layer in layers.items()
        if layer.detector.explains
    }
    found = log_p(layers, measurement.scores)
    total = torch.stack(list(found.values())).sum(0)
    even = torch.full_like(total, 1 / len(found))
    return Explanation(layers={n: torch.where(total == 0, even, v / total) for n, v in found.items()}, parts=parts)


def joined(parts: Sequence[Explanation], kind: Any) -> Explanation:
    """Explanations of several blocks as one, as arrays of the caller's kind."""
    first = parts[0]
    layers = {n: kind(torch.cat([p.layers[n] for p in parts])) for n in first.layers or {}}  # type: ignore[index]
    inner: dict[str, Explanation] = {}
    for name in first.parts or {}:
        own = [p.parts[name] for p in parts]  # type: ignore[index]
        inner[name] = Explanation(
            directions=kind(torch.cat([p.directions for p in own])),
            basis=kind(own[0].basis),
            nearest=None if own[0].nearest is None else kind(torch.cat([p.nearest for p in own])),
            distances=None if own[0].distances is None else kind(torch.cat([p.distances for p in own])),
        )
    return Explanation(layers=layers, parts=inner)


def kind_of(x: Any) -> Any:
    """Results as tensors for tensors, as arrays otherwise."""
    if isinstance(x, Tensor):
        return lambda value: value
    return lambda value: value.numpy() if isinstance(value, Tensor) else value
