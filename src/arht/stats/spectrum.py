"""What the null law needs of a sample covariance: functions of its eigenvalues alone.

Everything here rests on one rewriting. With S on ν degrees of freedom, P columns and eigenvalues eᵢ, let
``vᵢ(λ) = λ / (eᵢ + λ)`` over exactly ν entries: the largest min(P, ν) eigenvalues, and ν - P ones where P < ν
(further eigenvalues of S are zero by rank). Then, with ``x = mean(v)``,

    1 - γ(1 - λ m_F(-λ))  =  x
    Θ₁(λ)       =  Σᵢ (1 - vᵢ) / (P x)
    Θ₂(λ, λ')   =  Σᵢ (vᵢ(λ) - x)(vᵢ(λ') - x') / (P x² x'²)

The first two agree with the paper's Θ̂₁ and Θ̂₂ (λ' = λ) identically, not only in the limit, and neither
subtracts near-equal numbers, also where P > ν and λ is small. Θ₂ is seen to be a sum of squares, never
negative, and the null correlation of RHT at two ridges is Pearson's correlation of the two vectors v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from arht._shapes import Float, Tensor

__all__ = ["Spectrum", "default_ridges", "population_moments", "prior_scores", "thetas_from_sums"]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Eigenvalues of one or many pooled covariances S, with their dimension and degrees of freedom."""

    eigenvalues: Float[Tensor, "*B M"]
    """The M = min(P, ν) largest, in any order, none negative."""
    dimension: int
    degrees: int

    @property
    def ratio(self) -> float:
        """γ = P / ν."""
        return self.dimension / self.degrees

    def split(self, rows: int) -> list[Spectrum]:
        """In parts of at most that many (at least one) along the leading axis."""
        parts = self.eigenvalues.split(max(1, rows))
        return [Spectrum(part, self.dimension, self.degrees) for part in parts]

    def _shrinkage(self, ridges: Float[Tensor, "*B R"]) -> tuple[Tensor, Tensor, int]:
        """v [..., R, M], its mean x over ν entries [..., R], and how many further entries are one."""
        ones = max(self.degrees - self.dimension, 0)
        ridge = ridges[..., None]
        v = ridge / (self.eigenvalues[..., None, :] + ridge)
        return v, (v.sum(-1) + ones) / self.degrees, ones

    def thetas(self, ridges: Float[Tensor, "*#B R"]) -> tuple[Tensor, Tensor]:
        """Θ₁(λ) and Θ₂(λ) at each ridge, [..., R]: mean and half the variance, per dimension, of RHT / P · √P."""
        v, x, ones = self._shrinkage(ridges)
        u = (self.eigenvalues[..., None, :] / (self.eigenvalues[..., None, :] + ridges[..., None])).sum(-1)
        squares = (v - x[..., None]).square().sum(-1) + ones * (1 - x).square()
        return u / (self.dimension * x), squares / (self.dimension * x**4)

    def correlation(self, ridges: Float[Tensor, "*#B R"]) -> Float[Tensor, "*#B R R"]:
        """Null correlation of RHT between ridges: Pearson's correlation of the v of one and of the other."""
        v, x, ones = self._shrinkage(ridges)
        centred = v - x[..., None]
        rest = (1 - x) * ones**0.5
        cross = centred @ centred.mT + rest[..., :, None] * rest[..., None, :]
        scale = cross.diagonal(dim1=-2, dim2=-1).sqrt()
        result = cross / (scale[..., :, None] * scale[..., None, :])
        return result.clamp(-1.0, 1.0)

    def stieltjes(self, ridges: Float[Tensor, "*#B R"]) -> Float[Tensor, "*#B R"]:
        """m_F(-λ) = tr(S + λI)⁻¹ / P."""
        zeros = self.dimension - self.eigenvalues.shape[-1]
        inverse = (1 / (self.eigenvalues[..., None, :] + ridges[..., None])).sum(-1)
        return (inverse + zeros / ridges) / self.dimension

    def power_sums(self, order: int) -> Float[Tensor, "*B order"]:
        """tr Sᵏ / P for k = 1 .. order."""
        powers = [self.eigenvalues.pow(k).sum(-1) / self.dimension for k in range(1, order + 1)]
        return torch.stack(powers, -1)


