"""The tail of the maximum of correlated normals against closed forms, one-factor integrals, and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import owens_t
from scipy.stats import multivariate_normal, norm

from arht.stats.maximum import maximum_sf, normal_sf
from tests.reference.exact import mp


def sf(thresholds, correlation, **options):
    value, error = maximum_sf(
        torch.as_tensor(np.asarray(thresholds, dtype=np.float64)),
        torch.as_tensor(np.asarray(correlation, dtype=np.float64)),
        **options,
    )
    return value.numpy(), error.numpy()


def one_factor(thresholds, loadings):
    """P(some Zᵢ > tᵢ), Zᵢ = aᵢU + √(1 - aᵢ²)Vᵢ: an integral over U alone, whatever the number of them.

    mpmath refines a quadrature until its absolute error is small, so the integrand is divided by the sum of the
    tails, which is of the integral's own size.
    """
    size = mp.fsum(mp.ncdf(-t) for t in thresholds)

    def outside(u):
        some = mp.mpf(0)
        for t, a in zip(thresholds, loadings, strict=True):
            some += (1 - some) * mp.erfc((t - a * u) / mp.sqrt(2 * (1 - mp.mpf(a) ** 2))) / 2
        return mp.npdf(u) * some / size

    top = float(max(thresholds))
    with mp.workdps(18):
        share, error = mp.quad(outside, [-40, -12, -6, -3, 0, 3, 6, top + 3, top + 9, top + 40], error=True)
    assert error < 1e-15 * share
    return size * share


def factor_correlation(loadings):
    a = np.asarray(loadings)
    return np.outer(a, a) + np.diag(1 - a**2)


LOADINGS = [
    (0.9, 0.6),
    (0.95, -0.7),
    (0.9, 0.6, 0.99),
    (0.5, -0.4, 0.8),
    (0.9, 0.6, 0.99, 0.3),
    (0.9, 0.6, -0.5, 0.3, 0.7, 0.8),
]


@pytest.mark.parametrize("loadings", LOADINGS)
@pytest.mark.parametrize("level", [-1.0, 2.0, 11.5])
def test_one_factor_and_the_stated_error(loadings, level):
    """From 0.99 down to 1e-30, relatively; two and three normals to 1e-9, more of them to their stated error."""
    thresholds = level + np.linspace(0, 0.3, len(loadings))
    truth = float(one_factor([mp.mpf(float(t)) for t in thresholds], loadings))
    value, error = sf(thresholds, factor_correlation(loadings))
    assert abs(value / truth - 1) <= error
    assert error < (1e-9 if len(loadings) <= 3 else 2e-3)
    if level > 11:
        assert truth < 1e-28


@given(st.floats(-3, 6), st.floats(-3, 6), st.floats(-0.999, 0.999))
def test_two_by_owens_t(h, k, rho):
    """1 - Φ₂(h, k; ρ) in the closed form of Owen (1956)."""
    h, k = (v if abs(v) > 1e-6 else 1e-6 for v in (h, k))
    root = np.sqrt(1 - rho**2)
    both = (
        (norm.cdf(h) + norm.cdf(k)) / 2
        - owens_t(h, (k - rho * h) / (h * root))
        - owens_t(k, (h - rho * k) / (k * root))
    )
    both -= 0.5 * (h * k < 0)
    value, error = sf([h, k], [[1, rho], [rho, 1]])
    assert value == pytest.approx(1 - both, abs=2e-13, rel=1e-11)
    assert error < 1e-9


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_correlation_by_scipy(count, seed):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((count, count))
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    correlation, thresholds = covariance / np.outer(scale, scale), rng.normal(0.8, 0.5, count)
    inside = multivariate_normal(cov=correlation, maxpts=1_000_000, abseps=1e-7, releps=1e-7, seed=1).cdf(thresholds)
    value, error = sf(thresholds, correlation)
    assert value == pytest.approx(1 - inside, rel=float(error) + 1e-5)
    assert error < 2e-3


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("t", [-2.0, 0.0, 1.5, 6.0, 20.0])
def test_extremes_of_correlation(count, t):
    thresholds, p = np.full(count, t), norm.sf(t)
    value, error = sf(thresholds, np.ones((count, count)))
    assert value == pytest.approx(p, rel=max(1e-9, float(error)))
    value, error = sf(thresholds, np.eye(count))
    assert value == pytest.approx(-np.expm1(count * np.log1p(-p)), rel=max(1e-11, float(error)))


@pytest.mark.parametrize("t", [0.1, 1.5, 6.0, 20.0])
def test_opposites_exclude_each_other(t):
    assert sf([t, t], [[1, -1], [-1, 1]])[0] == pytest.approx(2 * norm.sf(t), rel=1e-11)


@pytest.mark.parametrize("count", [3, 5])
def test_order_repeats_and_batches(count):
    loadings = np.linspace(0.3, 0.95, count)
    thresholds, correlation = np.linspace(0.5, 1.5, count), factor_correlation(loadings)
    value, error = sf(thresholds, correlation)
    turn = np.roll(np.arange(count), 1)
    assert sf(thresholds[turn], correlation[np.ix_(turn, turn)])[0] == pytest.approx(value, rel=1e-12)
    assert sf(thresholds, correlation) == (value, error)  # not random
    batch, _ = sf(np.stack([thresholds, thresholds + 1]), np.stack([correlation, correlation]))
    assert batch[0] == pytest.approx(value, rel=1e-12)
    assert batch[1] < batch[0]
    doubled = np.r_[np.arange(count), 0]  # the same normal twice adds nothing
    again, wide = sf(thresholds[doubled], correlation[np.ix_(doubled, doubled)])
    assert again == pytest.approx(value, rel=max(1e-9, 2 * float(wide + error)))


def test_one_normal_and_far_tails():
    z = np.array([-3.0, 0.0, 5.0, 30.0])
    np.testing.assert_allclose(normal_sf(torch.from_numpy(z)), norm.sf(z), rtol=1e-12)
    value, error = sf(z[:, None], np.ones((4, 1, 1)))
    np.testing.assert_allclose(value, norm.sf(z), rtol=1e-12)
    assert (error == 0).all()


def test_more_points_for_less_error():
    loadings = (0.9, 0.6, -0.5, 0.3, 0.7)
    few, many = (sf(np.full(5, 1.0), factor_correlation(loadings), points=n)[1] for n in (64, 4096))
    assert many < few / 4
