"""Θ₁, Θ₂, their correlation and the population's moments, against the printed formulas in 50 digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arht.stats.spectrum import Spectrum, default_ridges, population_moments, prior_scores, thetas_from_sums
from tests.reference import dense, exact
from tests.reference.exact import mp

RIDGES = torch.tensor([1e-6, 0.01, 1.0, 300.0], dtype=torch.float64)
SHAPES = [(4, 20), (6, 6), (9, 5), (12, 3)]  # P, ν


def make(p, nu, batch=(), seed=0):
    values = np.random.default_rng(seed).gamma(0.5, 2.0, size=(*batch, min(p, nu)))
    return Spectrum(torch.from_numpy(values), p, nu)


def printed(values, p, nu, ridge):
    """The twin at a diagonal covariance, in 50 digits."""
    s = exact.numbers(np.diag(np.r_[values, np.zeros(p - len(values))]))
    inverse = lambda a: np.diag([1 / v for v in np.diag(a)])  # noqa: E731
    return dense.at_ridge(s, exact.numbers(np.ones(p)), mp.mpf(1), mp.mpf(nu), mp.mpf(float(ridge)), inverse)


@pytest.mark.parametrize(("p", "nu"), SHAPES)
def test_thetas_are_the_printed_formulas(p, nu):
    spectrum = make(p, nu)
    theta1, theta2 = spectrum.thetas(RIDGES)
    for i, ridge in enumerate(RIDGES):
        twin = printed(spectrum.eigenvalues.numpy(), p, nu, ridge)
        assert float(theta1[i]) == pytest.approx(float(twin.theta1), rel=1e-12)
        assert float(theta2[i]) == pytest.approx(float(twin.theta2), rel=1e-10)
        assert float(spectrum.stieltjes(RIDGES)[i]) == pytest.approx(float(twin.rho[0]), rel=1e-12)


@pytest.mark.parametrize("prior", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3, 4), (1,)])
@pytest.mark.parametrize(("p", "nu"), SHAPES)
def test_prior_scores_are_q_up_to_a_constant(p, nu, prior):
    spectrum = make(p, nu)
    theta1, theta2 = spectrum.thetas(RIDGES)
    moments = population_moments(spectrum.power_sums(2), spectrum.ratio)
    stieltjes = spectrum.stieltjes(RIDGES)
    q = prior_scores([list(prior)], RIDGES, stieltjes, theta1, theta2, moments, spectrum.ratio)
    twin = [float(printed(spectrum.eigenvalues.numpy(), p, nu, ridge).q(prior)) for ridge in RIDGES]
    # at a ridge of 300 times the mean eigenvalue ρ₂ and ρ₃ are differences of near-equal numbers
    np.testing.assert_allclose(q[0] * 2**0.5, twin, rtol=1e-8)


@pytest.mark.parametrize(("p", "nu"), SHAPES)
def test_correlation_is_the_mixed_theta2(p, nu):
    """In 50 digits, with U(λ) = S(S + λI)⁻¹: (tr UU' - tr U tr U' / ν) over the same of (λ, λ) and (λ', λ').

    Up to the factors P x⁴ this is Θ₂ where λ = λ'.
    """
    spectrum = make(p, nu)
    values = exact.numbers(spectrum.eigenvalues.numpy())
    u = np.stack([values / (values + mp.mpf(float(ridge))) for ridge in RIDGES])
    mixed = u @ u.T - np.outer(u.sum(1), u.sum(1)) / nu
    expected = [[float(mixed[i, j] / mp.sqrt(mixed[i, i] * mixed[j, j])) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(spectrum.correlation(RIDGES), expected, rtol=1e-11)


def test_equal_ridges_are_perfectly_correlated():
    ridges = torch.tensor([0.3, 0.3, 7.0], dtype=torch.float64)
    correlation = make(9, 5).correlation(ridges)
    assert float(correlation[0, 1]) == pytest.approx(1, abs=1e-15)
    assert float(correlation[0, 2]) < 1
    assert (correlation <= 1).all()


@pytest.mark.parametrize(("p", "nu"), [(4, 20), (6, 12), (6, 30)])
def test_thetas_from_sums(p, nu):
    spectrum = make(p, nu, batch=(7,))
    u = spectrum.eigenvalues[..., None, :] / (spectrum.eigenvalues[..., None, :] + RIDGES[:, None])
    by_sums = thetas_from_sums(u.sum(-1), u.square().sum(-1), p, nu)
    for found, expected in zip(by_sums, spectrum.thetas(RIDGES), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_batch_is_its_parts():
    whole = make(9, 5, batch=(7,))
    theta1, theta2 = whole.thetas(RIDGES)
    parts = whole.split(3)
    assert [len(part.eigenvalues) for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.thetas(RIDGES)[1] for part in parts]), theta2)
    one = Spectrum(whole.eigenvalues[4], 9, 5)
    np.testing.assert_allclose(one.thetas(RIDGES)[0], theta1[4], rtol=1e-14)
    np.testing.assert_allclose(one.correlation(RIDGES), whole.correlation(RIDGES)[4], rtol=1e-12)


def test_population_moments_undo_the_sample_bias():
    """Limits of tr Sᵏ / P at known moments H (Bai, Chen and Yao 2010, section 2), turned back."""
    h1, h2, h3, h4, g = 1.3, 2.9, 8.1, 31.0, 0.7
    sample = [
        h1,
        h2 + g * h1**2,
        h3 + 3 * g * h1 * h2 + g**2 * h1**3,
        h4 + 4 * g * h1 * h3 + 2 * g * h2**2 + 6 * g**2 * h1**2 * h2 + g**3 * h1**4,
    ]
    found = population_moments(torch.tensor(sample, dtype=torch.float64), g)
    np.testing.assert_allclose(found, [h1, h2, h3, h4], rtol=1e-13)
    stacked = torch.tensor([sample, sample], dtype=torch.float64)
    np.testing.assert_allclose(population_moments(stacked[..., :3], g)[1], [h1, h2, h3], rtol=1e-13)


def test_default_ridges_are_log_spaced():
    ridges = default_ridges(10.0, 2.0, 5)
    np.testing.assert_allclose(ridges, np.geomspace(0.02, 200, 5), rtol=1e-13)
