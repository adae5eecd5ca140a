"""Hotelling's T² against the twin, the t-test, 50-digit arithmetic, and what it must not depend on."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, f, ttest_1samp, ttest_ind

from arht import InputError, Outcome, hotelling_test
from tests.reference import dense, exact
from tests.targets import autoregressive, pair, rows

SIZES = [(12, 9, 4), (30, 1, 10), (9, 7, 14), (200, 5, 3)]


@pytest.mark.parametrize(("n1", "n2", "p"), SIZES)
@pytest.mark.parametrize("mean", [None, 0.3])
def test_two_samples_equal_the_twin(n1, n2, p, mean):
    x, y = pair(n1, n2, p)
    result = hotelling_test(x, y, mean=mean)
    assert result.statistic == pytest.approx(dense.hotelling(x, y, mean or 0), rel=1e-10)
    nu = n1 + n2 - 2
    law = f(p, nu - p + 1)
    assert result.pvalue == pytest.approx(law.sf(result.statistic * (nu - p + 1) / (nu * p)), rel=1e-10)
    assert (result.guarantee, result.outcome, result.pvalue_error) == ("exact", Outcome.OK, 0.0)


@pytest.mark.parametrize(("n", "p"), [(12, 4), (15, 14)])
def test_one_sample_equals_the_twin(n, p):
    x = rows(n, p, shift=0.4)
    mean = np.linspace(0, 1, p)
    result = hotelling_test(x, mean=mean)
    assert result.statistic == pytest.approx(dense.hotelling(x, None, mean), rel=1e-9)
    assert result.pvalue == pytest.approx(f.sf(result.statistic * (n - p) / ((n - 1) * p), p, n - p), rel=1e-9)


def test_one_column_is_the_t_test():
    x, y = rows(13, 1, shift=1), rows(8, 1, seed=5)
    two, one = ttest_ind(x[:, 0], y[:, 0]), ttest_1samp(x[:, 0], 0.25)
    for a, b in ((x, y), (x[:, 0], y[:, 0])):  # a vector is n rows of one column
        result = hotelling_test(a, b)
        assert result.statistic == pytest.approx(two.statistic**2, rel=1e-12)
        assert result.pvalue == pytest.approx(two.pvalue, rel=1e-12)
    result = hotelling_test(x, mean=0.25)
    assert result.statistic == pytest.approx(one.statistic**2, rel=1e-12)
    assert result.pvalue == pytest.approx(one.pvalue, rel=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_ill_conditioned_against_50_digits(offset):
    x, y = (rows(n, 5, kind="ill", seed=n, offset=offset) for n in (20, 12))
    # an offset takes digits of the data itself: what is left of the smallest direction, 1e-5 wide, is 1e-8 of it
    assert hotelling_test(x, y).statistic == pytest.approx(
        float(exact.hotelling(x, y)), rel=1e-10 if not offset else 1e-7
    )


def test_pvalue_far_in_the_tail():
    x, y = pair(60, 50, 2, shift=40.0)
    result = hotelling_test(x, y)
    d1, d2 = 2, 107
    value = result.statistic * d2 / (108 * d1)
    exact_tail = mpmath.betainc(d2 / 2, d1 / 2, 0, d2 / (d2 + d1 * mpmath.mpf(float(value))), regularized=True)
    assert exact_tail < 1e-60
    assert result.pvalue == pytest.approx(float(exact_tail), rel=1e-10)


@given(st.integers(0, 10**6), st.floats(-3, 3))
def test_any_invertible_map_leaves_it(seed, power):
    rng = np.random.default_rng(seed)
    x, y = pair(14, 9, 4, seed=seed)
    change = rng.standard_normal((4, 4)) * 10.0**power
    assert hotelling_test(x @ change, y @ change).statistic == pytest.approx(
        hotelling_test(x, y).statistic, rel=1e-13 * np.linalg.cond(change) + 1e-12
    )


def test_units_of_columns_do_not_make_it_singular():
    x, y = pair(14, 9, 4)
    units = np.array([1e-9, 1.0, 1e6, 1e-3])
    assert hotelling_test(x * units, y * units).statistic == pytest.approx(hotelling_test(x, y).statistic, rel=1e-10)


def test_swapping_and_shifting_both_leaves_it():
    x, y = pair(14, 9, 4)
    t2 = hotelling_test(x, y).statistic
    assert hotelling_test(y, x).statistic == pytest.approx(t2, rel=1e-12)
    assert hotelling_test(x + 100, y + 100).statistic == pytest.approx(t2, rel=1e-10)
    assert hotelling_test(y, x, mean=-0.3).statistic == pytest.approx(
        hotelling_test(x, y, mean=0.3).statistic, rel=1e-12
    )


def test_kinds_of_input():
    x, y = pair(14, 9, 4)
    from_numpy, from_torch = hotelling_test(x, y), hotelling_test(torch.from_numpy(x), y)
    assert isinstance(from_numpy.pvalue, np.float64)
    assert isinstance(from_numpy.outcome, np.int8)
    assert isinstance(from_torch.pvalue, torch.Tensor)
    assert from_torch.pvalue.dtype == torch.float64
    assert float(from_torch.pvalue) == from_numpy.pvalue
    whole = np.rint(10 * x).astype(np.int64), np.rint(10 * y).astype(np.int64)
    assert hotelling_test(*whole) == hotelling_test(*(part.astype(float) for part in whole))
    assert hotelling_test(whole[0].tolist(), whole[1].tolist()) == hotelling_test(*whole)
    single = x.astype(np.float32), y.astype(np.float32)
    assert hotelling_test(*single) == hotelling_test(*(part.astype(float) for part in single))


def test_redundant_columns_are_refused():
    x, y = pair(14, 9, 4)
    x, y = (np.c_[part, part[:, 0] + part[:, 1]] for part in (x, y))
    with pytest.raises(InputError, match=r"got a pooled covariance of rank below P=5\. T² does not exist"):
        hotelling_test(x, y)


def test_level():
    """Level 5 % at 9,000 replicates: refused by chance once in a million times; 7 % passes once in a thousand."""
    replicates, level, rng = 9_000, 0.05, np.random.default_rng(20)
    root = np.linalg.cholesky(autoregressive(5))
    rejected = 0
    for _ in range(replicates):
        x = rng.standard_normal((15, 5)) @ root.T
        rejected += hotelling_test(x[:9], x[9:]).pvalue <= level
    low, high = binom.interval(1 - 1e-6, replicates, level)
    assert binom.cdf(high, replicates, 0.07) < 1e-3
    assert low <= rejected <= high
