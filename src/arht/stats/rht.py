"""The regularised Hotelling test at a ridge that is given."""

from __future__ import annotations

from typing import Any

import torch

from arht.errors import InputError
from arht.stats._checks import as_mean, as_ridges, as_sample, check_pair, restorer
from arht.stats.nulls import AsymptoticLaw, Conformal, CubeRoot, NullLaw, Permutation, as_null
from arht.stats.permutation import permutation_pvalue
from arht.stats.pooled import pool
from arht.stats.results import Outcome, TestResult

__all__ = ["rht_test"]


def rht_test(x: Any, y: Any = None, *, ridge: float, null: str | NullLaw = "cube_root", mean: Any = None) -> TestResult:
    """Test equal means with a regularised T² (Chen, Paul, Prentice and Wang 2011): any number of columns.

    Null hypothesis: μ₁ - μ₂ = `mean` (default 0); with `y` absent, μ₁ = `mean`. With d, S, ν and c as in
    `hotelling_test`, γ = P/ν and m_F(-λ) = tr(S + λI)⁻¹/P::

        RHT(λ) = c dᵀ (S + λI)⁻¹ d                                                    (equation 3)
        Θ₁ = (1 - λ m_F) / (1 - γ(1 - λ m_F))
        Θ₂ = (1 - λ m_F) / (1 - γ(1 - λ m_F))³ - λ (m_F - λ m'_F) / (1 - γ(1 - λ m_F))⁴
        standardised: √P (RHT/P - Θ₁) / √(2 Θ₂)                                       (equation 4)

    The asymptotic laws hold as P and ν grow at a fixed ratio, for rows with a common covariance and finite fourth
    moments. They are poor below about 20 degrees of freedom and for strongly spiked spectra (few effective
    dimensions); use ``null="permutation"`` there, which is exact.

    Parameters
    ----------
    x, y : array-like [n1, P], [n2, P]
        Rows are observations. Arrays or tensors; the result has the same kind.
    ridge : float
        λ > 0, in units of the covariance; 0.01 times the mean eigenvalue is a usual start.
    null : str or law
        ``"cube_root"`` (default), ``"normal"``, ``"square_root"``, ``"chi_square"``, ``"permutation"``, or an
        object from `arht.stats.nulls`.
    mean : number or [P], optional
        Mean (difference) under the null hypothesis.

    Returns
    -------
    TestResult
        `statistic` is RHT(λ), `score` its standardised form under the null law.

    Examples
    --------
    >>> import numpy as np, arht
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(30, 100)), rng.normal(0.5, 1.0, size=(20, 100))
    >>> result = arht.rht_test(x, y, ridge=1.0)
    >>> bool(result.pvalue < 0.001), result.guarantee
    (True, 'asymptotic')
    """
    who = "rht_test"
    law = as_null(who, null)
    first = as_sample(who, "x", x)
    second = None if y is None else as_sample(who, "y", y).to(first.device)
    check_pair(who, first, second)
    null_mean = as_mean(who, mean, first)
    ridges = as_ridges(who, ridge).to(first.device)
    if ridges.numel() != 1:
        raise InputError(
            f"{who}: ridge must be one number; got {ridges.numel()} of them. arht_test chooses among several ridges."
        )
    pooled = pool(who, first, second, null_mean)
    width = first.shape[1]
    theta1, theta2 = (theta[0] for theta in pooled.spectrum.thetas(ridges))
    statistic = pooled.rht(ridges)[0]
    outcome = Outcome.OK if bool(theta2 > 0) else Outcome.DEGENERATE
    smallest = law.smallest_pvalue
    if isinstance(law, AsymptoticLaw):
        score = law.standardise(statistic, theta1, theta2, width)
        pvalue = law.single(statistic, theta1, theta2, width)
    else:
        score = CubeRoot().standardise(statistic, theta1, theta2, width)
        if isinstance(law, Permutation):
            p, smallest = permutation_pvalue(first, second, null_mean, ridges, law, lambda s: s.rht[:, 0])
            pvalue, outcome = torch.as_tensor(p, dtype=torch.float64), Outcome.OK
        elif isinstance(law, Conformal):
            pvalue = law.pvalue(score)
        else:
            raise InputError(f"{who}: the law {law!r} does not say how to compute a p-value of RHT.")
    if outcome != Outcome.OK:
        pvalue = torch.full_like(statistic, torch.nan)
    back = restorer(x, y)
    return TestResult(
        method="rht",
        statistic=back(statistic),
        score=back(score),
        pvalue=back(pvalue.to(statistic.device)),
        pvalue_error=0.0,
        ridge=back(ridges[0]),
        theta1=back(theta1),
        theta2=back(theta2),
        guarantee=law.guarantee,
        null=repr(law),
        smallest_pvalue=smallest,
        outcome=back(torch.tensor(int(outcome), dtype=torch.int8)),
    )
