"""What every detector offers: fit, calibrate, test, decide, save; one input layer or several."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch

from arht._shapes import Tensor
from arht.detectors._inputs import as_queries, chunks_of, is_table
from arht.detectors.files import plain, tuples
from arht.detectors.layers import Layers
from arht.detectors.margins import RULES, Margin
from arht.detectors.measured import Measured, as_result
from arht.detectors.results import DetectionResult, Explanation
from arht.errors import InputError
from arht.stats._checks import restorer
from arht.stats.multiplicity import Decision
from arht.stats.nulls import Conformal

if TYPE_CHECKING:
    from arht.evaluation.audits import Audit

__all__ = ["Detector"]

Tail = Literal["upper", "two-sided"]


class Detector(ABC):
    """Base of the detectors: from reference inputs to scores, p-values and decisions about queries.

    A larger score is stronger evidence against "more of the same". Without `calibrate`, p-values are the statistic's
    own law where it has one, and NaN where it has none; after it they are conformal.

    Parameters
    ----------
    tail : {"upper", "two-sided"}
        Two-sided, a query that scores lower than in-distribution inputs ever do is as suspicious as one that
        scores higher (typicality), by the calibration set's empirical law: `calibrate` comes before `test`.
    combine : {"fisher", "stouffer", "cauchy", "harmonic_mean", "bonferroni"}
        Where inputs come as a dict of layers: how a query's layers are joined into one score.
    """

    method: ClassVar[str]
    """Name of the statistic in results."""
    needs_fit: ClassVar[bool] = True
    """Whether there is anything to learn from a reference."""
    merges: ClassVar[bool] = True
    """Whether it can learn in pieces: `partial_fit` and `merge`."""
    explains: ClassVar[bool] = False
    """Whether its statistic can be shared out over directions."""

    def __init__(self, *, tail: Tail = "upper", combine: str = "fisher") -> None:
        self.tail: Tail = tail
        self.combine = combine
        self._layers: Layers | None = None
        self._law: Conformal | None = None
        self._margin: Margin | None = None
        self._inputs = 0
        self._check_choice("tail", tail, ("upper", "two-sided"))
        self._check_choice("combine", combine, tuple(RULES))

    # what a detector brings -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def width(self) -> int | None:
        """P, the number of columns of a query; ``None`` before `fit`."""

    @abstractmethod
    def _take(self, chunk: Any, labels: Any) -> int:
        """Learn from one chunk of reference inputs; return how many there were."""

    @abstractmethod
    def _absorb(self, other: Self) -> None:
        """Learn what another detector of the same parameters has learned."""

    @abstractmethod
    def _forget(self) -> None:
        """Back to before `fit`."""

    @abstractmethod
    def _measure(self, queries: Any) -> Measured:
        """Statistic and score of queries [B, K, P]."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `fit` has learned, for a file: a header for JSON, and tensors."""

    @abstractmethod
    def _restore(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take back what `_state` gave."""

    def _seen(self, queries: Any) -> None:  # noqa: B027
        """Look at calibration queries before they are scored."""

    def _explain(self, queries: Any, measured: Measured, nearest: int) -> Explanation:
        raise InputError(
            f"{self._who('explain')}: a score of {self.method} has no directions to share it out over. "
            "Explain an ARHT, RHT, Hotelling or Mahalanobis detector, or one of several layers."
        )

    def _queries(self, who: str, draws: Any) -> Any:
        """Whatever a caller passes as queries -> what `_measure` takes."""
        return as_queries(who, draws, self.width)

    # the contract ---------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments that make this detector again."""
        return {
            name: getattr(self, name) for name in inspect.signature(type(self).__init__).parameters if name != "self"
        }

    @property
    def fitted(self) -> bool:
        """Whether queries can be scored."""
        return not self.needs_fit or self._inputs > 0

    @property
    def calibrated(self) -> bool:
        """Whether p-values are conformal."""
        return self._law is not None

    @property
    def inputs(self) -> int:
        """Number of reference inputs (rows, where they came as `Moments`)."""
        return self._inputs

    def fit(self, reference: Any, labels: Any = None) -> Self:
        """Learn the reference: an array [N, P], draws [B, K, P], `Moments`, or an iterable of such chunks.

        A dict of layer name -> any of these (or an iterable of dicts) makes a detector of several layers. Labels are
        one integer per input; chunks bring theirs as pairs (rows, labels). The random weights are a property of the
        encoder: use the same bank of draws for reference, calibration and queries.
        """
        self._forget()
        self._inputs, self._layers = 0, None
        return self._learn("fit", reference, labels)

    def partial_fit(self, chunk: Any, labels: Any = None) -> Self:
        """Learn more reference inputs: the result is that of one `fit` on all. Drops the calibration."""
        return self._learn("partial_fit", chunk, labels)

    def merge(self, other: Detector) -> Self:
        """Learn what `other` has learned, as if this one had been fitted on both. Drops the calibration.

        `other` does not change; parameters and layers must be the same.
        """
        who = self._who("merge")
        if other is self:
            raise InputError(
                f"{who}: needs another detector; got this one itself. Its inputs would count twice; fit the other on "
                "another part."
            )
        if type(other) is not type(self) or plain(other.parameters) != plain(self.parameters):
            raise InputError(
                f"{who}: both sides must be of one kind with the same parameters; got {self!r} and {other!r}. "
                "Make them alike and fit them again."
            )
        if other._layers is not None or self._layers is not None:
            mine, theirs = self._layers, other._layers
            if mine is None and not self._inputs and theirs is not None:
                self._layers = mine = Layers({name: self._clone() for name in theirs.detectors})
            if mine is None or theirs is None:
                raise InputError(f"{who}: both sides must have layers, or neither. Fit them on the same layers.")
            mine.merge(who, theirs)
        elif other._inputs:
            if self.width not in (None, other.width):
                raise InputError(
                    f"{who}: both sides must have the same number of columns; got P={self.width} and P={other.width}. "
                    "They were not fitted on one layer."
                )
            self._absorb(other)
        self._inputs += other._inputs
        self._law = self._margin = None
        return self

    def calibrate(self, heldout: Any) -> Self:
        """Make p-values conformal: by rank among held-out in-distribution inputs.

        They must be held out of the reference and of the encoder's training, and treated as queries are. Of several
        layers, every second input sets each layer's own law and the others calibrate the combination, so that the
        final p-value holds whatever the dependence between layers.
        """
        who = self._who("calibrate")
        self._needs_reference(who)
        if self._layers is not None:
            scores = self._layers.calibrate(who, self._chunks(who, heldout), self.combine)
            self._law, self._margin = Conformal(scores), Margin(scores.sort().values)
            return self
        parts = []
        for chunk in self._chunks(who, heldout):
            queries = self._queries(who, chunk)
            self._seen(queries)
            parts.append(self._measure(queries).score)
        self._set_law(who, torch.cat(parts))
        return self

    def test(self, draws: Any, *, explain: bool = False) -> DetectionResult:
        """Score, p-value and outcome of each query: draws [B, K, P], a table [B, P], or a dict of layers."""
        who = self._who("test")
        self._needs_reference(who)
        if self._layers is not None:
            return self._test_layers(who, self._layers, draws, explain)
        queries = self._queries(who, draws)
        measured = self._measure(queries)
        result = self._result(who, measured, restorer(draws))
        return self._explained(result, self._explain(queries, measured, 5), draws) if explain else result

    def score(self, draws: Any) -> Any:
        """Scores [B]: larger is more suspicious, NaN where a query could not be tested."""
        return self.test(draws).score

    def decide(self, draws: Any, fdr: float = 0.05, method: str = "bh") -> Decision:
        """Which of these queries to reject at that false-discovery rate."""
        return self.test(draws).decide(fdr=fdr, method=method)

    def explain(self, draws: Any, nearest: int = 5) -> Explanation:
        """Where each query's statistic comes from: by direction, by layer, and the nearest kept reference inputs."""
        who = self._who("explain")
        self._needs_reference(who)
        if self._layers is not None:
            return self._layers.explain(who, draws, nearest)
        queries = self._queries(who, draws)
        return self._back(self._explain(queries, self._measure(queries), nearest), draws)

    def audit(self, heldout: Any, *, fdr: float = 0.05, tests: int | None = None) -> Audit:
        """Do the p-values hold on further held-out inputs, and can that FDR be claimed for so many tests?"""
        from arht.evaluation.audits import audit

        scores = None if self._law is None else self._law.scores
        return audit(self.test(heldout), calibration=scores, fdr=fdr, tests=tests)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write everything to a safetensors file and return its digest; `arht.load` reads it back."""
        from arht.io import artefact

        self._needs_reference(self._who("save"))
        header, tensors = self._pack()
        return artefact.write(path, "detector", header, tensors)

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        shown = [f"{k}={v!r}" for k, v in self.parameters.items() if defaults[k].default != v]
        return f"{type(self).__name__}({', '.join(shown)})"

    # inside ---------------------------------------------------------------------------------------------------

    def _who(self, verb: str) -> str:
        return f"{type(self).__name__}.{verb}"

    def _check_choice(self, name: str, value: Any, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise InputError(
                f"{type(self).__name__}: {name} must be one of {', '.join(map(repr, allowed))}; got {value!r}."
            )

    def _clone(self) -> Self:
        return type(self)(**self.parameters)

    def _learn(self, verb: str, reference: Any, labels: Any) -> Self:
        who = self._who(verb)
        self._law = self._margin = None
        for chunk, given in chunks_of(who, reference, labels):
            if isinstance(chunk, Mapping):
                if self._layers is None:
                    if self._inputs:
                        raise InputError(f"{who}: got layers after an array without. Give every chunk the same layers.")
                    self._layers = Layers({str(name): self._clone() for name in chunk})
                self._inputs += self._layers.learn(who, chunk, given)
            elif self._layers is not None:
                raise InputError(f"{who}: needs a dict of layers, as before; got {type(chunk).__name__}.")
            else:
                self._inputs += self._take(chunk, given)
        return self

    def _chunks(self, who: str, inputs: Any) -> Iterator[Any]:
        """Query inputs chunk by chunk: one array or dict is one chunk."""
        return (chunk for chunk, _ in chunks_of(who, inputs, None)) if not is_table(inputs) else iter([inputs])

    def _needs_reference(self, who: str) -> None:
        if not self.fitted:
            raise InputError(f"{who}: needs a reference; got none yet. Call fit(reference) first.")

    def _set_law(self, who: str, scores: Tensor) -> None:
        bad = ~torch.isfinite(scores)
        if bool(bad.any()) or not len(scores):
            raise InputError(
                f"{who}: every held-out input must have a score; got {int(bad.sum())} of {len(scores)} without"
                + (f", the first in row {int(bad.nonzero()[0])}" if len(scores) else "")
                + ". Drop rows that hold NaN or infinity."
            )
        two_sided = self.tail == "two-sided"
        self._law = Conformal(scores, tail="two_sided" if two_sided else "upper")
        # the score of a two-sided detector follows the ranks as far as they go
        self._margin = Margin(scores.sort().values, two_sided, tail=0.0 if two_sided else 0.02)

    def _ranking(self, who: str, measured: Measured) -> Tensor:
        if self.tail == "upper":
            return measured.score
        if self._margin is None:
            raise InputError(
                f"{who}: two-sided scores need the calibration set's law; got none yet. "
                "Call calibrate(heldout) first, or choose tail='upper'."
            )
        return -self._margin.log_pvalue(measured.score)

    def _result(self, who: str, measured: Measured, back: Any, **more: Any) -> DetectionResult:
        return as_result(self.method, measured, self._ranking(who, measured), self._law, back, **more)

    def _test_layers(self, who: str, layers: Layers, draws: Any, explain: bool) -> DetectionResult:
        if self._law is None:
            raise InputError(
                f"{who}: several layers are combined by the calibration set's laws; got none yet. "
                "Call calibrate(heldout) first."
            )
        results, log_p, outcome = layers.measure(who, draws)
        score = layers.combined(log_p, self.combine)
        method = f"{self.method}, {len(log_p)} layers by {self.combine}"
        back = restorer(*draws.values())
        result = as_result(method, Measured(score, score, outcome), score, self._law, back, layers=results)
        return self._explained(result, layers.explain(who, draws, 5), None) if explain else result

    def _explained(self, result: DetectionResult, explanation: Explanation, draws: Any) -> DetectionResult:
        from dataclasses import replace

        return replace(result, explanation=explanation if draws is None else self._back(explanation, draws))

    def _back(self, explanation: Explanation, draws: Any) -> Explanation:
        from dataclasses import replace

        back = restorer(draws)
        fields = ("directions", "basis", "nearest", "distances")
        return replace(
            explanation,
            **{name: back(getattr(explanation, name)) for name in fields if getattr(explanation, name) is not None},
        )

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header: dict[str, Any] = {
            "class": type(self).__name__,
            "parameters": plain(self._plain_parameters()),
            "inputs": self._inputs,
            "tail": None if self._law is None else self._law.tail,
        }
        if self._layers is None:
            header["state"], tensors = self._state()
        else:
            header["layers"], tensors = self._layers.pack()
        if self._law is not None:
            tensors = {**tensors, "calibration.scores": self._law.scores}
        return header, tensors

    def _plain_parameters(self) -> dict[str, Any]:
        return self.parameters

    @classmethod
    def _unpack(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any) -> Self:
        parameters = {k: tuples(v) for k, v in header["parameters"].items()}
        detector = cls(**{**parameters, **options})
        detector._inputs = header["inputs"]
        if "layers" in header:
            detector._layers = Layers.unpack(cls, header["layers"], tensors, options)
        else:
            detector._restore(header["state"], tensors)
        if header["tail"] is not None:
            scores = tensors["calibration.scores"]
            if detector._layers is None:
                detector._set_law("load", scores)
            else:
                detector._law, detector._margin = Conformal(scores), Margin(scores)
        return detector
