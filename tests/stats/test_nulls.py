"""Null laws: conformal ranks by hand, the composite χ², what each states about itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from arht import arht_test
from arht.stats import nulls
from tests.targets import pair

SCORES = [3.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("score", "upper", "two_sided"),
    [
        *[(2.0, 4 / 5, 1.0), (2.5, 2 / 5, 4 / 5), (3.0, 2 / 5, 4 / 5), (5.0, 1 / 5, 2 / 5), (0.0, 1.0, 2 / 5)],
        *[(np.inf, 1 / 5, 2 / 5), (-np.inf, 1.0, 2 / 5), (1.0, 1.0, 4 / 5)],
    ],
)
def test_conformal_by_hand(score, upper, two_sided):
    assert nulls.Conformal(SCORES).pvalue(score) == pytest.approx(upper, rel=1e-15)
    assert nulls.Conformal(SCORES, tail="two_sided").pvalue(score) == pytest.approx(two_sided, rel=1e-15)


@pytest.mark.parametrize("tail", ["upper", "two_sided"])
def test_conformal_ranks_are_uniform(tail):
    """Each of n + 1 exchangeable scores takes the query's place in turn: P(p ≤ level) ≤ level at every level."""
    pool = np.random.default_rng(3).permutation(np.arange(40.0))
    p = np.array([nulls.Conformal(np.delete(pool, i), tail=tail).pvalue(pool[i]) for i in range(40)])
    for level in np.unique(p):
        assert (p <= level).mean() <= level + 1e-12
    if tail == "upper":
        np.testing.assert_allclose(np.sort(p), np.arange(1, 41) / 40, rtol=1e-14)


def test_conformal_kinds_shapes_and_nan():
    law = nulls.Conformal(torch.tensor([SCORES]))
    assert isinstance(law.pvalue(2.0), float)
    table = law.pvalue(np.array([[2.0, np.nan], [5.0, 0.0]]))
    np.testing.assert_allclose(table, [[0.8, np.nan], [0.2, 1.0]], rtol=1e-15)
    assert isinstance(law.pvalue(torch.tensor([2.0])), torch.Tensor)
    assert law.pvalue([2, 5]).tolist() == pytest.approx([0.8, 0.2])
    assert repr(law) == "Conformal(n=4, tail='upper')"
    assert law.smallest_pvalue == 1 / 5
    assert nulls.Conformal(SCORES, tail="two_sided").smallest_pvalue == 2 / 5
    assert nulls.Conformal([1.0], tail="two_sided").smallest_pvalue == 1.0


def test_what_laws_state():
    guarantees = {name: nulls.as_null("test", name).guarantee for name in nulls.NULL_NAMES}
    assert guarantees.pop("permutation") == "exact"
    assert set(guarantees) == {"normal", "cube_root", "square_root", "chi_square"}
    assert set(guarantees.values()) == {"asymptotic"}
    assert nulls.Permutation(count=99).smallest_pvalue == 0.01
    assert nulls.CubeRoot().smallest_pvalue == 0.0
    law = nulls.Permutation(7)
    assert nulls.as_null("test", law) is law


@pytest.mark.parametrize("law", [nulls.Normal(), nulls.CubeRoot(), nulls.SquareRoot(), nulls.ChiSquare()])
def test_single_law_is_increasing_and_centred(law):
    theta1, theta2 = torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    rht = torch.linspace(0, 200, 50, dtype=torch.float64)
    p = law.single(rht, theta1, theta2, 100)
    assert (p.diff() <= 0).all()
    assert float(law.standardise(torch.tensor(50.0, dtype=torch.float64), theta1, theta2, 100)) == pytest.approx(
        0, abs=1e-12
    )
    assert 0.4 < float(law.single(torch.tensor(50.0, dtype=torch.float64), theta1, theta2, 100)) < 0.6


def composite(law, largest, theta1, theta2, dimension, correlation):
    tensors = (torch.as_tensor(np.asarray(v, dtype=np.float64)) for v in (largest, theta1, theta2))
    value, error = law.composite(*tensors, dimension, torch.as_tensor(np.asarray(correlation, dtype=np.float64)))
    return float(value), float(error)


def test_composite_of_one_law_thrice_is_that_law():
    t1, t2, z, p = [0.5] * 3, [0.4] * 3, 2.5, 100
    ones = np.ones((3, 3))
    assert composite(nulls.CubeRoot(), z, t1, t2, p, ones)[0] == pytest.approx(norm.sf(z), rel=1e-9)
    degrees = p * 0.25 / 0.4
    single = chi2.sf(degrees + z * np.sqrt(2 * degrees), degrees)
    assert composite(nulls.ChiSquare(), z, t1, t2, p, ones)[0] == pytest.approx(single, rel=1e-9)
    shared, error = composite(nulls.ChiSquare("ceiling", "shared"), z, t1, t2, p, ones)
    up = chi2.sf(degrees + z * np.sqrt(2 * degrees), np.ceil(degrees))
    assert shared == pytest.approx(up, rel=max(error, 1e-3))


def test_composite_of_independent_laws():
    t1, t2, z, p = [0.5, 0.3, 0.6], [0.4, 0.1, 0.7], 2.0, 100
    degrees = p * np.square(t1) / t2
    tails = chi2.sf(degrees + z * np.sqrt(2 * degrees), degrees)
    expected = 1 - np.prod(1 - tails)
    assert composite(nulls.ChiSquare(), z, t1, t2, p, np.eye(3))[0] == pytest.approx(expected, rel=1e-9)


def test_shared_components_by_simulation():
    """400,000 draws; beyond 5 standard errors once in 1.7 million by chance; 2 % off passes once in 1,000."""
    d, rho = np.array([30.0, 25.0, 12.0]), np.array([[1, 0.9, 0.5], [0.9, 1, 0.6], [0.5, 0.6, 1]])
    bounds, draws, rng = d + 1.2 * np.sqrt(2 * d), 400_000, np.random.default_rng(8)
    pair_counts = {(i, j): int(rho[i, j] * np.sqrt(d[i] * d[j])) for i, j in ((0, 1), (0, 2), (1, 2))}
    common = min(pair_counts.values())
    total = np.tile(rng.chisquare(common, draws), (3, 1))
    left = d - common
    for (i, j), count in pair_counts.items():
        if count > common:
            extra = rng.chisquare(count - common, draws)
            total[[i, j]] += extra
            left[[i, j]] -= count - common
    for i in range(3):
        if left[i] > 0:
            total[i] += rng.chisquare(left[i], draws)
    simulated = (total > bounds[:, None]).any(0).mean()
    tensors = (torch.from_numpy(v) for v in (bounds, d, rho))
    value, error = (float(v) for v in nulls._shared_components(*tensors))
    assert abs(value - simulated) < 5 * np.sqrt(value * (1 - value) / draws) + error * value
    assert error < 5e-3


def test_laws_print_their_parameters():
    x, y = pair(8, 7, 4)
    assert arht_test(x, y).null == "CubeRoot()"
    assert arht_test(x, y, null=nulls.ChiSquare()).null == "ChiSquare(degrees='matched', joint='copula')"
    assert arht_test(x, y, null=nulls.Permutation(9)).null == "Permutation(count=9)"
