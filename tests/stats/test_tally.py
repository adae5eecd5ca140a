"""Chunks of p-values: the answer of `decide` on all of them at once."""

import warnings

import numpy as np
import pytest

import arht
from arht.errors import InputError, ResolutionWarning
from arht.stats.tally import Tally


def pvalues(kind, n=5000):
    rng = np.random.default_rng(7)
    p = rng.uniform(size=n) ** np.where(rng.uniform(size=n) < 0.1, 8, 1)
    if kind == "conformal":
        p = np.ceil(p * 5000) / 5000
    if kind == "with NaN":
        p[::17] = np.nan
    if kind == "with zeros":
        p[:5] = 0.0
    return p


def streamed(p, chunk, limit=1 << 22, **options):
    tally = Tally(limit)
    for start in range(0, len(p), chunk):
        tally.add(p[start : start + chunk])
    found = tally.decide(**options)
    adjusted = np.concatenate([found.adjusted(p[start : start + chunk]) for start in range(0, len(p), chunk)])
    return found, adjusted, found.rejected(adjusted)


@pytest.mark.parametrize("kind", ["continuous", "conformal", "with NaN", "with zeros"])
@pytest.mark.parametrize("method", ["bh", "by"])
@pytest.mark.parametrize("chunk", [1, 300, 10_000])
def test_the_same_as_all_at_once(kind, method, chunk):
    p = pvalues(kind, 400 if chunk == 1 else 5000)
    whole = arht.decide(p, fdr=0.1, method=method)
    found, adjusted, rejected = streamed(p, chunk, fdr=0.1, method=method)
    np.testing.assert_allclose(adjusted, whole.adjusted, rtol=1e-14)
    np.testing.assert_array_equal(rejected, whole.rejected)
    assert (found.threshold, found.tested, found.untested) == (whole.threshold, whole.tested, whole.untested)
    assert found.rejections == whole.rejected.sum() > 0


@pytest.mark.parametrize("method", ["bh", "by"])
def test_rounded_up_claims_no_more(method):
    """More different p-values than are kept: adjusted values are a little larger, never smaller."""
    p = pvalues("continuous", 200_000)
    whole = arht.decide(p, fdr=0.1, method=method)
    found, adjusted, rejected = streamed(p, 7000, limit=20_000, fdr=0.1, method=method)
    assert found.digits < 52
    assert len(found.values) <= 20_000
    assert (adjusted >= whole.adjusted * (1 - 1e-12)).all()
    assert (adjusted <= whole.adjusted * (1 + 2.0 ** (1 - found.digits)) + 1e-12).all()
    assert not (rejected & ~whole.rejected).any()
    assert rejected.sum() > 0.99 * whole.rejected.sum()


def test_nothing_and_nothing_tested():
    for p in (np.empty(0), np.full(4, np.nan)):
        found, adjusted, rejected = streamed(p, 3) if len(p) else (Tally().decide(), np.empty(0), np.empty(0, bool))
        assert (found.tested, found.untested, found.rejections, found.threshold) == (0, len(p), 0, 0.0)
        assert np.isnan(adjusted).all()
        assert not rejected.any()


def test_the_floor_is_spoken_of():
    p = np.full(100, 0.01)
    with pytest.warns(ResolutionWarning) as whole:
        arht.decide(p, smallest_pvalue=0.01)
    tally = Tally()
    tally.add(p)
    with pytest.warns(ResolutionWarning) as chunks:
        tally.decide(smallest_pvalue=0.01)
    assert str(whole[0].message) == str(chunks[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tally.decide(smallest_pvalue=0.0004)


def test_what_cannot_be_counted():
    with pytest.raises(InputError, match="between 0 and 1"):
        Tally().add([0.5, 1.5])
    with pytest.raises(InputError, match="'bh', 'by'; got 'storey'"):
        Tally().decide(method="storey")
    with pytest.raises(InputError, match="fdr must be above 0 and below 1; got 0"):
        Tally().decide(fdr=0)
