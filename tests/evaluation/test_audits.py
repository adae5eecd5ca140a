"""Bands by simulation, the audit's two error rates, the planner's numbers by what they promise."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import betabinom, binom

import arht
from arht.detectors import ARHTDetector, HotellingDetector, MahalanobisDetector
from arht.errors import InputError
from arht.evaluation import audit, level_band, plan, pvalue_plot
from arht.stats.nulls import Conformal


@pytest.mark.parametrize("tail", ["upper", "two_sided"])
def test_the_band_is_the_law_of_conformal_pvalues(tail):
    """20,000 simulated calibration sets: the count's law is the beta-binomial, by a chi-square test at 1e-6."""
    rng = np.random.default_rng(0)
    n, m, level = 39, 10, 0.2
    scores = rng.normal(size=(20_000, n + m))
    counts = np.array([(Conformal(row[:n], tail=tail).pvalue(row[n:]) <= level + 1e-12).sum() for row in scores[:4000]])
    law = betabinom(m, 8, n + 1 - 8)
    expected = 4000 * law.pmf(np.arange(m + 1))
    keep = expected > 5
    observed = np.bincount(counts, minlength=m + 1)
    chi = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    from scipy.stats import chi2

    assert chi2.sf(chi, keep.sum() - 1) > 1e-6
    low, high = level_band(level, m, calibration=n, outside=0.1)
    assert law.cdf(low - 1) <= 0.05 < law.cdf(low)
    assert law.sf(high) <= 0.05 < law.sf(high - 1)


def test_bands_at_the_edges():
    assert level_band(0.01, 100, calibration=50) == (0, 0)  # no p-value is that small
    assert level_band(0.05, 100, outside=0.02) == (binom.ppf(0.01, 100, 0.05), binom.ppf(0.99, 100, 0.05))
    assert level_band(0.02, 100, calibration=49)[1] > 0  # 1/50 is reached exactly


def normal(rng, n, scale=1.0):
    return scale * rng.normal(size=(n, 5))


def test_audit_passes_valid_pvalues_and_fails_others():
    """200 audits of valid p-values: at most 9 fail (1 % each: 1e-4). All of 20 with inputs 30 % wider fail."""
    rng = np.random.default_rng(1)
    detector = MahalanobisDetector().fit(normal(rng, 500))
    failed = 0
    for _ in range(200):
        failed += not detector.calibrate(normal(rng, 400)).audit(normal(rng, 300), fdr=0.2, tests=50).passed
    assert failed <= binom.ppf(1 - 1e-4, 200, 0.01)
    for _ in range(20):
        found = detector.calibrate(normal(rng, 400)).audit(normal(rng, 300, 1.3), fdr=0.2, tests=50)
        assert not found.passed
        assert found.excess < 0.0025
        assert "p-values are smaller than uniform ones" in found.reasons
        for check in found.levels:
            assert check.holds == (check.realised.value <= check.high + 1e-12)
            assert (f"too many p-values <= {check.level:g}" in found.reasons) is not check.holds
        assert not found.levels[2].holds


def test_what_an_audit_says():
    rng = np.random.default_rng(2)
    detector = ARHTDetector().fit(normal(rng, 500)).calibrate(normal(rng, 199))
    heldout = normal(rng, 400)
    heldout[3, 0] = np.nan
    found = detector.audit(heldout, fdr=0.05, tests=20)
    assert (found.tested, found.untested, found.guarantee, found.smallest_pvalue) == (399, 1, "conformal", 1 / 200)
    assert (found.needed, found.passed, found.reasons) == (2, True, ())
    p = detector.test(heldout).pvalue
    assert found.levels[1].realised.value == np.nanmean(np.where(np.isnan(p), np.nan, p <= 0.05))
    assert json.loads(json.dumps(found.as_dict()))["passed"] is True
    assert str(found).endswith("the FDR can be claimed")
    small = ARHTDetector().fit(normal(rng, 500)).calibrate(normal(rng, 9))
    hopeless = small.audit(heldout, fdr=0.05, tests=1000)
    assert hopeless.needed == 2000
    assert not hopeless.passed
    assert "not even all 1000 queries at the smallest p-value would be rejected" in str(hopeless)


def test_needed_is_what_bh_needs():
    """`needed` queries at the floor are rejected, one fewer are not."""
    detector = (
        MahalanobisDetector().fit(normal(np.random.default_rng(0), 300)).calibrate(normal(np.random.default_rng(1), 99))
    )
    found = detector.audit(normal(np.random.default_rng(2), 200), fdr=0.1, tests=70)
    p = np.ones(70)
    p[: found.needed] = found.smallest_pvalue
    assert arht.decide(p, fdr=0.1).rejected.sum() == found.needed
    p[0] = 1
    assert arht.decide(p, fdr=0.1).rejected.sum() == 0