def thetas_from_sums(
    shrunk: Float[Tensor, "*B R"], shrunk2: Float[Tensor, "*B R"], dimension: int, degrees: int
) -> tuple[Float[Tensor, "*B R"], Float[Tensor, "*B R"]]:
    """Θ₁ and Θ₂ where only U = tr S(S + λI)⁻¹ and tr [S(S + λI)⁻¹]² are known, not each eigenvalue.

    The same quantities: x = 1 - U/ν and Σ(v - x)² = tr[·]² - U²/ν. The subtraction at most doubles a relative
    error while ν ≥ 2P, and costs digits only where P > ν and the ridge is small.
    """
    x = 1 - shrunk / degrees
    squares = (shrunk2 - shrunk.square() / degrees).clamp_min(0)
    return shrunk / (dimension * x), squares / (dimension * x**4)


def population_moments(sample_moments: Float[Tensor, "*B order"], ratio: float) -> Float[Tensor, "*B order"]:
    """Consistent estimates of tr Σᵏ / P, k = 1 .. order, from tr Sᵏ / P (Bai, Chen and Yao 2010).

    The Silverstein equation of the companion spectrum, z = -1/s + γ Σ_{k≥1} H_k (-s)^{k-1}, says that γ H_k are
    the free cumulants of a law whose moments are γ tr Sᵏ / P; so the moments are turned into free cumulants,

        m_k = Σ_{j=1}^{k} κ_j · [z^{k-j}] (1 + Σ_i m_i zⁱ)^j ,

    solved for κ_k one order at a time, and divided by γ. Any order works; from about the fifth on the estimates
    are noisy and can come out negative.
    """
    order = sample_moments.shape[-1]
    moments = ratio * sample_moments
    one = torch.ones_like(moments[..., :1])
    series = torch.cat([one, moments], -1)
    powers = [one.new_zeros(series.shape)]  # powers[j] = coefficients of series^j
    powers[0][..., 0] = 1.0
    for _ in range(order):
        powers.append(_product(powers[-1], series))
    cumulants: list[Tensor] = []
    for k in range(1, order + 1):
        known = sum((cumulants[j - 1] * powers[j][..., k - j] for j in range(1, k)), torch.zeros_like(one[..., 0]))
        cumulants.append(moments[..., k - 1] - known)
    return torch.stack(cumulants, -1) / ratio


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Product of two power series, cut at their common length."""
    length = a.shape[-1]
    terms = [(a[..., : k + 1] * b[..., : k + 1].flip(-1)).sum(-1) for k in range(length)]
    return torch.stack(terms, -1)


def prior_scores(
    priors: Sequence[Sequence[float]],
    ridges: Float[Tensor, "*#B R"],
    stieltjes: Float[Tensor, "*#B R"],
    theta1: Float[Tensor, "*#B R"],
    theta2: Float[Tensor, "*#B R"],
    moments: Float[Tensor, "*#B O"],
    ratio: float,
) -> Float[Tensor, "*#B M R"]:
    """Q(λ, γ; ξ) of each prior ξ at each ridge: the ridge of a prior is where its Q is largest.

    Q = Σ_k ξ_k ρ_k(-λ) / √(2 γ Θ₂), with ρ₀ = m_F(-λ), ρ₁ = Θ₁ and, from H_k = tr Σᵏ / P (`moments`, order k in
    entry k - 1, H₀ = 1),

        ρ_{k+1} = (1 + γ Θ₁) (H_k - λ ρ_k)
    """
    order = max(len(prior) for prior in priors)
    scale = 1 + ratio * theta1
    rho = [stieltjes, theta1]
    for k in range(1, order - 1):
        rho.append(scale * (moments[..., k - 1, None] - ridges * rho[k]))
    stacked = torch.stack(rho[:order], -2)
    xi = torch.zeros(len(priors), order, dtype=torch.float64, device=theta1.device)
    for row, prior in enumerate(priors):
        xi[row, : len(prior)] = torch.as_tensor(prior, dtype=torch.float64)
    return (xi @ stacked[..., :, :]) / (2 * ratio * theta2).sqrt()[..., None, :]


def default_ridges(
    largest: Tensor | float, mean: Tensor | float, count: int = 200, device: torch.device | None = None
) -> Tensor:
    """`count` ridges, log-spaced from mean(eigenvalues)/100 to 20 times the largest."""
    low, high = (float(torch.as_tensor(end, dtype=torch.float64).log10()) for end in (mean / 100, 20 * largest))
    return torch.logspace(low, high, count, dtype=torch.float64, device=device)
