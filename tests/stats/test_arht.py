"""ARHT: the ridge that is chosen, priors of every order, several of them, and what must not change the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from arht import Outcome, arht_test
from arht.stats import nulls
from arht.stats.maximum import maximum_sf
from tests.reference import dense, exact
from tests.targets import pair, rotation, rows

SIZES = [(30, 25, 8), (12, 9, 40), (200, 5, 30), (30, 1, 10)]
PRIORS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.2, 0.3, 0.5), (1,), (0, 0, 1, 2)]
GRID = np.geomspace(0.01, 10, 25)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("n1", "n2", "p"), SIZES)
def test_one_prior_equals_the_twin(n1, n2, p, prior):
    x, y = pair(n1, n2, p, kind="spiked")
    twin, result = dense.arht(x, y, GRID, prior), arht_test(x, y, ridges=GRID, priors=prior, null="normal")
    np.testing.assert_allclose(
        (result.ridge, result.theta1, result.theta2, result.statistic),
        (twin.ridge, twin.theta1, twin.theta2, twin.standardised),
        rtol=1e-9,
    )
    assert result.pvalue == pytest.approx(norm.sf(twin.standardised), rel=1e-8)
    assert result.pvalue_error == 0.0


@pytest.mark.parametrize("prior", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_one_sample_equals_the_twin(prior):
    x, mean = rows(20, 12, shift=0.4), np.linspace(0, 1, 12)
    twin, result = dense.arht(x, None, GRID, prior, mean), arht_test(x, mean=mean, ridges=GRID, priors=prior)
    found = result.ridge, result.theta1, result.theta2, result.score
    np.testing.assert_allclose(found, (twin.ridge, twin.theta1, twin.theta2, twin.cube_root), rtol=1e-9)


def test_default_grid_equals_the_twin():
    for n1, n2, p in ((30, 25, 8), (8, 7, 20)):
        x, y = pair(n1, n2, p, kind="spiked")
        twin, result = dense.arht(x, y, dense.default_ridges(x, y), (0, 1, 0)), arht_test(x, y, priors=(0, 1, 0))
        found = result.ridge, result.theta1, result.theta2, result.score
        np.testing.assert_allclose(found, (twin.ridge, twin.theta1, twin.theta2, twin.cube_root), rtol=1e-9)


@pytest.mark.parametrize(("n1", "n2", "p"), [(20, 12, 5), (4, 3, 7)])
def test_ill_conditioned_against_50_digits(n1, n2, p):
    x, y = pair(n1, n2, p, kind="ill")
    grid = [1e-9, 1e-7, 1e-5, 1e-3, 0.1]
    twin, result = exact.arht(x, y, grid, (0, 1, 0)), arht_test(x, y, ridges=grid, priors=(0, 1, 0), null="normal")
    found = result.ridge, result.theta1, result.theta2, result.statistic
    expected = [float(v) for v in (twin.ridge, twin.theta1, twin.theta2, twin.standardised)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("n1", "n2", "p"), SIZES)
def test_several_priors_are_each_their_own_test_and_the_largest_wins(n1, n2, p):
    x, y = pair(n1, n2, p, kind="spiked", shift=0.8)
    priors = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    whole = arht_test(x, y, priors=priors)
    parts = [arht_test(x, y, priors=prior) for prior in priors]
    for name in ("ridge", "theta1", "theta2", "statistic", "pvalue"):
        expected = [getattr(part, name) for part in parts]
        np.testing.assert_allclose(getattr(whole.priors, name), expected, rtol=1e-12, err_msg=name)
    winner = int(np.argmax(whole.priors.statistic))
    for name in ("statistic", "ridge", "theta1", "theta2"):
        assert getattr(whole, name) == getattr(whole.priors, name)[winner]
    bounds = torch.full((3,), float(whole.statistic), dtype=torch.float64)
    expected, error = maximum_sf(bounds, torch.from_numpy(whole.priors.correlation))
    assert whole.pvalue == pytest.approx(float(expected), rel=1e-12)
    assert whole.pvalue_error == float(error)
    best = whole.priors.pvalue.min()
    assert best * (1 - 1e-12) <= whole.pvalue <= 3 * best


def test_weights_of_a_prior_are_relative():
    x, y = pair(30, 25, 8, kind="spiked")
    one, two = arht_test(x, y, priors=(0.2, 0.3, 0.5)), arht_test(x, y, priors=(4, 6, 10))
    assert (one.ridge, one.pvalue) == (two.ridge, two.pvalue)


def test_a_prior_decides_the_ridge():
    """Against differences along the large eigenvalues a larger ridge is better."""
    x, y = pair(60, 50, 20, kind="spiked")
    ridges = [float(arht_test(x, y, priors=prior).ridge) for prior in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert ridges[0] < ridges[1] < ridges[2]


@pytest.mark.parametrize(("n1", "n2", "p"), SIZES[:2])
def test_rotation_units_swap_and_offset_leave_it(n1, n2, p):
    x, y = pair(n1, n2, p, kind="spiked")
    plain, turn = arht_test(x, y), rotation(p, seed=4)
    for other in (
        arht_test(x @ turn, y @ turn),
        arht_test(y, x),
        arht_test(x + 1e3, y + 1e3),
        arht_test(-3 * x, -3 * y),
    ):
        assert other.score == pytest.approx(plain.score, rel=1e-9)
        assert other.pvalue == pytest.approx(plain.pvalue, rel=1e-8)
        np.testing.assert_allclose(other.priors.correlation, plain.priors.correlation, rtol=1e-9)
    scaled = arht_test(-3 * x, -3 * y)
    assert scaled.ridge == pytest.approx(9 * plain.ridge, rel=1e-9)


def test_one_degree_of_freedom_is_degenerate():
    result = arht_test([[0.0, 1.0], [2.0, 5.0]], [[1.0, 1.0]])
    assert result.outcome == Outcome.DEGENERATE
    assert np.isnan(result.pvalue)


@pytest.mark.parametrize("law", ["normal", "cube_root", "square_root", "chi_square"])
def test_a_large_difference_is_found_and_none_is_not(law):
    x, y = pair(30, 25, 40, shift=0.0)
    assert 0.01 < arht_test(x, y, null=law).pvalue < 1
    assert arht_test(x, y + 1, null=law).pvalue < 1e-6


def test_conformal_null_ranks_the_score():
    x, y = pair(30, 25, 8)
    held_out = np.linspace(-3, 3, 99)
    result = arht_test(x, y, null=nulls.Conformal(held_out))
    assert result.pvalue == (1 + (held_out >= result.score).sum()) / 100
    assert (result.guarantee, result.pvalue_error) == ("conformal", 0.0)


def test_kinds_of_input():
    x, y = pair(14, 9, 4)
    from_numpy, from_torch = arht_test(x, y), arht_test(torch.from_numpy(x), torch.from_numpy(y))
    assert isinstance(from_numpy.priors.correlation, np.ndarray)
    assert isinstance(from_torch.priors.correlation, torch.Tensor)
    assert float(from_torch.pvalue) == from_numpy.pvalue
    whole = np.rint(10 * x).astype(np.int64), np.rint(10 * y).astype(np.int64)
    assert arht_test(*whole).pvalue == arht_test(*(part.astype(float) for part in whole)).pvalue
    listed = arht_test(x, y, ridges=[1, 2], priors=[[0, 1, 0]])
    assert listed.pvalue == arht_test(x, y, ridges=np.array([1.0, 2.0]), priors=np.array([0, 1, 0])).pvalue
