"""The adaptable regularised Hotelling test: the ridge chosen by the data, several priors combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats._checks import as_mean, as_real, as_ridges, as_sample, check_pair, restorer
from arht.stats.nulls import AsymptoticLaw, Conformal, CubeRoot, NullLaw, Permutation, as_null
from arht.stats.permutation import PermutedSpectrum, permutation_pvalue
from arht.stats.pooled import pool
from arht.stats.results import Outcome, PriorResults, TestResult
from arht.stats.spectrum import default_ridges, population_moments, prior_scores, thetas_from_sums

__all__ = ["Priors", "arht_test", "as_priors"]

Priors = Sequence[Sequence[float]] | Sequence[float]
"""One prior ξ = (ξ₀, ξ₁, ...), or several."""


def arht_test(
    x: Any,
    y: Any = None,
    *,
    ridges: Any = None,
    priors: Priors = ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    null: str | NullLaw = "cube_root",
    mean: Any = None,
) -> TestResult:
    """Test equal means by a regularised T² whose ridge is chosen by the data (Li, Aue, Paul, Peng and Wang 2020).

    Null hypothesis: μ₁ - μ₂ = `mean` (default 0); with `y` absent, μ₁ = `mean`. A prior ξ says how the alternative
    lies: the mean difference has covariance proportional to ξ₀ I + ξ₁ Σ + ξ₂ Σ² + ...; the ridge that maximises
    the asymptotic power against it maximises ::

        Q(λ; ξ) = Σ_k ξ_k ρ_k(-λ) / √(2 γ Θ₂(λ)),    ρ₀ = m_F(-λ),  ρ₁ = Θ₁(λ),
                                                      ρ_{k+1} = (1 + γΘ₁)(H_k - λρ_k),  H_k ≈ tr Σᵏ / P

    and RHT is standardised there as in `rht_test`. Q depends on the covariance alone, so choosing by it costs no
    level asymptotically. Several priors compete by their standardised statistics; the largest is the test's, and
    its p-value is that of the largest of as many correlated normals, with the correlation of RHT between the
    chosen ridges estimated (see `arht.stats.spectrum`). H_k beyond the first is estimated after Bai, Chen and
    Yao (2010).

    The asymptotic laws hold as P and ν grow at a fixed ratio; they are poor below about 20 degrees of freedom and
    for strongly spiked spectra. ``null="permutation"`` repeats the whole procedure, choice of ridge included, on
    every relabelling and is exact.

    Parameters
    ----------
    x, y : array-like [n1, P], [n2, P]
        Rows are observations. Arrays or tensors; the result has the same kind.
    ridges : list of float, optional
        The grid; by default 200 ridges, log-spaced from a hundredth of the mean eigenvalue of S to 20 times its
        largest. The paper's own grid is ``[λ₀, 5 λ₀, 10 λ₀]``.
    priors : one or several vectors of weights
        ``(0, 1, 0)`` is the paper's; the default tries I, Σ and Σ² and combines them.
    null, mean
        As in `rht_test`.

    Returns
    -------
    TestResult
        `statistic` and `score` are the largest standardised RHT, `ridge`, `theta1` and `theta2` belong to it;
        `priors` has each prior's own, and their correlation.

    Examples
    --------
    >>> import numpy as np, arht
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(30, 100)), rng.normal(0.5, 1.0, size=(20, 100))
    >>> result = arht.arht_test(x, y)
    >>> bool(result.pvalue < 0.001), result.priors.ridge.shape
    (True, (3,))
    """
    who = "arht_test"
    law = as_null(who, null)
    weights = as_priors(who, priors)
    first = as_sample(who, "x", x)
    second = None if y is None else as_sample(who, "y", y).to(first.device)
    check_pair(who, first, second)
    null_mean = as_mean(who, mean, first)
    grid = None if ridges is None else as_ridges(who, ridges).to(first.device)
    pooled = pool(who, first, second, null_mean)
    spectrum, width = pooled.spectrum, first.shape[1]
    if grid is None:
        eigenvalues = spectrum.eigenvalues
        grid = default_ridges(eigenvalues.max(), eigenvalues.sum() / width, device=first.device)
    theta1, theta2 = spectrum.thetas(grid)
    moments = population_moments(spectrum.power_sums(max(max(map(len, weights)) - 2, 1)), spectrum.ratio)
    q = prior_scores(weights, grid, spectrum.stieltjes(grid), theta1, theta2, moments, spectrum.ratio)
    best = q.argmax(-1)
    chosen, theta1, theta2 = grid[best], theta1[best], theta2[best]
    rht = pooled.rht(chosen)
    scale = law if isinstance(law, AsymptoticLaw) else CubeRoot()
    standard = scale.standardise(rht, theta1, theta2, width)
    correlation = spectrum.correlation(chosen)
    ok = bool(torch.isfinite(standard).all())
    largest, winner = standard.max(-1)
    smallest, error = law.smallest_pvalue, 0.0
    if not ok:
        pvalue = torch.tensor(torch.nan, dtype=torch.float64)
    elif isinstance(law, AsymptoticLaw):
        if len(weights) == 1:
            pvalue = law.single(rht, theta1, theta2, width)[0]
        else:
            pvalue, relative = law.composite(largest, theta1, theta2, width, correlation)
            error = float(relative)
    elif isinstance(law, Permutation):
        statistic = _PermutedStatistic(weights, grid, width, spectrum.degrees)
        p, smallest = permutation_pvalue(first, second, null_mean, grid, law, statistic)
        pvalue = torch.tensor(p, dtype=torch.float64)
    elif isinstance(law, Conformal):
        pvalue = law.pvalue(largest)
    else:
        raise InputError(f"{who}: the law {law!r} does not say how to compute a p-value of ARHT.")
    back = restorer(x, y)
    return TestResult(
        method="arht",
        statistic=back(largest),
        score=back(largest),
        pvalue=back(pvalue.to(first.device)),
        pvalue_error=error,
        ridge=back(chosen[winner]),
        theta1=back(theta1[winner]),
        theta2=back(theta2[winner]),
        guarantee=law.guarantee,
        null=repr(law),
        smallest_pvalue=smallest,
        outcome=back(torch.tensor(int(Outcome.OK if ok else Outcome.DEGENERATE), dtype=torch.int8)),
        priors=PriorResults(
            ridge=back(chosen),
            statistic=back(standard),
            pvalue=back(scale.single(rht, theta1, theta2, width)),
            theta1=back(theta1),
            theta2=back(theta2),
            correlation=back(correlation),
        ),
    )


class _PermutedStatistic:
    """The largest standardised RHT over the priors, with the ridge chosen anew for each relabelling."""

    def __init__(self, priors: list[list[float]], ridges: Tensor, width: int, degrees: int) -> None:
        if max(map(len, priors)) > 3:
            raise InputError(
                "arht_test: the permutation null takes priors of up to three weights (I, Σ, Σ²); got one of "
                f"{max(map(len, priors))}. Shorten the prior or use an asymptotic null."
            )
        self.priors, self.ridges, self.width, self.degrees = priors, ridges, width, degrees

    def __call__(self, spectra: PermutedSpectrum) -> Float[Tensor, " B"]:
        theta1, theta2 = thetas_from_sums(spectra.shrunk, spectra.shrunk2, self.width, self.degrees)
        stieltjes = (self.width - spectra.shrunk) / (self.width * self.ridges)
        mean = (spectra.trace / self.width)[:, None]
        q = prior_scores(
            self.priors, self.ridges, stieltjes, theta1, theta2, mean, self.width / self.degrees
        )  # [B, M, R]
        standard = CubeRoot().standardise(spectra.rht, theta1, theta2, self.width)  # [B, R]
        return standard.gather(-1, q.argmax(-1)).amax(-1)


def as_priors(who: str, priors: Priors) -> list[list[float]]:
    """Priors as lists of weights: non-negative, finite, not all zero; a bare vector is one prior."""
    entries: list[Any] = list(priors)
    if entries and all(not hasattr(entry, "__len__") for entry in entries):
        entries = [entries]
    if not entries:
        raise InputError(f"{who}: priors must hold at least one vector of weights; got none. Try (0, 1, 0).")
    result = []
    for entry in entries:
        vector = as_real(who, "priors", entry)
        if vector.ndim != 1 or vector.numel() == 0:
            raise InputError(f"{who}: each prior must be a vector of weights; got {entry!r}. Try (0, 1, 0).")
        if not bool((torch.isfinite(vector) & (vector >= 0)).all()) or not bool(vector.sum() > 0):
            raise InputError(
                f"{who}: a prior's weights must be finite, not negative and not all zero; got {tuple(entry)}. "
                "They are the weights of I, Σ, Σ², ... in the covariance of the mean difference."
            )
        result.append([float(weight) for weight in vector])
    return result