def test_audit_of_asymptotic_pvalues():
    """`arht_scores` p-values of independent Gaussian rows are near enough; those of heavy tails are not."""
    rng = np.random.default_rng(3)
    detector = ARHTDetector().fit(rng.normal(size=(3000, 20)))
    assert detector.audit(rng.normal(size=(500, 20))).guarantee == "asymptotic"
    assert not detector.audit(rng.standard_t(2, size=(2000, 20))).passed


def test_asymptotic_pvalues_are_claimed_no_further_down_than_the_heldout_inputs_see():
    """An audit that sees nothing wrong at 1, 5 and 10 % says nothing of p near fdr/tests, where BH works."""
    rng = np.random.default_rng(7)
    detector = ARHTDetector().fit(rng.normal(size=(3000, 20)))
    result = detector.test(rng.normal(size=(999, 20)))
    uniform = (rng.permutation(999) + 0.5) / 999
    fine = audit(replace(result, pvalue=uniform), fdr=0.05, tests=50)  # 0.05 / 50 = 1 / 1000
    assert fine.passed
    assert [check.level for check in fine.levels] == [0.001, 0.01, 0.05, 0.1]
    far = audit(replace(result, pvalue=uniform), fdr=0.05, tests=10_000)
    assert not far.passed
    assert [check.level for check in far.levels] == [0.01, 0.05, 0.1]
    assert str(far).endswith(
        "the FDR cannot be claimed: BH works near p = fdr/tests = 5e-06, and 999 held-out inputs see nothing below "
        "p = 1/1000; calibrate"
    )
    tail = np.where(uniform < 0.01, uniform**3, uniform)  # as it should be at 1 % and above, far too small below
    heavy = audit(replace(result, pvalue=tail), fdr=0.05, tests=50)
    assert heavy.reasons == ("too many p-values <= 0.001",)
    exact = HotellingDetector().fit(rng.normal(size=(3000, 20))).audit(rng.normal(size=(999, 20)), tests=10_000)
    assert (exact.guarantee, exact.passed) == ("exact", False)


def test_tails_that_the_levels_do_not_show_are_not_claimed():
    """Slightly heavy tails: BH at 5 % rejects null queries, and 150 held-out inputs see nothing at 1, 5 and 10 %."""
    rng = np.random.default_rng(0)
    detector = ARHTDetector().fit(rng.standard_t(11, size=(5000, 20)))
    assert detector.decide(rng.standard_t(11, size=(10_000, 20)), fdr=0.05).rejected.sum() > 10
    found = detector.audit(rng.standard_t(11, size=(150, 20)), fdr=0.05, tests=10_000)
    assert all(check.holds for check in found.levels)
    assert not found.passed


AGAIN = r"audit: needs inputs that calibration has not seen; got \d+, \d+ of them with .* These inputs calibrated it; "


@pytest.mark.parametrize("tail", ["upper", "two-sided"])
@pytest.mark.parametrize("kind", [ARHTDetector, MahalanobisDetector])
def test_the_calibration_set_does_not_audit_itself(kind, tail):
    rng = np.random.default_rng(8)
    reference, heldout = normal(rng, 500), normal(rng, 400)
    detector = kind(tail=tail).fit(reference).calibrate(heldout)
    with pytest.raises(InputError, match=AGAIN):
        detector.audit(heldout)
    with pytest.raises(InputError, match=r"got 37, 37 of them"):
        detector.audit(heldout[rng.permutation(400)[:37]] * (1 + 1e-13))
    detector.audit(np.concatenate([heldout[:100], normal(rng, 100)]))
    detector.audit(normal(rng, 400))


def test_nor_does_that_of_several_layers():
    """Every second input is in the combination's law."""
    rng = np.random.default_rng(9)

    def layers(n):
        return {"a": normal(rng, n), "b": normal(rng, n)}

    heldout = layers(401)
    detector = MahalanobisDetector().fit(layers(500)).calibrate(heldout)
    with pytest.raises(InputError, match=r"got 401, 200 of them"):
        detector.audit(heldout)
    same = rng.normal(size=(400, 5))
    for inputs in (layers(400), {"a": same, "b": same}):
        detector.audit(inputs)


def test_scores_that_repeat_are_not_taken_for_the_calibration_set():
    rng = np.random.default_rng(10)
    law = Conformal(rng.integers(20, size=400).astype(float))
    detector = MahalanobisDetector().fit(normal(rng, 300)).calibrate(normal(rng, 400))
    scores = rng.integers(20, size=300).astype(float)
    result = replace(detector.test(normal(rng, 300)), score=scores, statistic=scores, pvalue=law.pvalue(scores))
    assert audit(result, calibration=law.scores, fdr=0.2, tests=50).tested == 300


