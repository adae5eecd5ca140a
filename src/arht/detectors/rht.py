"""RHT as a detector: one ridge for all queries."""

from __future__ import annotations

from typing import Literal

import torch

from arht._shapes import Tensor
from arht.detectors.arht import ARHTDetector
from arht.detectors.base import Tail
from arht.detectors.embedding import Against, Side
from arht.detectors.measured import Measured
from arht.errors import InputError

__all__ = ["RHTDetector"]


class RHTDetector(ARHTDetector):
    """The regularised Hotelling T² at one given ridge.

    The statistic is RHT itself. Against the global reference the score is RHT standardised by its asymptotic law, as
    in `rht_test`; per class it is the smallest RHT, and relative the smallest RHT minus the global one.

    Parameters
    ----------
    ridge : float
        λ. In units of the covariance's mean eigenvalue where ridge_unit="mean_eigenvalue".
    ridge_unit, null, reference, tail, combine, keep
        As in `ARHTDetector`.
    """

    method = "rht"

    def __init__(
        self,
        ridge: float = 0.01,
        *,
        ridge_unit: Literal["absolute", "mean_eigenvalue"] = "absolute",
        null: str = "cube_root",
        reference: Against = "global",
        tail: Tail = "upper",
        combine: str = "fisher",
        keep: int = 256,
    ) -> None:
        if ridge is None:
            raise InputError(
                "RHTDetector: ridge must be a number; got None. ARHTDetector chooses among several ridges."
            )
        super().__init__(
            ridge, (1.0,), ridge_unit=ridge_unit, null=null, reference=reference, tail=tail, combine=combine, keep=keep
        )

    def _measure_global(self, queries: Tensor) -> Measured:
        measured = super()._measure_global(queries)
        ok = measured.outcome == 0
        measured.statistic = torch.where(ok, self._values(self._global, queries)[:, 0], torch.nan)
        return measured

    def _values(self, side: Side, queries: Tensor) -> Tensor:
        return side.weights(queries.shape[1]) * side.forms(queries, float(self._ridges(side)[0]))

    def _metric(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Tensor, int | None]:
        nu = side.degrees(queries.shape[1])
        inverse = 1 / (side.reference.eigenvalues / nu + self._ridges(side)[0])
        return inverse.expand(len(queries), -1), nu

    def _slope(self, side: Side, queries: Tensor) -> Tensor:
        return side.weights(queries.shape[1])[None]
