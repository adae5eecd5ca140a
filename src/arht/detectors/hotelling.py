"""Hotelling's T² as a detector: no ridge, for references of full rank."""

from __future__ import annotations

import torch

from arht._shapes import Tensor
from arht.detectors.embedding import EmbeddingDetector, Side
from arht.detectors.measured import Measured
from arht.errors import InputError

__all__ = ["HotellingDetector"]


class HotellingDetector(EmbeddingDetector):
    """Hotelling's T² of each query's draws against the reference.

    T² = w (x̄ - μ)'S⁻¹(x̄ - μ), w = nK/(n + K), S pooled from the reference and the query's own draws with
    ν = n + K - 2 degrees of freedom. Before calibration, and against the global reference, the p-value is that of
    T² (ν - P + 1) / (νP) ~ F(P, ν - P + 1): exact for independent Gaussian rows, which the draws of one input are not;
    with one draw a query the assumption is that embeddings are Gaussian.

    Parameters
    ----------
    reference, tail, combine, keep
        As in `EmbeddingDetector`.
    """

    method = "hotelling"

    def _accept(self, side: Side) -> None:
        values, n, width = side.reference.eigenvalues, side.reference.n, side.reference.width
        floor = values[0] * max(n, width) * torch.finfo(torch.float64).eps
        if n - 1 < width or not bool(values[-1] > floor):
            rank = int((values > floor).sum())
            raise InputError(
                f"HotellingDetector: the reference covariance must have full rank P={width}; got rank {rank} from "
                f"n={n} rows. T² does not exist; give more rows, drop redundant columns, or use RHTDetector."
            )

    def _values(self, side: Side, queries: Tensor) -> Tensor:
        return side.weights(queries.shape[1]) * side.forms(queries, 0.0)

    def _measure_global(self, queries: Tensor) -> Measured:
        measured = super()._measure_global(queries)
        if self._law is None:
            from scipy.special import fdtrc

            nu, width = self._global.degrees(queries.shape[1]), queries.shape[2]
            f = measured.statistic * ((nu - width + 1) / (nu * width))
            measured.pvalue = torch.as_tensor(fdtrc(width, nu - width + 1, f.numpy()), dtype=torch.float64)
            measured.guarantee, measured.null = "exact", f"F({width}, {nu - width + 1})"
        return measured

    def _metric(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Tensor, int | None]:
        nu = side.degrees(queries.shape[1])
        return (nu / side.reference.eigenvalues).expand(len(queries), -1), nu

    def _slope(self, side: Side, queries: Tensor) -> Tensor:
        return side.weights(queries.shape[1])[None]
