"""BH, BY and Storey against loops from the formulas, numbers done by hand, and their own properties."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from arht.errors import InputError, ResolutionWarning
from arht.stats.multiplicity import METHODS, Decision, bh, by, decide, storey
from tests.reference import multiplicity as naive

families = st.lists(st.floats(0, 1), min_size=1, max_size=25).map(np.array)
# the values of conformal p-values: ties, and bounds that are met exactly
grids = st.lists(st.integers(1, 20), min_size=1, max_size=25).map(lambda ranks: np.array(ranks) / 20)
methods = st.sampled_from(sorted(METHODS))


def factor(method, p):
    return {
        "bh": lambda: 1.0,
        "by": lambda: naive.harmonic_number(len(p)),
        "storey": lambda: naive.null_share(p),
    }[method]()


@given(families | grids, methods)
def test_adjusted_equals_the_loop(p, method):
    expected = naive.adjusted(p, factor(method, p))
    # below 1e-300 the two round differently
    np.testing.assert_allclose(METHODS[method](p), expected, rtol=1e-12, atol=1e-300)


@given(families | grids, methods, st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5]))
def test_rejections_equal_the_papers_rule(p, method, fdr):
    # the loop gets the slack that makes an exact tie a tie in floating point too
    expected = naive.step_up(p, fdr * (1 + 1e-12), factor(method, p))
    np.testing.assert_array_equal(decide(p, fdr=fdr, method=method).rejected, expected)


def test_bh_on_numbers_done_by_hand():
    p = [0.01, 0.04, 0.03, 0.5]
    np.testing.assert_allclose(bh(p), [0.04, 0.16 / 3, 0.16 / 3, 0.5], rtol=1e-14)
    h4 = 25 / 12
    np.testing.assert_allclose(by(p), [0.04 * h4, 0.16 / 3 * h4, 0.16 / 3 * h4, 1.0], rtol=1e-14)


def test_storey_does_not_cut_the_null_share_at_one():
    # all above one half: pi0 = 5 / (4 · 0.5) = 2.5, and q = min(1, 2.5 · 0.6)
    np.testing.assert_array_equal(storey([0.6, 0.7, 0.8, 0.9]), np.ones(4))
    # two above: pi0 = 3 / 2 = 1.5 where a cut estimate would give BH itself
    p = [0.001, 0.01, 0.6, 0.9]
    np.testing.assert_allclose(storey(p), np.minimum(1, 1.5 * bh(p)), rtol=1e-14)
    # threshold 0.95: pi0 = 1 / (4 · 0.05) = 5
    np.testing.assert_allclose(storey(p, threshold=0.95), np.minimum(1, 5 * bh(p)), rtol=1e-14)


def test_storey_rejects_more_than_bh_where_half_are_alternatives():
    p = np.concatenate([np.linspace(0.001, 0.05, 50), np.linspace(0.01, 1, 50)])
    assert decide(p, method="storey").rejected_count > decide(p, method="bh").rejected_count


@given(families | grids, st.floats(0.01, 0.5))
def test_by_rejects_a_subset_of_bh(p, fdr):
    assert not (decide(p, fdr=fdr, method="by").rejected & ~decide(p, fdr=fdr).rejected).any()


@given(families | grids, methods, st.randoms(use_true_random=False))
def test_order_does_not_matter(p, method, random):
    order = np.array(random.sample(range(len(p)), len(p)))
    np.testing.assert_array_equal(METHODS[method](p[order]), METHODS[method](p)[order])


@given(families | grids, methods)
def test_adjusted_is_monotone_in_the_pvalue_and_never_below_its_share(p, method):
    values = METHODS[method](p)
    assert (np.diff(values[np.argsort(p, kind="stable")]) >= 0).all()
    assert ((values >= 0) & (values <= 1)).all()
    if method != "storey":
        assert (values >= p * (1 - 1e-12)).all()


@given(families | grids, methods, st.floats(0.01, 0.5))
def test_rejected_means_adjusted_at_most_fdr(p, method, fdr):
    d = decide(p, fdr=fdr, method=method)
    np.testing.assert_array_equal(d.rejected, d.adjusted <= fdr)
    np.testing.assert_array_equal(d.rejected, (p <= d.threshold) & (d.rejected_count > 0))
    assert d.rejected_count == d.rejected.sum()


@given(families | grids, methods, st.data())
def test_nan_leaves_the_others_bit_identical(p, method, data):
    where = data.draw(st.lists(st.integers(0, len(p)), max_size=5))
    holed = np.insert(p, where, np.nan)
    values = METHODS[method](holed)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(holed))
    np.testing.assert_array_equal(values[~np.isnan(holed)], METHODS[method](p))
    d = decide(holed, method=method)
    assert (d.tested, d.untested) == (len(p), len(where))
    assert not d.rejected[np.isnan(holed)].any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [[], [np.nan, np.nan]])
def test_nothing_tested_is_nothing_rejected(method, p):
    d = decide(p, method=method, smallest_pvalue=0.01)
    assert (d.tested, d.untested, d.rejected_count, d.threshold) == (0, len(p), 0, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_the_kind_that_went_in_comes_out(method):
    p = [0.001, 0.2, float("nan")]
    as_list, as_array = METHODS[method](p), METHODS[method](np.array(p))
    as_tensor = METHODS[method](torch.tensor(p, dtype=torch.float64, requires_grad=True))
    assert isinstance(as_list, np.ndarray)
    assert isinstance(as_array, np.ndarray)
    assert isinstance(as_tensor, torch.Tensor)
    assert as_tensor.dtype is torch.float64
    np.testing.assert_array_equal(as_tensor.numpy(), as_array)
    d = decide(torch.tensor(p, dtype=torch.float64), method=method)
    assert isinstance(d.rejected, torch.Tensor)
    assert isinstance(d.adjusted, torch.Tensor)
    assert d.rejected.dtype is torch.bool
    assert d.rejected.tolist() == decide(p, method=method).rejected.tolist() == [True, False, False]
    assert METHODS[method](torch.tensor([0.25], dtype=torch.float32)).dtype is torch.float64


def test_the_input_is_left_as_it_was():
    p = np.array([0.001, 0.2, np.nan])
    before = p.copy()
    decide(p)
    bh(torch.from_numpy(p))
    np.testing.assert_array_equal(p, before)


def test_an_exact_tie_with_the_bound_is_a_rejection():
    # p = fdr k / m in exact arithmetic, for every k and many m: rounding must not lose one
    for m in range(1, 60):
        p = np.ones(m)
        p[0] = 0.05 / m
        assert decide(p, fdr=0.05).rejected_count == 1
        for k in range(1, m + 1):
            p = np.ones(m)
            p[:k] = 0.05 * k / m
            d = decide(p, fdr=0.05)
            assert d.rejected_count == k
            assert d.adjusted[0] <= 0.05


def test_a_decision_reads():
    d = decide([0.001, 0.2, float("nan")])
    assert str(d) == "1 of 2 rejected by bh at fdr=0.05, p <= 0.001, 1 untested"
    assert str(decide([0.5, 0.2], method="by", fdr=0.1)) == "0 of 2 rejected by by at fdr=0.1"
    assert isinstance(d, Decision)
    with pytest.raises(AttributeError):
        d.fdr = 0.1  # type: ignore[misc]


LONE = [0.5] * 20


@pytest.mark.parametrize(
    ("p", "arguments", "text"),
    [
        (
            [0.5] * 2000,
            {"smallest_pvalue": 1 / 1001},
            "decide: one rejection by 'bh' at fdr=0.05 among m=2000 needs a p-value <= 2.5e-05; got "
            "smallest_pvalue=0.000999. 40 queries must reach the floor together before any is rejected; "
            "39999 calibration points remove the limit.",
        ),
        (
            LONE,
            {"smallest_pvalue": 1 / 101, "method": "by"},
            "decide: one rejection by 'by' at fdr=0.05 among m=20 needs a p-value <= 0.000695; got "
            "smallest_pvalue=0.0099. 15 queries must reach the floor together before any is rejected; "
            "1439 calibration points remove the limit.",
        ),
        (
            LONE,
            {"smallest_pvalue": 1 / 11, "fdr": 0.05},
            "decide: one rejection by 'bh' at fdr=0.05 among m=20 needs a p-value <= 0.0025; got "
            "smallest_pvalue=0.0909. Not even all 20 queries at the floor would be rejected: nothing can be; "
            "399 calibration points remove the limit.",
        ),
        (
            [*LONE, 0.9, float("nan")],  # pi0 = 2 / (21 / 2)
            {"smallest_pvalue": 1 / 51, "method": "storey"},
            "decide: one rejection by 'storey' at fdr=0.05 among m=21 needs a p-value <= 0.0125; got "
            "smallest_pvalue=0.0196. 2 queries must reach the floor together before any is rejected; "
            "79 calibration points remove the limit.",
        ),
    ],
)
def test_resolution_warning_says_what_is_missing(p, arguments, text):
    with pytest.warns(ResolutionWarning, match=f"^{re.escape(text)}$") as caught:
        decide(p, **arguments)
    assert caught[0].filename == __file__


@settings(max_examples=200)
@given(
    st.integers(1, 300),
    st.sampled_from(["bh", "by"]),
    st.sampled_from([0.01, 0.05, 0.1, 0.2]),
    st.integers(1, 3000),
)
def test_resolution_warning_keeps_its_word(m, method, fdr, n):
    floor = 1 / (n + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decide(np.ones(m), fdr=fdr, method=method, smallest_pvalue=floor)

    def rejected(at_floor, floor):
        p = np.ones(m)
        p[:at_floor] = floor
        return decide(p, fdr=fdr, method=method).rejected_count

    if not caught:
        assert rejected(1, floor) >= 1
        return
    text = str(caught[0].message)
    points = int(re.search(r"(\d+) calibration points", text)[1])
    assert n < points
    assert rejected(1, 1 / (points + 1)) >= 1
    assert rejected(1, 1 / points) == 0
    if "nothing can be" in text:
        assert rejected(m, floor) == 0
    else:
        needed = int(re.search(r"(\d+) queries must", text)[1])
        assert 1 < needed <= m
        assert rejected(needed - 1, floor) == 0
        assert rejected(needed, floor) >= needed


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("p", "text"),
    [
        ([[0.1, 0.2]], "must be of shape [B]; got (1, 2). Give one p-value per query; several are combined "
         "first, by arht.stats.combination.combine."),
        ([0.1, -0.2, 3.0], "must be between 0 and 1, or NaN; got 2 outside, the first -0.2. These are not "
         "probabilities; pass p-values, not statistics or scores."),
        ([0.1, np.inf], "must be between 0 and 1, or NaN; got 1 outside, the first inf. These are not "
         "probabilities; pass p-values, not statistics or scores."),
        ([0.1j], "must be real; got dtype complex128."),
        (torch.tensor([0.1j]), "must be real; got dtype complex64."),
        (["a"], "must be numeric; got dtype <U1."),
        ([0.1, None], "must be numeric; got dtype object."),
        ([[0.1], [0.1, 0.2]], "must be a rectangular array; got rows of different lengths."),
    ],
)  # fmt: skip
def test_bad_pvalues(name, p, text):
    for call, who in ((METHODS[name], name), (lambda p: decide(p, method=name), "decide")):
        with pytest.raises(InputError, match="^" + re.escape(f"{who}: pvalues {text}")):
            call(p)


SHARE = "It is the share of false rejections to allow; use 0.05, for instance."


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: decide([0.1], fdr=0), "decide: fdr must be above 0 and below 1; got 0. " + SHARE),
        (lambda: decide([0.1], fdr=5), "decide: fdr must be above 0 and below 1; got 5. " + SHARE),
        (lambda: decide([0.1], fdr=np.nan), "decide: fdr must be above 0 and below 1; got nan. " + SHARE),
        (lambda: decide([0.1], smallest_pvalue=-1), "decide: smallest_pvalue must be between 0 and 1; got "
         "-1. It is the least p-value that the null law can give; use 0 where it has no floor."),
        (lambda: decide([0.1], method="holm"), "decide: method must be one of 'bh', 'by', 'storey'; got "
         "'holm'. Use 'bh', or 'by' where the dependence of the p-values is unknown."),
        (lambda: storey([0.1], threshold=1), "storey: threshold must be above 0 and below 1; got 1. "
         "The p-values above it tell the share of true nulls; use 0.5."),
    ],
)  # fmt: skip
def test_bad_arguments(call, text):
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.parametrize("method", METHODS)
def test_realised_level_under_the_global_null(method):
    # With every null true, FDR = P(any rejection). For independent uniforms it is fdr for BH (Simes),
    # fdr/H_10 = 0.0171 for BY and fdr (1 - 2^-10) for Storey. Two-sided binomial test: false alarm 1e-6.
    # A miss: of 7 % for BH and Storey 8e-4; of a BY that forgets H_m (5 % for 1.7 %) below 1e-12; of a Storey
    # with pi0 cut at 1 (5.6 %) likely, and caught above without chance.
    m, fdr, replicates = 10, 0.05, 9000
    rng = np.random.default_rng(7)
    hits = sum(decide(rng.random(m), fdr=fdr, method=method).rejected_count > 0 for _ in range(replicates))
    level = {"bh": fdr, "by": fdr / naive.harmonic_number(m), "storey": fdr * (1 - 2.0**-m)}[method]
    low, high = binom.ppf([5e-7, 1 - 5e-7], replicates, level)
    assert low <= hits <= high
