"""Null laws: objects that turn a statistic into a p-value and say what that p-value is worth.

A law is passed to a test by name (``"cube_root"``) or as an object where it has parameters
(``Permutation(count=9_999)``). Each carries its `guarantee` and the smallest p-value it can produce. How the
asymptotic ones fare at finite size is measured, not claimed: see "Realised levels" in the documentation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats.maximum import maximum_sf, normal_sf
from arht.stats.results import Guarantee

__all__ = [
    "NULL_NAMES",
    "AsymptoticLaw",
    "ChiSquare",
    "Conformal",
    "CubeRoot",
    "Normal",
    "NullLaw",
    "Permutation",
    "SquareRoot",
    "as_null",
]


class NullLaw:
    """A law under the null hypothesis."""

    name: ClassVar[str]
    guarantee: ClassVar[Guarantee]

    @property
    def smallest_pvalue(self) -> float:
        """No p-value of this law is below this number."""
        return 0.0


class AsymptoticLaw(NullLaw, ABC):
    """A law of RHT / P with mean Θ₁ and variance 2 Θ₂ / P, each as P and ν grow at a fixed ratio.

    `standardise` gives the scale on which priors compete (the largest wins); `tail` the joint upper tail.
    """

    guarantee: ClassVar[Guarantee] = "asymptotic"

    @abstractmethod
    def standardise(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:
        """Standardised statistic of RHT (same shape as its arguments)."""

    def single(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:
        """P-value of RHT at one given ridge."""
        return normal_sf(self.standardise(rht, theta1, theta2, dimension))

    def composite(
        self,
        largest: Float[Tensor, "*B"],
        theta1: Float[Tensor, "*B M"],
        theta2: Float[Tensor, "*B M"],
        dimension: int,
        correlation: Float[Tensor, "*B M M"],
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """P(the largest of M correlated standardised statistics exceeds `largest`), and its relative error."""
        return maximum_sf(largest[..., None].expand_as(theta1).contiguous(), correlation)


@dataclass(frozen=True, slots=True)
class Normal(AsymptoticLaw):
    """√P (RHT/P - Θ₁) / √(2Θ₂) is standard normal (the paper's equation 4).

    Asymptotic. Ignores that RHT is skewed to the right, so small p-values come too often: at level 1 % the
    realised level is typically two to five times that where P and n are a few dozen (see the level table).
    """

    name: ClassVar[str] = "normal"

    def standardise(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:  # noqa: D102
        return dimension**0.5 * (rht / dimension - theta1) / (2 * theta2).sqrt()


@dataclass(frozen=True, slots=True)
class CubeRoot(AsymptoticLaw):
    """(RHT/P)^{1/3} is normal with the delta method's mean and variance: removes most of the skewness.

    ``√P ((RHT/P)^{1/3} - Θ₁^{1/3}) / (√(2Θ₂) Θ₁^{-2/3} / 3)`` is standard normal. Asymptotic; the default. Nearest
    to its level at 1 % among the asymptotic laws; conservative for elliptical rows with heavy tails.
    """

    name: ClassVar[str] = "cube_root"

    def standardise(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:  # noqa: D102
        shift = (rht / dimension).clamp_min(0).pow(1 / 3) - theta1.pow(1 / 3)
        return 3 * dimension**0.5 * shift * theta1.pow(2 / 3) / (2 * theta2).sqrt()


@dataclass(frozen=True, slots=True)
class SquareRoot(AsymptoticLaw):
    """√(RHT/P) is normal with the delta method's mean and variance: removes part of the skewness.

    ``√P (√(RHT/P) - √Θ₁) / (√(2Θ₂) / (2√Θ₁))`` is standard normal. Asymptotic.
    """

    name: ClassVar[str] = "square_root"

    def standardise(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:  # noqa: D102
        shift = (rht / dimension).clamp_min(0).sqrt() - theta1.sqrt()
        return 2 * dimension**0.5 * shift * theta1.sqrt() / (2 * theta2).sqrt()


@dataclass(frozen=True, slots=True)
class ChiSquare(AsymptoticLaw):
    """RHT is a χ² of d degrees of freedom times a = Θ₂/Θ₁, matched in mean and variance: d = P Θ₁² / Θ₂.

    Asymptotic. `degrees="matched"` takes d as it is; ``"ceiling"`` rounds it up, as the CRAN package ARHT does,
    and makes p-values a little larger. Several priors are joined by a Gaussian copula with the estimated correlation
    (`joint="copula"`); ``"shared"`` is the CRAN package's way, kept for comparison and for exactly three priors:
    the three χ² share ⌊ρ√(dᵢdⱼ)⌋ of their unit components, which fits only where the degrees of freedom are large
    and alike, and otherwise widens the smallest of them.
    """

    degrees: Literal["matched", "ceiling"] = "matched"
    joint: Literal["copula", "shared"] = "copula"
    name: ClassVar[str] = "chi_square"

    def standardise(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:  # noqa: D102
        return Normal().standardise(rht, theta1, theta2, dimension)

    def _degrees(self, theta1: Tensor, theta2: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
        exact = dimension * theta1.square() / theta2
        return exact, exact.ceil() if self.degrees == "ceiling" else exact

    def single(self, rht: Tensor, theta1: Tensor, theta2: Tensor, dimension: int) -> Tensor:  # noqa: D102
        _, degrees = self._degrees(theta1, theta2, dimension)
        return chi_square_sf(rht * theta1 / theta2, degrees)

    def composite(  # noqa: D102
        self, largest: Tensor, theta1: Tensor, theta2: Tensor, dimension: int, correlation: Tensor
    ) -> tuple[Tensor, Tensor]:
        exact, degrees = self._degrees(theta1, theta2, dimension)
        bounds = exact + largest[..., None] * (2 * exact).sqrt()
        if self.joint == "shared":
            return _shared_components(bounds, exact.ceil(), correlation)
        from scipy.special import ndtri

        tails = chi_square_sf(bounds, degrees)
        normals = torch.from_numpy(-ndtri(tails.clamp(1e-305, 1 - 1e-16).cpu().numpy())).to(tails)
        return maximum_sf(normals, correlation)


def chi_square_sf(x: Tensor, degrees: Tensor) -> Tensor:
    """P(χ²_d > x), accurate in the tail; 1 where x is negative."""
    from scipy.special import gammaincc

    value = gammaincc((degrees / 2).cpu().numpy(), (x.clamp_min(0) / 2).cpu().numpy())
    return torch.as_tensor(np.asarray(value), dtype=torch.float64, device=x.device)


def _shared_components(
    bounds: Tensor, degrees: Tensor, correlation: Tensor, *, slack: float = 1e-9
) -> tuple[Tensor, Tensor]:
    """P(Xᵢ > boundᵢ for some i), the Xᵢ sums of χ² that overlap in whole degrees of freedom.

    Where the product in ⌊ρ√(dᵢdⱼ)⌋ is a whole number (equal ridges: ρ = 1), rounding must not take one away: what is
    within `slack` below a whole number counts as it. With a negative `slack` the whole number itself is taken down.
    """
    if bounds.shape[-1] != 3:
        raise InputError(
            f'ChiSquare: joint="shared" is defined for three priors; got {bounds.shape[-1]}. Use joint="copula".'
        )
    from scipy.stats import chi2, qmc

    rows = bounds.reshape(-1, 3).cpu().numpy()
    result = np.empty((len(rows), 2))
    cube = np.stack([qmc.Sobol(6, scramble=True, rng=s).random(4096) for s in range(8)])
    for row, (bound, d, rho) in enumerate(
        zip(
            rows,
            degrees.reshape(-1, 3).cpu().numpy(),
            correlation.reshape(-1, 3, 3).cpu().numpy(),
            strict=True,
        )
    ):
        pairs = {(i, j): np.floor(rho[i, j] * np.sqrt(d[i] * d[j]) + slack) for i, j in ((0, 1), (0, 2), (1, 2))}
        common = max(min(pairs.values()), 0.0)
        extra = {pair: max(count - common, 0.0) for pair, count in pairs.items()}
        own = [max(d[i] - common - sum(c for pair, c in extra.items() if i in pair), 0.0) for i in range(3)]
        parts = [common, *extra.values()]
        draws = [chi2.ppf(cube[..., k], n) if n > 0 else 0.0 for k, n in enumerate(parts)]
        below = np.ones(cube.shape[:2])
        for i in range(3):
            shared = draws[0] + sum(draws[1 + k] for k, pair in enumerate(extra) if i in pair)
            rest = bound[i] - shared
            below = below * (chi2.cdf(rest, own[i]) if own[i] > 0 else rest >= 0)
        estimates = 1 - below.mean(1)
        mean = estimates.mean()
        result[row] = mean, 3 * estimates.std(ddof=1) / 8**0.5 / mean if mean > 0 else 0.0
    both = torch.from_numpy(result).to(bounds)
    return both[:, 0].reshape(bounds.shape[:-1]), both[:, 1].reshape(bounds.shape[:-1])


@dataclass(frozen=True, slots=True)
class Permutation(NullLaw):
    """The statistic's own distribution over relabellings of the rows (two samples) or sign flips (one sample).

    Exact: P(p ≤ level) ≤ level at every size if the rows are exchangeable between the samples under the null
    (one sample: if x - mean is symmetric about zero). All relabellings are used where there are at most `count`
    of them, otherwise `count` random ones beside the observed one, p = (1 + #{T_b ≥ T}) / (1 + count), so
    1 / (1 + count) is the smallest p-value.
    """

    count: int = 1_999
    generator: torch.Generator | None = field(default=None, kw_only=True, repr=False)
    name: ClassVar[str] = "permutation"
    guarantee: ClassVar[Guarantee] = "exact"

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise InputError(
                f"Permutation: count must be a whole number >= 1; got {self.count!r}. "
                "For decisions at 5 % take 999 or more."
            )

    @property
    def smallest_pvalue(self) -> float:
        """1 / (1 + count)."""
        return 1 / (1 + self.count)


class Conformal(NullLaw):
    """The rank of a score among held-out scores of in-distribution data.

    Guarantee: conformal. With n calibration scores and a query exchangeable with them, whatever the law,

        upper:      p = (1 + #{calibration ≥ score}) / (n + 1)
        two_sided:  p = min(1, 2 · min(upper, lower)),  lower = (1 + #{calibration ≤ score}) / (n + 1)

    satisfies P(p ≤ level) ≤ level, on average over calibration sets. Given one calibration set the realised
    level spreads around the nominal one with standard deviation about √(level (1 - level) / n).
    """

    name: ClassVar[str] = "conformal"
    guarantee: ClassVar[Guarantee] = "conformal"

    def __init__(self, scores: Any, *, tail: Literal["upper", "two_sided"] = "upper") -> None:
        values = torch.as_tensor(scores, dtype=torch.float64).flatten()
        if values.numel() == 0 or not bool(torch.isfinite(values).all()):
            raise InputError(
                f"Conformal: needs at least one calibration score, all finite; got n={values.numel()} with "
                f"{int((~torch.isfinite(values)).sum())} not finite. Score held-out in-distribution data first."
            )
        if tail not in ("upper", "two_sided"):
            raise InputError(f"Conformal: tail must be upper or two_sided; got {tail!r}. Choose one of these.")
        self.scores = values.sort().values
        self.tail = tail

    @property
    def smallest_pvalue(self) -> float:
        """1 / (n + 1), or twice that for two tails."""
        return min(1.0, (1 if self.tail == "upper" else 2) / (self.scores.numel() + 1))

    def pvalue(self, scores: Any) -> Any:
        """P-value of each score; NaN for a NaN score. Same kind of array out as in."""
        from arht.stats._checks import restorer

        value = torch.as_tensor(scores, dtype=torch.float64)
        n = self.scores.numel()
        table = self.scores.to(value.device)
        flat = value.reshape(-1).contiguous()
        above = n - torch.searchsorted(table, flat, side="left")
        p = (1.0 + above.to(torch.float64)) / (n + 1)
        if self.tail == "two_sided":
            lower = (1.0 + torch.searchsorted(table, flat, side="right").to(torch.float64)) / (n + 1)
            p = (2 * torch.minimum(p, lower)).clamp(max=1.0)
        p = torch.where(flat.isnan(), torch.nan, p).reshape(value.shape)
        return restorer(scores)(p)

    def __repr__(self) -> str:
        return f"Conformal(n={self.scores.numel()}, tail={self.tail!r})"


_BY_NAME: dict[str, type[NullLaw]] = {law.name: law for law in (Normal, CubeRoot, SquareRoot, ChiSquare, Permutation)}
NULL_NAMES = tuple(_BY_NAME)


def as_null(who: str, null: str | NullLaw) -> NullLaw:
    """The law of that name with its default parameters, or the law itself."""
    if isinstance(null, NullLaw):
        return null
    if isinstance(null, str) and null in _BY_NAME:
        return _BY_NAME[null]()
    raise InputError(
        f"{who}: null must be one of normal, cube_root, square_root, chi_square, permutation or a law from "
        f"arht.stats.nulls; got {null!r}."
    )
