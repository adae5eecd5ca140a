"""Combined p-values against loops, closed forms and their own properties."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, combine_pvalues, landau

from arht.errors import InputError
from arht.stats.combination import (
    METHODS,
    VALIDITY,
    bonferroni,
    cauchy,
    combine,
    fisher,
    harmonic_mean,
    stouffer,
)
from tests.reference import multiplicity as naive

rows = st.lists(st.floats(1e-12, 1 - 1e-9), min_size=1, max_size=8)
mild = st.lists(st.floats(1e-6, 0.999), min_size=1, max_size=8)
methods = st.sampled_from(sorted(METHODS))
EXACT_WHEN_INDEPENDENT = ["fisher", "stouffer", "cauchy", "harmonic_mean"]


def test_every_method_states_its_validity():
    assert list(METHODS) == list(VALIDITY)
    assert all(statement and "\n" not in statement for statement in VALIDITY.values())


@given(rows)
def test_fisher_equals_the_poisson_sum(p):
    assert fisher(p) == pytest.approx(naive.fisher(p), rel=1e-10)


@given(mild, st.data())
def test_stouffer_and_cauchy_equal_the_loops(p, data):
    w = data.draw(st.lists(st.floats(0.1, 10), min_size=len(p), max_size=len(p)))
    assert stouffer(p, weights=w) == pytest.approx(naive.stouffer(p, w), rel=1e-7)
    assert stouffer(p) == pytest.approx(naive.stouffer(p, [1] * len(p)), rel=1e-7)
    # the loop's tan loses digits near p = 1, and its 1/2 - arctan near p = 0
    assert cauchy(p, weights=w) == pytest.approx(naive.cauchy(p, w), rel=1e-8, abs=1e-11)
    assert cauchy(p) == pytest.approx(naive.cauchy(p, [1] * len(p)), rel=1e-8, abs=1e-11)


@given(rows)
def test_bonferroni_equals_the_loop(p):
    assert bonferroni(p) == pytest.approx(naive.bonferroni(p), rel=1e-14)


@given(st.lists(st.floats(1e-3, 0.99), min_size=3, max_size=3))
def test_harmonic_mean_equals_the_convolution(p):
    assert harmonic_mean(p) == pytest.approx(naive.harmonic_by_convolution(p), rel=1e-8)


@given(st.lists(st.floats(1e-150, 1), min_size=2, max_size=2))
def test_harmonic_mean_of_two_has_a_closed_form(p):
    assert harmonic_mean(p) == pytest.approx(naive.harmonic_of_two(p), rel=1e-12)


@pytest.mark.parametrize(("layers", "tolerance"), [(50, 0.03), (500, 0.006), (5000, 0.0011)])
def test_harmonic_mean_tends_to_the_landau_law(layers, tolerance):
    # Wilson (2019): 1/h ~ Landau with location ln L + 1 - γ - ln(2/π) and scale π/2, as L grows
    h = np.array([0.001, 0.01, 0.05, 0.1])
    location = math.log(layers) + 1 - np.euler_gamma - math.log(2 / math.pi)
    limit = landau.sf(1 / h, loc=location, scale=math.pi / 2)
    ours = harmonic_mean(np.repeat(h[:, None], layers, axis=1))
    np.testing.assert_allclose(ours, limit, rtol=tolerance)


def test_harmonic_mean_near_one_is_one_and_monotone_at_any_number_of_layers():
    for layers in (2, 10, 50, 200, 1000):
        h = np.linspace(0.001, 1, 1500)
        p = harmonic_mean(np.repeat(h[:, None], layers, axis=1))
        assert p[-1] == pytest.approx(1, abs=1e-10)
        assert (p <= 1).all()
        assert (np.diff(p) >= -1e-11).all()


def test_harmonic_mean_under_any_dependence_is_a_multiple():
    p = np.array([0.001, 0.01, 0.1, 0.02])
    mean = 4 / (1 / p).sum()
    assert harmonic_mean(p, dependence="any") == pytest.approx(math.e * math.log(4) * mean, rel=1e-14)
    assert harmonic_mean(p[:2], dependence="any") == pytest.approx(2 * 2 / (1 / p[:2]).sum(), rel=1e-14)
    assert combine(p, "harmonic_mean_any") == harmonic_mean(p, dependence="any")
    assert harmonic_mean(np.ones(4), dependence="any") == 1


def test_scipy_agrees_on_fisher_and_stouffer():
    p, w = [0.01, 0.2, 0.7], [1.0, 2.0, 3.0]
    assert fisher(p) == pytest.approx(combine_pvalues(p, "fisher").pvalue, rel=1e-12)
    assert fisher(p) == pytest.approx(chi2.sf(-2 * math.log(0.01 * 0.2 * 0.7), 6), rel=1e-12)
    assert stouffer(p, weights=w) == pytest.approx(combine_pvalues(p, "stouffer", weights=w).pvalue, rel=1e-12)


@given(st.floats(1e-300, 1), methods)
def test_one_pvalue_is_itself(p, method):
    assert combine([p], method) == pytest.approx(p, rel=1e-12)


@given(st.floats(1e-300, 1), st.integers(1, 9))
def test_cauchy_of_equal_pvalues_is_that_pvalue(p, layers):
    w = np.arange(1, layers + 1)
    assert cauchy([p] * layers, weights=w) == pytest.approx(p, rel=1e-12)


def test_tails_are_not_lost():
    tiny = [1e-300, 0.5]
    assert bonferroni(tiny) == 2e-300
    assert cauchy(tiny) == pytest.approx(2e-300, rel=1e-12)
    assert harmonic_mean(tiny) == pytest.approx(2e-300, rel=1e-12)
    assert harmonic_mean(tiny, dependence="any") == pytest.approx(4e-300, rel=1e-12)
    assert fisher([1e-150, 1e-150]) == pytest.approx(1e-300 * (1 - math.log(1e-300)), rel=1e-11)
    # mpmath 1.3.0, 40 digits: z = 21.273453560965324, and the tail of z √2 is
    assert stouffer([1e-100, 1e-100]) == pytest.approx(3.783059965554168656778754e-199, rel=1e-10)
    # near 1 the distance from 1 counts
    assert 1 - cauchy([1 - 1e-12, 1 - 1e-12]) == pytest.approx(1e-12, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_zero_and_one(method):
    assert combine([0.0, 0.5], method) == 0
    assert combine([1.0, 1.0], method) == pytest.approx(1, abs=1e-12)
    assert combine([1.0], method) == pytest.approx(1, abs=1e-14)
    # a layer at 1 overrules the others where the formula has an infinity there, and nowhere else
    beside = combine([1.0, 1e-9], method)
    assert (beside == 1) == (method in ("stouffer", "cauchy"))
    assert combine([1.0, 0.0], method) == (1 if method in ("stouffer", "cauchy") else 0)


@given(rows, methods, st.data())
def test_monotone_and_within_bounds_and_orderless(p, method, data):
    i = data.draw(st.integers(0, len(p) - 1))
    smaller = list(p)
    smaller[i] *= data.draw(st.floats(1e-3, 1))
    value = combine(p, method)
    assert 0 <= value <= 1
    assert combine(smaller, method) <= value * (1 + 1e-10)
    assert combine(p[::-1], method) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_batch_row_kind_and_nan(method):
    p = np.random.default_rng(0).random((1100, 3))  # more rows than one chunk of the harmonic mean
    out = combine(p, method)
    assert out.shape == (1100,)
    assert out[-1] == pytest.approx(combine(p[-1], method), rel=1e-14)
    assert isinstance(combine(p[0], method), float)
    holed = p.copy()
    holed[[3, 700], [0, 2]] = np.nan
    with_nan = combine(holed, method)
    assert np.isnan(with_nan).nonzero()[0].tolist() == [3, 700]
    keep = ~np.isnan(with_nan)
    np.testing.assert_array_equal(with_nan[keep], out[keep])
    tensor = combine(torch.from_numpy(p), method)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype is torch.float64
    np.testing.assert_array_equal(tensor.numpy(), out)
    assert combine(torch.from_numpy(p[0]), method).shape == ()
    assert combine(np.empty((0, 3)), method).shape == (0,)
    assert isinstance(combine(p[:2].tolist(), method), np.ndarray)


def test_weights():
    p = [[0.01, 0.3, 0.9], [0.01, 0.3, 1.0]]
    for function in (stouffer, cauchy):
        equal = function(p, weights=[7, 7, 7])
        np.testing.assert_allclose(equal, function(p), rtol=1e-12)
        # a weight of 0 takes the layer out, a p-value of 1 included, but not a NaN
        np.testing.assert_allclose(
            function(p, weights=[1, 2, 0]), function([[0.01, 0.3]] * 2, weights=[1, 2]), rtol=1e-12
        )
        assert np.isnan(function([0.1, np.nan], weights=[1, 0]))
        np.testing.assert_allclose(function(p, weights=torch.tensor([1.0, 2, 3])), function(p, weights=[1, 2, 3]))


@pytest.mark.parametrize("layers", [2, 5])
@pytest.mark.parametrize("method", METHODS)
def test_level_for_independent_layers(method, layers):
    # P(p <= 0.05) in 20,000 families of independent uniforms. Exact methods: two-sided binomial test, false
    # alarm 1e-6; a true level of 6.5 % is missed with probability 1.1e-5, of 6 % with 9e-2 (finer errors,
    # such as the Landau law in place of the exact one, are seen by the twins above, without chance). Valid
    # methods: the upper side alone.
    replicates = 20_000
    p = combine(np.random.default_rng(3).random((replicates, layers)), method)
    low, high = binom.ppf([5e-7, 1 - 5e-7], replicates, 0.05)
    hits = (p <= 0.05).sum()
    assert hits <= high
    if method in EXACT_WHEN_INDEPENDENT:
        assert hits >= low


@pytest.mark.parametrize("method", ["bonferroni", "harmonic_mean_any"])
def test_level_for_the_worst_kind_of_dependence(method):
    # One uniform u shared by L = 4 layers on a circle, p_l = (u + l/4) mod 1: each layer is uniform, and
    # 4 min p_l is exactly uniform, so that Bonferroni has nothing to spare. Upper binomial bound at 20,000
    # families: false alarm 1e-6; a Bonferroni without its factor L (a level of 20 %) is missed with
    # probability below 1e-12.
    replicates = 20_000
    u = np.random.default_rng(5).random((replicates, 1))
    p = combine((u + np.arange(4) / 4) % 1, method)
    assert (p <= 0.05).sum() <= binom.ppf(1 - 1e-6, replicates, 0.05)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("p", "text"),
    [
        (np.ones((2, 2, 2)), "must be of shape [B L] or [L]; got (2, 2, 2). Put the p-values of one "
         "query along the last axis."),
        (np.ones((4, 0)), "must hold at least one p-value per query; got shape (4, 0). There is nothing "
         "to combine; the layers are the last axis."),
        ([0.1, 1.5], "must be between 0 and 1, or NaN; got 1 outside, the first 1.5. These are not "
         "probabilities; pass p-values, not statistics or scores."),
        ([0.1j], "must be real; got dtype complex128."),
        (["a"], "must be numeric; got dtype <U1."),
    ],
)  # fmt: skip
def test_bad_pvalues(method, p, text):
    who = method.removesuffix("_any")
    with pytest.raises(InputError, match="^" + re.escape(f"{who}: pvalues {text}")):
        combine(p, method)


@pytest.mark.parametrize("function", [stouffer, cauchy])
@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, float("inf")]])
def test_bad_weights(function, weights):
    who = function.__name__
    text = (
        f"{who}: weights must be 2 finite numbers >= 0, one per layer, not all 0; got {weights}. "
        "They say how much each layer counts; leave them out for equal ones."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        function([0.1, 0.2], weights=weights)


def test_unknown_names():
    text = (
        "combine: method must be one of 'bonferroni', 'fisher', 'stouffer', 'cauchy', 'harmonic_mean', "
        "'harmonic_mean_any'; got 'tippett'. Use 'bonferroni' where the dependence of the layers is unknown."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        combine([0.1], "tippett")
    text = (
        "harmonic_mean: dependence must be 'independent' or 'any'; got 'prds'. "
        "Use 'any' for a p-value that is valid whatever the dependence."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        harmonic_mean([0.1], dependence="prds")
