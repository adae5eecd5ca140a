"""Mahalanobis distance as a detector: to the global mean, or to the nearest class."""

from __future__ import annotations

import torch

from arht._shapes import Tensor
from arht.detectors.base import Tail
from arht.detectors.embedding import Against, EmbeddingDetector, Side
from arht.detectors.measured import Measured
from arht.errors import InputError

__all__ = ["MahalanobisDetector"]


class MahalanobisDetector(EmbeddingDetector):
    """The squared Mahalanobis distance of each query's mean embedding.

    (x̄ - μ)'(Σ + ridge I)⁻¹(x̄ - μ), x̄ the mean over the draws. Unlike the T² tests it knows nothing of how the draws
    scatter. Per class (Lee et al. 2018) with the pooled within-class covariance; relative (Ren et al. 2021) minus the
    global distance.

    Parameters
    ----------
    reference : {"class", "global", "relative"}
        As in `EmbeddingDetector`; ``"class"`` needs labels.
    ridge : float
        Added to the covariance's diagonal; 0 needs a covariance of full rank.
    tail, combine, keep
        As in `EmbeddingDetector`.
    """

    method = "mahalanobis"

    def __init__(
        self,
        *,
        reference: Against = "global",
        ridge: float = 0.0,
        tail: Tail = "upper",
        combine: str = "fisher",
        keep: int = 256,
    ) -> None:
        super().__init__(reference=reference, tail=tail, combine=combine, keep=keep)
        self.ridge = ridge
        if not (isinstance(ridge, int | float) and 0 <= ridge < float("inf")):
            raise InputError(f"MahalanobisDetector: ridge must be a finite number >= 0; got {ridge!r}.")

    def _accept(self, side: Side) -> None:
        values, n = side.reference.eigenvalues, side.reference.n
        floor = values[0] * max(n, side.reference.width) * torch.finfo(torch.float64).eps
        if self.ridge == 0 and not bool(values[-1] > floor):
            raise InputError(
                f"MahalanobisDetector: the reference covariance must have full rank P={side.reference.width}; got "
                f"rank {int((values > floor).sum())} from n={n} rows. Set a ridge, give more rows or drop redundant "
                "columns."
            )

    def _inverse(self, side: Side) -> Tensor:
        return 1 / (side.reference.eigenvalues / (side.reference.n - 1) + self.ridge)

    def _values(self, side: Side, queries: Tensor) -> Tensor:
        centre = queries[:, 0] if queries.shape[1] == 1 else queries.to(torch.float64).mean(1)
        return side.plain(centre, self._inverse(side).sqrt())

    def _metric(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Tensor, int | None]:
        return self._inverse(side).expand(len(queries), -1), None

    def _slope(self, side: Side, queries: Tensor) -> Tensor:
        return torch.ones(1, len(side.counts), dtype=torch.float64)
