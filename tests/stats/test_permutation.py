"""Permutation p-values: all relabellings against a loop over the twin; random ones; the level they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import binom

from arht import arht_test, rht_test
from arht.stats import permutation as module
from arht.stats.nulls import Permutation
from tests.reference import dense
from tests.targets import pair, rows

PRIORS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
GRID = (0.1, 1.0, 8.0)


def naive_rht(x, y, mean):
    return dense.terms(x, y, GRID[1], mean).rht


def naive_arht(x, y, mean):
    return max(dense.arht(x, y, GRID, prior, mean).cube_root for prior in PRIORS)


TESTS = {
    "rht": (naive_rht, lambda *args, **options: rht_test(*args, ridge=GRID[1], **options)),
    "arht": (naive_arht, lambda *args, **options: arht_test(*args, ridges=GRID, priors=PRIORS, **options)),
}


def relabellings(x, y, mean):
    both = np.concatenate([x - mean, y])
    for chosen in itertools.combinations(range(len(both)), len(x)):
        inside = np.isin(np.arange(len(both)), chosen)
        yield both[inside], both[~inside]


def flips(x, mean):
    for signs in itertools.product((1, -1), repeat=len(x)):
        yield (x - mean) * np.array(signs)[:, None], None


def loop(statistic, samples, observed):
    values = np.array([statistic(a, b, 0) for a, b in samples])
    return np.mean(values >= observed - 1e-8 * abs(observed))


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(("n1", "n2", "p", "shift"), [(4, 3, 2, 1.0), (5, 3, 11, 0.6), (4, 4, 3, 0.0), (1, 6, 3, 2.0)])
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_all_relabellings_equal_the_loop(name, n1, n2, p, shift, mean):
    statistic, test = TESTS[name]
    x, y = pair(n1, n2, p, shift=shift)
    result = test(x, y, mean=mean, null=Permutation(2_000))
    assert result.pvalue == pytest.approx(loop(statistic, relabellings(x, y, mean), statistic(x, y, mean)), abs=1e-12)
    assert result.smallest_pvalue == 1 / sum(1 for _ in relabellings(x, y, mean))
    assert result.pvalue >= result.smallest_pvalue
    assert result.guarantee == "exact"


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(("n", "p", "shift"), [(5, 2, 1.0), (6, 10, 0.8), (7, 3, 0.0)])
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_all_sign_flips_equal_the_loop(name, n, p, shift, mean):
    statistic, test = TESTS[name]
    x = rows(n, p, shift=shift)
    result = test(x, mean=mean, null=Permutation(2_000))
    assert result.pvalue == pytest.approx(loop(statistic, flips(x, mean), statistic(x, None, mean)), abs=1e-12)
    assert result.smallest_pvalue == 2 / 2**n


@pytest.mark.parametrize("name", TESTS)
def test_random_ones_are_reproducible_and_counted(name):
    _, test = TESTS[name]
    x, y = pair(20, 15, 8)
    laws = [Permutation(199, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2, 3, 4)]
    values = [test(x, y, null=law).pvalue for law in laws]
    assert values[0] == values[1]
    assert len(set(values)) > 1
    for value in values:
        assert round(value * 200) == pytest.approx(value * 200, abs=1e-9)
    extreme = test(x, y + 50, null=Permutation(199, generator=torch.Generator().manual_seed(1)))
    assert extreme.pvalue == extreme.smallest_pvalue == 1 / 200


def test_memory_blocks_do_not_matter(monkeypatch):
    x, y = pair(5, 4, 6)
    whole = arht_test(x, y, ridges=GRID, null=Permutation(500)).pvalue
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1000)
    assert arht_test(x, y, ridges=GRID, null=Permutation(500)).pvalue == whole


@pytest.mark.parametrize("sample", ["two", "one"])
def test_random_ones_estimate_the_whole(sample):
    """The binomial count may be off by chance once in a million times; an error of 0.03 passes once in a thousand.

    The p-values are near 0.1: at one half, 12,869 relabellings would let an error of 0.03 pass 28 times in a thousand.
    """
    x, y = pair(8, 8, 5, shift=0.8) if sample == "two" else (rows(15, 5, shift=0.3), None)
    exists = 12_870 if sample == "two" else 2**14
    whole = rht_test(x, y, ridge=1.0, null=Permutation(exists))
    assert whole.smallest_pvalue == 1 / exists
    law = Permutation(exists - 1, generator=torch.Generator().manual_seed(3))
    random = rht_test(x, y, ridge=1.0, null=law)
    assert random.pvalue != whole.pvalue
    low, high = binom.interval(1 - 1e-6, exists - 1, whole.pvalue)
    assert low <= random.pvalue * exists - 1 <= high
    assert binom.cdf(high, exists - 1, whole.pvalue + 0.03) < 1e-3
    assert binom.sf(low - 1, exists - 1, whole.pvalue - 0.03) < 1e-3


@pytest.mark.parametrize("sample", ["two", "one"])
def test_level_whatever_the_law(sample):
    """Skewed rows (one sample: symmetric, of infinite variance): the level is that of counting, 10/210 or 12/256.

    1,800 replicates: refused by chance once in a million times, a level of 10 % passes once in a thousand.
    """
    replicates, rng, rejected = 1_800, np.random.default_rng(30), 0
    exists = 210 if sample == "two" else 256
    size = int(0.05 * exists) / exists
    for _ in range(replicates):
        if sample == "two":
            x = rng.exponential(size=(10, 6)) ** 2
            result = rht_test(x[:6], x[6:], ridge=1.0, null=Permutation(exists))
        else:
            result = rht_test(rng.standard_t(1.5, size=(9, 6)), ridge=1.0, null=Permutation(exists))
        rejected += result.pvalue <= 0.05
    low, high = binom.interval(1 - 1e-6, replicates, size)
    assert binom.cdf(high, replicates, 0.10) < 1e-3
    assert low <= rejected <= high
