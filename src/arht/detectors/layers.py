"""Several layers at once: one detector each, joined per query by their calibration laws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from arht._shapes import Tensor
from arht.detectors._inputs import is_table
from arht.detectors.margins import RULES
from arht.detectors.results import Explanation
from arht.errors import InputError
from arht.stats._checks import restorer
from arht.stats.results import Outcome, TestResult

if TYPE_CHECKING:
    from arht.detectors.base import Detector

__all__ = ["Layers"]


class Layers:
    """A detector for each layer. A query's layers become ln p by each layer's law, and one score by a rule."""

    def __init__(self, detectors: dict[str, Detector]) -> None:
        if not detectors:
            raise InputError("fit: needs at least one layer; got an empty dict.")
        self.detectors = detectors

    def learn(self, who: str, chunk: Mapping[str, Any], labels: Any) -> int:
        """Learn one chunk of each layer; return the number of inputs, which must agree."""
        self._check(who, chunk)
        counts = {}
        for name, detector in self.detectors.items():
            before = detector.inputs
            if is_table(chunk[name]) or not hasattr(chunk[name], "__next__"):
                detector.partial_fit(chunk[name], labels)
            else:
                raise InputError(f"{who}: layer {name!r} must be an array; got an iterator. Yield dicts of arrays.")
            counts[name] = detector.inputs - before
        if len(set(counts.values())) > 1:
            raise InputError(
                f"{who}: every layer must have the same inputs; got {counts}. Row i of each layer must be input i."
            )
        return next(iter(counts.values()))

    def merge(self, who: str, other: Layers) -> None:
        """Each layer with its own."""
        self._check(who, other.detectors)
        for name, detector in self.detectors.items():
            detector.merge(other.detectors[name])

    def calibrate(self, who: str, chunks: Iterable[Any], rule: str) -> Tensor:
        """Set each layer's law on inputs 0, 2, 4, ...; return the combined scores of 1, 3, 5, ..."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.detectors}
        for chunk in chunks:
            for name, measured in self._measured(who, chunk).items():
                parts[name].append(measured[1].score)
        scores = {name: torch.cat(part) for name, part in parts.items()}
        count = len(next(iter(scores.values())))
        if count < 2:
            raise InputError(f"{who}: several layers need at least 2 held-out inputs; got {count}. Give more.")
        for name, detector in self.detectors.items():
            bad = ~torch.isfinite(scores[name])
            if bool(bad.any()):
                raise InputError(
                    f"{who}: every held-out input must have a score; got {int(bad.sum())} of {count} without in layer "
                    f"{name!r}, the first in row {int(bad.nonzero()[0])}. Drop rows that hold NaN or infinity."
                )
            detector._set_law(who, scores[name][0::2])
        log_p = {name: self._log_p(name, scores[name][1::2]) for name in self.detectors}
        return self.combined(log_p, rule)

    def combined(self, log_p: dict[str, Tensor], rule: str) -> Tensor:
        """One score per query, NaN where a layer has none."""
        table = torch.stack(list(log_p.values()), 1).numpy()  # [B, L]
        tested = torch.from_numpy(~torch.isnan(torch.from_numpy(table)).any(1).numpy())
        out = torch.full((len(table),), torch.nan, dtype=torch.float64)
        if bool(tested.any()):
            out[tested] = torch.as_tensor(RULES[rule](table[tested.numpy()]), dtype=torch.float64)
        return out

    def measure(self, who: str, draws: Any) -> tuple[dict[str, TestResult], dict[str, Tensor], Tensor]:
        """Each layer's result and ln p [B], and the outcome of each query: the first layer's that is not OK."""
        results: dict[str, TestResult] = {}
        log_p: dict[str, Tensor] = {}
        outcome: Tensor | None = None
        for name, (_, measured) in self._measured(who, draws).items():
            detector = self.detectors[name]
            results[name] = detector._result(who, measured, restorer(*draws.values()))
            log_p[name] = self._log_p(name, measured.score)
            outcome = measured.outcome if outcome is None else torch.where(outcome == 0, measured.outcome, outcome)
        assert outcome is not None
        lost = torch.stack(list(log_p.values())).isnan().any(0) & (outcome == 0)
        return results, log_p, torch.where(lost, torch.tensor(int(Outcome.DEGENERATE), dtype=torch.int8), outcome)

    def explain(self, who: str, draws: Any, nearest: int) -> Explanation:
        """Share of the evidence, ln p of a layer over the sum of all by any rule, and each layer's own explanation."""
        back = restorer(*draws.values())
        parts, log_p = {}, {}
        for name, (queries, measured) in self._measured(who, draws).items():
            detector = self.detectors[name]
            log_p[name] = self._log_p(name, measured.score)
            if detector.explains:
                parts[name] = detector._back(detector._explain(queries, measured, nearest), draws[name])
        total = torch.stack(list(log_p.values())).sum(0)
        even = torch.full_like(total, 1 / len(log_p))
        shares = {name: torch.where(total == 0, even, value / total) for name, value in log_p.items()}
        return Explanation(layers={name: back(share) for name, share in shares.items()}, parts=parts)

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a file: headers by layer, and tensors under the layer's number."""
        headers, tensors = {}, {}
        for number, (name, detector) in enumerate(self.detectors.items()):
            headers[name], own = detector._pack()
            tensors.update({f"layers.{number}.{key}": value for key, value in own.items()})
        return headers, tensors

    @classmethod
    def unpack(
        cls, kind: type[Detector], headers: Mapping[str, Any], tensors: Mapping[str, Tensor], options: dict[str, Any]
    ) -> Layers:
        """What `pack` gave."""
        detectors = {}
        for number, (name, header) in enumerate(headers.items()):
            prefix = f"layers.{number}."
            own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            detectors[name] = kind._unpack(header, own, **options)
        return cls(detectors)

    def _log_p(self, name: str, scores: Tensor) -> Tensor:
        margin = self.detectors[name]._margin
        assert margin is not None
        return margin.log_pvalue(scores)

    def _measured(self, who: str, draws: Any) -> dict[str, Any]:
        if not isinstance(draws, Mapping):
            raise InputError(
                f"{who}: needs a dict of layers {', '.join(self.detectors)}, as in fit; got {type(draws).__name__}."
            )
        self._check(who, draws)
        found = {}
        for name, detector in self.detectors.items():
            queries = detector._queries(who, draws[name])
            found[name] = queries, detector._measure(queries)
        counts = {name: len(measured.score) for name, (_, measured) in found.items()}
        if len(set(counts.values())) > 1:
            raise InputError(
                f"{who}: every layer must have the same queries; got {counts}. Row i of each layer must be query i."
            )
        return found

    def _check(self, who: str, given: Mapping[str, Any]) -> None:
        if set(given) != set(self.detectors):
            raise InputError(
                f"{who}: layers must be {', '.join(self.detectors)}, as in fit; got {', '.join(map(str, given))}. "
                "Give every layer, under the same name."
            )
