"""Hotelling's T²: the exact test where there are more rows than columns."""

from __future__ import annotations

from typing import Any

import torch

from arht.errors import InputError
from arht.stats._checks import as_mean, as_sample, check_pair, restorer
from arht.stats.pooled import centred_rows
from arht.stats.results import Outcome, TestResult

__all__ = ["hotelling_test"]


def hotelling_test(x: Any, y: Any = None, *, mean: Any = None) -> TestResult:
    """Test that two samples have the same mean (or means `mean` apart), or that one sample has mean `mean`.

    Null hypothesis: μ₁ - μ₂ = `mean` (default 0); with `y` absent, μ₁ = `mean`. With d the mean difference, S the
    pooled covariance on ν = n1 + n2 - 2 degrees of freedom (one sample: n1 - 1) and c = n1 n2 / (n1 + n2) (one
    sample: n1)::

        T² = c dᵀ S⁻¹ d,     F = T² (ν - P + 1) / (ν P)  ~  F(P, ν - P + 1)

    The law is exact at every size for Gaussian rows with a common covariance; it is the usual t-test (squared)
    at P = 1. It does not exist for P > ν, and close below that it has little power: use `rht_test` or `arht_test`
    there. (The paper's equation 2 prints the one-sample factor for two samples; see "Differences from the paper".)

    Parameters
    ----------
    x, y : array-like [n1, P], [n2, P]
        Rows are observations. Arrays or tensors; the result has the same kind.
    mean : number or [P], optional
        Mean (difference) under the null hypothesis.

    Returns
    -------
    TestResult
        `statistic` and `score` are T²; `guarantee` is ``"exact"``.

    Examples
    --------
    >>> import numpy as np, arht
    >>> rng = np.random.default_rng(0)
    >>> result = arht.hotelling_test(rng.normal(size=(40, 3)), rng.normal(1.0, size=(30, 3)))
    >>> bool(result.pvalue < 1e-5), result.guarantee
    (True, 'exact')
    """
    who = "hotelling_test"
    first = as_sample(who, "x", x)
    second = None if y is None else as_sample(who, "y", y).to(first.device)
    check_pair(who, first, second)
    null_mean = as_mean(who, mean, first)
    rows, difference, degrees, weight = centred_rows(first, second, null_mean)
    width = first.shape[1]
    if width > degrees:
        sizes = f"n1={first.shape[0]}" + ("" if second is None else f", n2={second.shape[0]}")
        need, noun = ("P < n1", "covariance") if second is None else ("P < n1 + n2 - 1", "pooled covariance")
        raise InputError(
            f"{who}: needs {need}; got P={width}, {sizes}. The {noun} is singular, so the F law does not exist; "
            "use rht_test with a ridge."
        )
    scale = rows.square().sum(0).sqrt() / degrees**0.5
    constant = (scale <= 1e-14 * rows.new_tensor(1.0) * _magnitude(first, second)).nonzero()
    if len(constant):
        raise InputError(
            f"{who}: column {int(constant[0])} of {width} is constant within the samples. The pooled covariance is "
            "singular, so T² does not exist; drop the column or use rht_test with a ridge."
        )
    # T² ignores any invertible linear map: unit columns first, so that units do not enter the rank decision
    upper = torch.linalg.qr(rows / (scale * degrees**0.5), mode="r").R
    singular = torch.linalg.svdvals(upper)
    if not bool(singular[-1] > singular[0] * width * torch.finfo(torch.float64).eps):
        raise InputError(
            f"{who}: the columns must be linearly independent within the samples; got a pooled covariance of rank "
            f"below P={width}. T² does not exist; drop the redundant columns or use rht_test with a ridge."
        )
    solved = torch.linalg.solve_triangular(upper.T, (difference / scale)[:, None], upper=False)
    t2 = weight * solved.square().sum()
    f = t2 * (degrees - width + 1) / (degrees * width)
    from scipy.special import fdtrc

    pvalue = torch.as_tensor(float(fdtrc(width, degrees - width + 1, float(f))), dtype=torch.float64)
    back = restorer(x, y)
    return TestResult(
        method="hotelling",
        statistic=back(t2),
        score=back(t2),
        pvalue=back(pvalue.to(t2.device)),
        pvalue_error=0.0,
        ridge=None,
        theta1=None,
        theta2=None,
        guarantee="exact",
        null=f"F({width}, {degrees - width + 1})",
        smallest_pvalue=0.0,
        outcome=back(torch.tensor(int(Outcome.OK), dtype=torch.int8)),
    )


def _magnitude(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """Largest absolute entry of each column: what a column's spread is measured against."""
    top = x.abs().amax(0)
    return top if y is None else torch.maximum(top, y.abs().amax(0))
