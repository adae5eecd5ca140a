"""The reference, factored once: the one place that diagonalises its covariance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats.moments import Moments
from arht.stats.spectrum import default_ridges

__all__ = ["Reference"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference sample as its size, mean and the eigendecomposition of its scatter.

    Every query against it is then rotated into `basis`, where the reference's part of the pooled covariance is
    diagonal and only the query's own K draws remain to be dealt with.
    """

    n: int
    mean: Float[Tensor, " P"]
    basis: Float[Tensor, "P P"]
    """Eigenvectors in columns, largest eigenvalue first."""
    eigenvalues: Float[Tensor, " P"]
    """Eigenvalues of the scatter (not divided by anything), largest first, none negative."""
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `arht_scores` made of it and can use again; lives as long as the reference."""

    @classmethod
    def of(cls, source: Moments | Any) -> Reference:
        """From `Moments`, or from rows [n, P] or draws [B, K, P] by way of their moments."""
        moments = source if isinstance(source, Moments) else Moments.of(source)
        if moments.n < 2:
            raise InputError(
                f"Reference.of: needs at least 2 rows; got n={moments.n}. No covariance can be estimated; "
                "give more rows."
            )
        values, vectors = torch.linalg.eigh(moments.scatter)
        values = values.flip(0).clamp_min(0)
        values[moments.n - 1 :] = 0.0  # rank cannot exceed n - 1
        if not bool(values[0] > 0):
            raise InputError(
                "Reference.of: every column is constant within the reference. "
                "The covariance is zero, so there is no scale to compare with; check the input."
            )
        return cls(moments.n, moments.mean, vectors.flip(1).contiguous(), values)

    @property
    def width(self) -> int:
        """P, the number of columns."""
        return self.mean.shape[0]

    def default_ridges(self, count: int = 200) -> Float[Tensor, " R"]:
        """`count` ridges from a hundredth of the covariance's mean eigenvalue to 20 times its largest."""
        covariance = self.eigenvalues / (self.n - 1)
        return default_ridges(covariance[0], covariance.mean(), count, device=self.mean.device)

    def to(self, device: torch.device | str) -> Reference:
        """The same reference on another device."""
        return Reference(self.n, self.mean.to(device), self.basis.to(device), self.eigenvalues.to(device))
