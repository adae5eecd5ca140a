"""RHT, Θ₁ and Θ₂ at a given ridge against the twin and 50-digit arithmetic; limits and invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from arht import Outcome, hotelling_test, rht_test
from arht.stats import nulls
from tests.reference import dense, exact
from tests.targets import pair, rotation, rows

SIZES = [(30, 25, 8), (12, 9, 40), (200, 5, 30), (30, 1, 10), (11, 10, 19)]
KINDS = ["flat", "spiked", "ill"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n1", "n2", "p"), SIZES)
@pytest.mark.parametrize("ridge", [0.01, 1.0, 100.0])
def test_two_samples_equal_the_twin(n1, n2, p, kind, ridge):
    x, y = pair(n1, n2, p, kind=kind)
    twin, result = dense.terms(x, y, ridge), rht_test(x, y, ridge=ridge, null="normal")
    np.testing.assert_allclose(
        (result.statistic, result.theta1, result.theta2, result.score),
        (twin.rht, twin.theta1, twin.theta2, twin.standardised),
        rtol=1e-9,
    )
    assert rht_test(x, y, ridge=ridge).score == pytest.approx(twin.cube_root, rel=1e-9)
    assert result.ridge == ridge
    assert result.guarantee == "asymptotic"


@pytest.mark.parametrize(("n", "p"), [(20, 6), (9, 25), (2, 3)])
def test_one_sample_equals_the_twin(n, p):
    x, mean = rows(n, p, shift=0.4), np.linspace(0, 1, p)
    twin, result = dense.terms(x, None, 0.3, mean), rht_test(x, ridge=0.3, mean=mean, null="normal")
    found = result.statistic, result.theta1
    np.testing.assert_allclose(found, (twin.rht, twin.theta1), rtol=1e-10)
    if n > 2:
        np.testing.assert_allclose((result.theta2, result.score), (twin.theta2, twin.standardised), rtol=1e-9)


@pytest.mark.parametrize(("n1", "n2", "p"), [(20, 12, 5), (4, 3, 7)])
@pytest.mark.parametrize("ridge", [1e-9, 1e-5, 0.1])
def test_ill_conditioned_against_50_digits(n1, n2, p, ridge):
    x, y = pair(n1, n2, p, kind="ill")
    twin, result = exact.terms(x, y, ridge), rht_test(x, y, ridge=ridge, null="normal")
    # a Stieltjes transform in float64 would lose all of Θ₂ at P > ν, where 1 - γ(1 - λ m) cancels
    np.testing.assert_allclose(
        (result.statistic, result.theta1, result.theta2, result.score),
        [float(v) for v in (twin.rht, twin.theta1, twin.theta2, twin.standardised)],
        rtol=1e-9,
    )


@pytest.mark.parametrize("p", [5, 40])
def test_rotations_leave_it_and_other_maps_do_not(p):
    x, y = pair(15, 10, p, kind="spiked")
    turn = rotation(p, seed=4)
    plain, turned = rht_test(x, y, ridge=0.5), rht_test(x @ turn, y @ turn, ridge=0.5)
    np.testing.assert_allclose(turned.statistic, plain.statistic, rtol=1e-11)
    np.testing.assert_allclose(turned.pvalue, plain.pvalue, rtol=1e-9)
    stretch = np.linspace(1, 3, p)
    assert abs(rht_test(x * stretch, y * stretch, ridge=0.5).statistic / plain.statistic - 1) > 0.01


@pytest.mark.parametrize("scale", [1e-6, -3.0, 1e5])
def test_units_scale_the_ridge(scale):
    x, y = pair(15, 10, 12)
    plain, scaled = rht_test(x, y, ridge=0.5), rht_test(scale * x, scale * y, ridge=0.5 * scale**2)
    for name in ("statistic", "theta1", "theta2", "score", "pvalue"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-10), name


def test_limits_of_the_ridge():
    x, y = pair(30, 25, 8)
    small = rht_test(x, y, ridge=1e-10).statistic
    assert small == pytest.approx(hotelling_test(x, y).statistic, rel=1e-7)
    x, y = pair(12, 9, 40)
    distance = np.square(x.mean(0) - y.mean(0)).sum() * 12 * 9 / 21
    assert 1e9 * rht_test(x, y, ridge=1e9).statistic == pytest.approx(distance, rel=1e-6)


@pytest.mark.parametrize("p", [5, 40])
def test_swapping_and_shifting_both_leaves_it(p):
    x, y = pair(15, 10, p)
    plain = rht_test(x, y, ridge=0.5)
    assert rht_test(y, x, ridge=0.5).statistic == pytest.approx(plain.statistic, rel=1e-11)
    assert rht_test(x + 1e3, y + 1e3, ridge=0.5).statistic == pytest.approx(plain.statistic, rel=1e-9)
    moved = rht_test(x + 1, y, ridge=0.5, mean=1)
    assert moved.statistic == pytest.approx(plain.statistic, rel=1e-11)


@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_each_law_gives_its_own_pvalue(ridge):
    x, y = pair(30, 25, 20)
    p, plain = 20, rht_test(x, y, ridge=ridge)
    r, t1, t2 = plain.statistic / p, plain.theta1, plain.theta2
    z = np.sqrt(p / (2 * t2))
    expected = {
        "normal": norm.sf(z * (r - t1)),
        "cube_root": norm.sf(z * (r ** (1 / 3) - t1 ** (1 / 3)) * 3 * t1 ** (2 / 3)),
        "square_root": norm.sf(z * (np.sqrt(r) - np.sqrt(t1)) * 2 * np.sqrt(t1)),
        "chi_square": chi2.sf(p * r * t1 / t2, p * t1**2 / t2),
    }
    for name, pvalue in expected.items():
        assert rht_test(x, y, ridge=ridge, null=name).pvalue == pytest.approx(pvalue, rel=1e-10), name
    up = rht_test(x, y, ridge=ridge, null=nulls.ChiSquare(degrees="ceiling")).pvalue
    assert up == pytest.approx(chi2.sf(p * r * t1 / t2, np.ceil(p * t1**2 / t2)), rel=1e-10)
    held_out = np.linspace(-3, 3, 99)
    conformal = rht_test(x, y, ridge=ridge, null=nulls.Conformal(held_out))
    assert conformal.pvalue == (1 + (held_out >= conformal.score).sum()) / 100
    assert (conformal.guarantee, conformal.smallest_pvalue) == ("conformal", 0.01)


def test_one_degree_of_freedom_is_degenerate():
    """Θ₂ is zero there: there is no variance to divide by, and no warning either."""
    result = rht_test([[0.0, 1.0], [2.0, 5.0]], [[1.0, 1.0]], ridge=0.1)
    assert result.outcome == Outcome.DEGENERATE
    assert np.isnan(result.pvalue)


def test_constant_columns_are_accepted():
    x, y = pair(15, 10, 6)
    x, y = (np.c_[part, np.full(len(part), 3.0)] for part in (x, y))
    twin = dense.terms(x, y, 0.5)
    assert rht_test(x, y, ridge=0.5).statistic == pytest.approx(twin.rht, rel=1e-11)


def test_kinds_of_input():
    x, y = pair(14, 9, 4)
    from_numpy, from_torch = rht_test(x, y, ridge=0.5), rht_test(x, torch.from_numpy(y), ridge=0.5)
    assert isinstance(from_numpy.theta1, np.float64)
    assert isinstance(from_torch.theta1, torch.Tensor)
    assert float(from_torch.pvalue) == from_numpy.pvalue
    whole = np.rint(10 * x).astype(np.int32), np.rint(10 * y).astype(np.int32)
    assert rht_test(*whole, ridge=0.5) == rht_test(*(part.astype(float) for part in whole), ridge=0.5)
    read_only = x.copy()
    read_only.flags.writeable = False
    assert rht_test(read_only, y, ridge=0.5) == from_numpy
    assert rht_test(x, y, ridge=torch.tensor(0.5)) == from_numpy