def test_plan_for_a_rate():
    for tests, rate, fdr in ((1000, 0.01, 0.05), (50, 0.1, 0.1), (777, 0.013, 0.2)):
        k = int(np.ceil(rate * tests))
        n = plan(tests=tests, rate=rate, fdr=fdr).for_rate
        p = np.ones(tests)
        for size, expected in ((n, k), (n - 1, 0)):
            p[:k] = 1 / (size + 1)
            assert arht.decide(p, fdr=fdr).rejected.sum() == expected
        lone = np.ones(tests)
        lone[0] = 1 / (plan(tests=tests, rate=rate, fdr=fdr).for_one + 1)
        assert arht.decide(lone, fdr=fdr).rejected.sum() == 1


def test_plan_for_a_level():
    """Simulated: of 4,000 calibration sets of that size, 95 % realise at most 6 % for 5 % (1e-6 band)."""
    rng = np.random.default_rng(4)
    n = plan(level=0.05, slack=0.2, confidence=0.95).for_level
    k = int(0.05 * (n + 1) + 1e-9)
    realised = 1 - np.sort(rng.uniform(size=(4000, n)), axis=1)[:, n - k]
    inside = (realised <= 0.06).sum()
    low, high = binom.ppf([5e-7, 1 - 5e-7], 4000, 0.95)
    assert low <= inside <= high + 40  # n is the least that reaches 95 %; it can be slightly above
    assert plan(level=0.05, slack=0.1).for_level > n


def test_plan_for_layers():
    """What the plan asks for leaves several layers with the law that was wished for; one input fewer does not."""
    rng = np.random.default_rng(11)
    wish = {"level": 0.1, "slack": 0.5, "tests": 40, "rate": 0.05, "fdr": 0.2}
    one, several = plan(**wish), plan(**wish, layers=3)
    assert (several.for_level, several.for_rate, several.for_one) == tuple(
        2 * n for n in (one.for_level, one.for_rate, one.for_one)
    )
    detector = MahalanobisDetector().fit({name: normal(rng, 100) for name in "abc"})
    for size, enough in ((several.for_rate, True), (several.for_rate - 1, False)):
        detector.calibrate({name: normal(rng, size) for name in "abc"})
        found = detector.test({name: 50 + normal(rng, 2) for name in "abc"})
        p = np.ones(40)
        p[:2] = found.smallest_pvalue
        assert arht.decide(p, fdr=0.2).rejected.any() == enough
    with pytest.raises(InputError, match="plan: layers must be a whole number >= 1; got 0"):
        plan(layers=0)


def test_plan_for_draws():
    """The mean of K draws: its variance beside that of the input, simulated."""
    rng = np.random.default_rng(5)
    share = 0.4
    draws = plan(draw_share=share, inflation=0.1).draws
    assert draws == 7
    inputs = rng.normal(size=100_000) * np.sqrt(1 - share)
    seen = inputs + rng.normal(size=(draws, 100_000)).mean(0) * np.sqrt(share)
    assert seen.var() / inputs.var() == pytest.approx(1 + share / (1 - share) / draws, abs=0.01)
    assert seen.var() / inputs.var() <= 1.11
    assert plan().draws is None


def test_pvalue_plot_of_uniform_pvalues_stays_in_its_band():
    rng = np.random.default_rng(6)
    found = pvalue_plot(rng.uniform(size=500), level=0.99999)
    assert ((found.low <= found.observed) & (found.observed <= found.high)).all()
    far = pvalue_plot(rng.uniform(size=500) ** 2, level=0.99999)
    assert not ((far.low <= far.observed) & (far.observed <= far.high)).all()
    shared = Conformal(rng.normal(size=50)).pvalue(rng.normal(size=500))
    wide = pvalue_plot(shared, calibration=50, level=0.99999)
    assert ((wide.low <= wide.observed) & (wide.observed <= wide.high)).all()
    assert (wide.high - wide.low).max() > 2 * (found.high - found.low).max()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: plan(level=0), "plan: level must be above 0 and below 1; got 0."),
        (lambda: plan(rate=0), "plan: rate must be above 0 and at most 1; got 0. It is the share of OOD queries."),
        (lambda: plan(tests=1.5), "plan: tests must be a whole number >= 1; got 1.5."),
        (lambda: plan(slack=-1), "plan: slack and inflation must be positive; got -1 and 0.05."),
        (lambda: plan(draw_share=1), "plan: draw_share must be at least 0 and below 1; got 1."),
        (
            lambda: plan(level=1e-6, slack=1e-4),
            "plan: slack must be larger; got 0.0001, which needs more than 1e+09 inputs.",
        ),
        (
            lambda: pvalue_plot([np.nan]),
            "pvalue_plot: needs at least one p-value; got none. No query could be tested.",
        ),
        (
            lambda: audit(arht.arht_scores(np.ones((3, 2)), np.eye(9, 2)), fdr=2),
            "audit: fdr must be above 0 and below 1; got 2.",
        ),
        (
            lambda: audit(arht.arht_scores(np.ones((3, 2)), np.eye(9, 2)), tests=0),
            "audit: tests must be a whole number >= 1; got 0.",
        ),
    ],
)
def test_wrong_calls(call, line):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == line
