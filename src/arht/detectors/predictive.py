"""Measures on predictive draws [B, K, C]: what a classifier's own output says, under the common contract."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch

from arht._shapes import Float, Tensor
from arht.detectors._inputs import as_queries
from arht.detectors.base import Detector, Tail
from arht.detectors.measured import Measured
from arht.errors import InputError

__all__ = ["DifferentialEntropy", "Energy", "Entropy", "MaximumProbability", "MutualInformation", "PredictiveDetector"]

Inputs = Literal["probabilities", "logits", "concentration"]


class PredictiveDetector(Detector):
    """Base of the measures on predictive draws. There is nothing to fit; `calibrate` makes p-values.

    Parameters
    ----------
    inputs : {"probabilities", "logits"}
        What the draws [B, K, C] hold; logits go through a softmax.
    tail, combine
        As in `Detector`.
    """

    needs_fit = False
    accepts: ClassVar[tuple[str, ...]] = ("probabilities", "logits")

    def __init__(self, inputs: Inputs = "probabilities", *, tail: Tail = "upper", combine: str = "fisher") -> None:
        super().__init__(tail=tail, combine=combine)
        self.inputs_are: Inputs = inputs
        self._check_choice("inputs", inputs, self.accepts)
        self._forget()

    @property
    def parameters(self) -> dict[str, Any]:  # noqa: D102
        return {"inputs": self.inputs_are, "tail": self.tail, "combine": self.combine}

    @property
    def width(self) -> int | None:  # noqa: D102
        return self._width

    def _forget(self) -> None:
        self._width: int | None = None
        self._law = self._margin = None

    def _take(self, chunk: Any, labels: Any) -> int:
        queries = as_queries(self._who("fit"), chunk, self._width)
        self._seen(queries)
        return len(queries)

    def _seen(self, queries: Tensor) -> None:
        self._width = queries.shape[2]

    def _absorb(self, other: Self) -> None:
        self._width = other._width

    def _measure(self, queries: Tensor) -> Measured:
        finite = torch.isfinite(queries).flatten(1).all(1)
        values = torch.where(finite[:, None, None], queries.to(torch.float64), 1.0 / max(queries.shape[2], 1))
        if self.inputs_are == "probabilities":
            self._check(((values >= -1e-6).all(2) & ((values.sum(2) - 1).abs() < 1e-3)).all(1), "probabilities", values)
        elif self.inputs_are == "concentration":
            self._check((values > 0).all(2).all(1), "positive concentrations", values)
        statistic = torch.where(finite, self._statistic(values), torch.nan)
        return Measured.of(queries, statistic)

    def _check(self, good: Tensor, what: str, values: Tensor) -> None:
        if not bool(good.all()):
            row = int((~good).nonzero()[0])
            sums = float(values[row].sum(1)[0])
            raise InputError(
                f"{type(self).__name__}: draws must be {what} [B, K, C]; got values in row {row} that are not, their "
                f"sum {sums:.4g}. Say inputs='logits', or pass the softmax."
            )

    @abstractmethod
    def _statistic(self, values: Float[Tensor, "B K C"]) -> Float[Tensor, " B"]: ...

    def _probabilities(self, values: Tensor) -> Tensor:
        if self.inputs_are == "logits":
            return values.softmax(2)
        return values.clamp_min(0) / values.clamp_min(0).sum(2, keepdim=True)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"width": self._width}, {}

    def _restore(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._width = header["width"]


def _entropy(p: Tensor) -> Tensor:
    return -torch.special.xlogy(p, p).sum(-1)


class MaximumProbability(PredictiveDetector):
    """1 - max_c p̄_c, p̄ the mean over the draws."""

    method = "maximum_probability"

    def _statistic(self, values: Tensor) -> Tensor:
        return 1 - self._probabilities(values).mean(1).amax(1)


class Entropy(PredictiveDetector):
    """Predictive entropy H(p̄) = -Σ_c p̄_c ln p̄_c, p̄ the mean over the draws."""

    method = "entropy"

    def _statistic(self, values: Tensor) -> Tensor:
        return _entropy(self._probabilities(values).mean(1))


class MutualInformation(PredictiveDetector):
    """H(p̄) minus the mean of the draws' own entropies: what the draws disagree about. 0 for one draw."""

    method = "mutual_information"

    def _statistic(self, values: Tensor) -> Tensor:
        p = self._probabilities(values)
        return (_entropy(p.mean(1)) - _entropy(p).mean(1)).clamp_min(0)


class DifferentialEntropy(PredictiveDetector):
    """Differential entropy of a Dirichlet law of the class probabilities.

    ln B(a) + (a₀ - C) ψ(a₀) - Σ_c (a_c - 1) ψ(a_c), a₀ = Σ_c a_c, averaged over the draws.

    Parameters
    ----------
    inputs : {"concentration", "probabilities", "logits"}
        The concentrations a of a network that predicts a Dirichlet; or draws of probabilities, K >= 2, to which a
        Dirichlet is matched in mean m and total variance v: a = m a₀, a₀ = Σ m_c (1 - m_c) / Σ v_c - 1.
    tail, combine
        As in `Detector`.
    """

    method = "differential_entropy"
    accepts = ("concentration", "probabilities", "logits")

    def __init__(self, inputs: Inputs = "concentration", *, tail: Tail = "upper", combine: str = "fisher") -> None:
        super().__init__(inputs, tail=tail, combine=combine)

    def _statistic(self, values: Tensor) -> Tensor:
        if self.inputs_are != "concentration":
            if values.shape[1] < 2:
                raise InputError(
                    "DifferentialEntropy: a Dirichlet is matched to K >= 2 draws of probabilities; got K=1. "
                    "Draw more, or pass inputs='concentration'."
                )
            p = self._probabilities(values)
            mean = p.mean(1, keepdim=True)
            variance = ((p - mean).square().sum((1, 2)) / (values.shape[1] - 1)).clamp_min(1e-12)[:, None, None]
            mean = mean.clamp_min(1e-12)
            precision = ((mean * (1 - mean)).sum(2, keepdim=True) / variance - 1).clamp(1e-3, 1e8)
            values = mean * precision
        total = values.sum(2)
        log_beta = torch.lgamma(values).sum(2) - torch.lgamma(total)
        spread = ((values - 1) * torch.digamma(values)).sum(2)
        return (log_beta + (total - values.shape[2]) * torch.digamma(total) - spread).mean(1)


class Energy(PredictiveDetector):
    """-T ln Σ_c exp(z_c / T) of logits z (Liu et al. 2020), averaged over the draws.

    Parameters
    ----------
    temperature : float
        T.
    tail, combine
        As in `Detector`.
    """

    method = "energy"
    accepts = ("logits",)

    def __init__(self, temperature: float = 1.0, *, tail: Tail = "upper", combine: str = "fisher") -> None:
        super().__init__("logits", tail=tail, combine=combine)
        self.temperature = temperature
        if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
            raise InputError(f"Energy: temperature must be a positive finite number; got {temperature!r}.")

    @property
    def parameters(self) -> dict[str, Any]:  # noqa: D102
        return {"temperature": self.temperature, "tail": self.tail, "combine": self.combine}

    def _statistic(self, values: Tensor) -> Tensor:
        return (-self.temperature * (values / self.temperature).logsumexp(2)).mean(1)
