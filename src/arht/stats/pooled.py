"""One sample or two, reduced to what every test here is a function of: a spectrum and a projected difference."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats.spectrum import Spectrum

__all__ = ["Pooled", "pool"]


@dataclass(frozen=True, slots=True)
class Pooled:
    """Eigenvalues of the pooled covariance S and the squared mean difference along its eigenvectors."""

    spectrum: Spectrum
    projections: Float[Tensor, " M"]
    """c (vᵢᵀd)², with c = n1 n2 / (n1 + n2), or n1 for one sample."""
    remainder: Float[Tensor, ""]
    """c ‖d‖² outside the span of S; zero where P ≤ ν."""

    def rht(self, ridges: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """RHT(λ) = c dᵀ(S + λI)⁻¹d (the paper's equation 3) at each ridge."""
        within = (self.projections / (self.spectrum.eigenvalues + ridges[:, None])).sum(-1)
        return within + self.remainder / ridges


def centred_rows(
    x: Float[Tensor, "n1 P"], y: Float[Tensor, "n2 P"] | None, mean: Float[Tensor, " P"]
) -> tuple[Tensor, Tensor, int, float]:
    """Rows about their own sample's mean, the mean difference d, ν and c.

    Two samples: ν = n1 + n2 - 2 (the paper's equation 1). One sample against `mean`: ν = n1 - 1, c = n1.
    """
    n1, centre = x.shape[0], x.mean(0)
    if y is None:
        return x - centre, centre - mean, n1 - 1, float(n1)
    n2, other = y.shape[0], y.mean(0)
    rows = torch.cat([x - centre, y - other])
    return rows, centre - other - mean, n1 + n2 - 2, n1 * n2 / (n1 + n2)


def pool(who: str, x: Tensor, y: Tensor | None, mean: Tensor) -> Pooled:
    """`Pooled` of checked samples, by singular values of the centred rows: S itself is never formed.

    The square roots of the eigenvalues are what is computed, so a spectrum that spans twelve orders of magnitude
    keeps its small end; rank beyond ν cannot appear as noise.
    """
    rows, difference, degrees, weight = centred_rows(x, y, mean)
    scaled = rows / degrees**0.5
    if scaled.shape[0] > scaled.shape[1]:
        scaled = torch.linalg.qr(scaled, mode="r").R
    _, singular, basis = torch.linalg.svd(scaled, full_matrices=False)
    keep = min(x.shape[1], degrees)
    eigenvalues, basis = singular[:keep].square(), basis[:keep]
    if not bool(eigenvalues[0] > 0):
        raise InputError(
            f"{who}: every column is constant within the samples. "
            "The pooled covariance is zero, so there is no scale to compare with; check the input."
        )
    along = basis @ difference
    outside = difference - basis.T @ along if keep < x.shape[1] else torch.zeros_like(difference)
    return Pooled(Spectrum(eigenvalues, x.shape[1], degrees), weight * along.square(), weight * outside.square().sum())
