"""Anybody's scorer under our contract: calibrated p-values and decisions for PyOD, pytorch-ood or any callable."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, Self

import numpy as np
import torch

from arht._shapes import Tensor
from arht.detectors._inputs import as_queries, chunks_of
from arht.detectors.base import Detector, Tail
from arht.detectors.measured import Measured
from arht.errors import InputError
from arht.stats._checks import as_real
from arht.stats.moments import Moments

__all__ = ["FromScorer"]


class FromScorer(Detector):
    """A detector around a scorer that is not ours.

    Parameters
    ----------
    scorer : object or callable
        * with ``decision_function`` (PyOD; larger = more abnormal),
        * with ``score_samples`` (scikit-learn; larger = more normal, so its sign is turned),
        * with ``predict`` (pytorch-ood; larger = more OOD; it is given a tensor), or
        * any callable: inputs [B, ...] -> scores [B], larger = more OOD.
    larger : {"ood", "normal"}, optional
        What a larger score means, where the rule above is wrong.
    average_draws : bool
        Give the scorer the mean of a query's draws [B, K, P]; False gives it the inputs as they come, of any shape.
    tail, combine
        As in `Detector`.

    Notes
    -----
    `fit` calls the scorer's own ``fit``, if there is one, on the whole reference; a scorer that is fitted already needs
    only `calibrate`. A file of it holds the calibration, not the scorer: ``arht.load(path, scorer=scorer)``.

    Examples
    --------
    >>> import numpy as np
    >>> from arht.detectors import FromScorer
    >>> rng = np.random.default_rng(0)
    >>> detector = FromScorer(lambda x: (x**2).sum(1)).calibrate(rng.normal(size=(999, 3)))
    >>> detector.test(np.array([[0.0, 0.0, 0.1], [9.0, 9.0, 9.0]])).decide(fdr=0.1).rejected.tolist()
    [False, True]
    """

    needs_fit = False
    merges = False

    def __init__(
        self,
        scorer: Any,
        *,
        larger: Literal["ood", "normal"] | None = None,
        average_draws: bool = True,
        tail: Tail = "upper",
        combine: str = "fisher",
    ) -> None:
        super().__init__(tail=tail, combine=combine)
        self.scorer, self.larger, self.average_draws = scorer, larger, average_draws
        if larger is not None:
            self._check_choice("larger", larger, ("ood", "normal"))
        if not (callable(scorer) or any(hasattr(scorer, name) for name, *_ in _WAYS)):
            raise InputError(
                f"FromScorer: scorer must be callable or have decision_function, score_samples or predict; "
                f"got {type(scorer).__name__}."
            )
        self._width: int | None = None

    @property
    def method(self) -> str:  # type: ignore[override]
        """The scorer's name."""
        return getattr(self.scorer, "__name__", type(self.scorer).__name__)

    @property
    def width(self) -> int | None:  # noqa: D102
        return self._width

    def fit(self, reference: Any, labels: Any = None) -> Self:
        """Fit the scorer, if it can be fitted, on the whole reference at once."""
        self._forget()
        self._inputs, self._layers = 0, None
        who = self._who("fit")
        chunks = list(chunks_of(who, reference, labels))
        if isinstance(chunks[0][0], Mapping):
            return self._learn("fit", chunks[0][0] if len(chunks) == 1 else reference, labels)
        rows = [self._queries(who, chunk) for chunk, _ in chunks]
        given = [np.asarray(part) for _, part in chunks if part is not None]
        self._fit(torch.cat(rows), np.concatenate(given) if given else None)
        return self

    def _fit(self, rows: Tensor, labels: Any) -> None:
        self._width, self._inputs = rows.shape[-1] if self.average_draws else None, len(rows)
        if hasattr(self.scorer, "fit"):
            table = self._inputs_of(rows)
            kind = torch.is_tensor(table)
            self.scorer.fit(table, torch.as_tensor(labels) if kind and labels is not None else labels)

    def _take(self, chunk: Any, labels: Any) -> int:
        if self._inputs:
            self._cannot("partial_fit")
        rows = self._queries(self._who("fit"), chunk)
        self._fit(rows, labels)
        self._inputs = 0  # the caller counts
        return len(rows)

    def partial_fit(self, chunk: Any, labels: Any = None) -> Self:
        """Not possible beyond a first chunk: a scorer of others cannot be asked for its sufficient statistics."""
        if self._inputs:
            self._cannot("partial_fit")
        return super().partial_fit(chunk, labels)

    def merge(self, other: Detector) -> Self:
        """Not possible."""
        self._cannot("merge")

    def _cannot(self, verb: str) -> NoReturn:
        raise InputError(
            f"{self._who(verb)}: the {self.method} cannot learn piece by piece. Fit it once on the whole reference."
        )

    def _absorb(self, other: Self) -> None:
        self._cannot("merge")

    def _forget(self) -> None:
        self._width = None
        self._law = self._margin = None

    def _clone(self) -> Self:
        return type(self)(**{**self.parameters, "scorer": copy.deepcopy(self.scorer)})

    def _queries(self, who: str, draws: Any) -> Any:
        if isinstance(draws, Moments):
            raise InputError(f"{who}: the {self.method} needs the rows themselves; got Moments. Pass the array.")
        if self.average_draws:
            return as_queries(who, draws, self._width)
        queries = draws if isinstance(draws, Tensor) else as_real(who, "draws", draws)
        if queries.ndim < 1:
            raise InputError(f"{who}: draws must have a first axis of queries; got one number.")
        return queries

    def _inputs_of(self, queries: Tensor) -> Any:
        """What the scorer sees: numpy, or a tensor for a pytorch-ood style one."""
        if self.average_draws:
            queries = queries[:, 0] if queries.shape[1] == 1 else queries.mean(1)
        return queries if self._way()[0] == "predict" else queries.cpu().numpy()

    def _way(self) -> tuple[str, float]:
        for name, sign, condition in _WAYS:
            if hasattr(self.scorer, name) and condition(self.scorer):
                return name, {"ood": 1.0, "normal": -1.0, None: sign}[self.larger]
        return "__call__", {"ood": 1.0, "normal": -1.0, None: 1.0}[self.larger]

    def _measure(self, queries: Tensor) -> Measured:
        finite = torch.isfinite(queries).flatten(1).all(1)
        scores = torch.full((len(queries),), torch.nan, dtype=torch.float64)
        if bool(finite.any()):
            name, sign = self._way()
            call = self.scorer if name == "__call__" else getattr(self.scorer, name)
            try:
                found = call(self._inputs_of(queries[finite]))
            except Exception as error:
                if type(error).__name__ not in ("NotFittedError", "RequiresFittingException"):
                    raise
                raise InputError(
                    f"{self._who('test')}: the {self.method} is not fitted. Call fit(reference) first."
                ) from None
            values = as_real(self.method, "scores", found).cpu()
            if values.shape != (int(finite.sum()),):
                raise InputError(
                    f"FromScorer: the {self.method} must give one score per query, [{int(finite.sum())}]; got shape "
                    f"{tuple(values.shape)}."
                )
            scores[finite] = sign * values
        return Measured.of(queries, scores)

    def _plain_parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.parameters.items() if name != "scorer"}

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"width": self._width, "scorer": self.method}, {}

    def _restore(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._width = header["width"]

    @classmethod
    def _unpack(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any) -> Self:
        if "scorer" not in options:
            name = header.get("state", {}).get("scorer", "scorer")
            raise InputError(
                f"load: the file holds the calibration of {name}, not {name} itself. "
                "Pass it: arht.load(path, scorer=scorer)."
            )
        return super()._unpack(header, tensors, **options)


def _sklearn(scorer: Any) -> bool:
    return not hasattr(scorer, "decision_scores_") and not type(scorer).__module__.startswith("pyod.")


_WAYS: tuple[tuple[str, float, Any], ...] = (
    ("score_samples", -1.0, _sklearn),
    ("decision_function", 1.0, lambda scorer: True),
    ("predict", 1.0, lambda scorer: True),
)
"""Name of the method, the sign that makes larger more OOD, and whether this scorer's is meant that way."""
