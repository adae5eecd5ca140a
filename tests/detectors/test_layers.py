"""Several layers at once: the rules, the split of the calibration set, validity under dependence, files."""

import numpy as np
import pytest
import torch

import arht
from arht.detectors import ARHTDetector, Entropy, FromScorer, MahalanobisDetector
from arht.detectors.margins import RULES, Margin
from arht.errors import InputError
from arht.evaluation import level_band
from arht.stats.combination import combine


def layered(rng, n, shift=0.0):
    """Two layers that share most of what they are made of."""
    shared = rng.normal(size=(n, 6)) + shift
    return {
        "conv": shared[:, :4] + 0.1 * rng.normal(size=(n, 4)),
        "fc": shared @ np.ones((6, 3)) + rng.normal(size=(n, 3)),
    }


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return {name: layered(rng, n) for name, n in (("fit", 500), ("held", 800), ("queries", 3000))} | {
        "ood": layered(rng, 30, 6.0)
    }


@pytest.mark.parametrize("rule", RULES)
def test_valid_under_dependence_and_finds_ood(rule, data):
    detector = MahalanobisDetector(combine=rule).fit(data["fit"]).calibrate(data["held"])
    result = detector.test(data["queries"])
    assert (result.guarantee, result.null) == ("conformal", "Conformal(n=400, tail='upper')")
    for level in (0.01, 0.05, 0.2):
        low, high = level_band(level, 3000, calibration=400, outside=1e-6)
        assert low <= (result.pvalue <= level + 1e-12).sum() <= high
        for layer in result.layers.values():
            assert low <= (layer.pvalue <= level + 1e-12).sum() <= high
    assert detector.test(data["ood"]).pvalue.max() <= 2 / 401


@pytest.mark.parametrize("rule", RULES)
def test_rules_order_as_the_combined_pvalues_do(rule):
    rng = np.random.default_rng(1)
    p = rng.uniform(size=(200, 3)) ** rng.choice([1, 10, 60], size=(200, 1))
    expected = combine(p, rule)
    score = np.asarray(RULES[rule](np.log(p)))
    clear = expected < 0.999  # beyond, the p-value of the harmonic mean is 1 by convention; Bonferroni's too
    order = np.argsort(-score[clear])
    assert (np.diff(expected[clear][order]) >= -1e-9 * expected[clear][order][:-1]).all()
    far = np.asarray(RULES[rule](np.array([[-800.0, -1.0, -1.0], [-2000.0, -1.0, -1.0], [-1e5, -1.0, -1.0]])))
    assert (np.diff(far) > 0).all()
    assert np.isfinite(far).all()


def test_cauchy_is_continuous_where_it_changes_to_logarithms():
    log_p = np.array([[-499.999, -3.0], [-500.001, -3.0]])
    before, after = RULES["cauchy"](log_p)
    assert after - before == pytest.approx(0.002, abs=1e-6)


def test_margin_equals_its_definition():
    scores = torch.from_numpy(np.sort(np.random.default_rng(2).normal(size=200)))
    margin = Margin(scores, tail=0.0)
    p = margin.log_pvalue(scores).exp()
    np.testing.assert_allclose(p, torch.arange(200, 0, -1) / 201)
    excess = float((scores[-5:] - scores[-5]).mean())
    beyond = margin.log_pvalue(scores[-1:] + 3.0)
    np.testing.assert_allclose(beyond, np.log(1 / 201) - 3.0 / excess)
    u = Margin(scores, tail=0.05)
    np.testing.assert_allclose(u.log_pvalue(scores[190:191] + 1e-9), np.log(10 / 201) - 1e-9 / excess, rtol=1e-6)
    assert margin.log_pvalue(torch.tensor([-1e9, torch.nan]))[0] == 0
    assert margin.log_pvalue(torch.tensor([torch.nan])).isnan().all()
    both = Margin(scores, two_sided=True, tail=0.0)
    middle = both.log_pvalue(torch.tensor([float(scores.median()), -9.0, 9.0]))
    assert middle[0] > -0.05
    assert (middle[1:] < -8).all()
    same = Margin(torch.full((50,), 2.0, dtype=torch.float64))
    assert same.log_pvalue(torch.tensor([1.0, 2.0, 3.0])).isfinite().all()


def test_layers_are_their_own_detectors(data):
    detector = ARHTDetector(combine="bonferroni").fit(data["fit"]).calibrate(data["held"])
    result = detector.test(data["queries"], explain=True)
    for name in ("conv", "fc"):
        alone = ARHTDetector().fit(data["fit"][name]).calibrate(data["held"][name][0::2])
        np.testing.assert_array_equal(result.layers[name].pvalue, alone.test(data["queries"][name]).pvalue)
        np.testing.assert_array_equal(result.layers[name].score, alone.score(data["queries"][name]))
    odd = {name: rows[1::2] for name, rows in data["held"].items()}
    np.testing.assert_allclose(np.sort(detector.score(odd)), detector._law.scores, rtol=1e-6, atol=1e-9)
    shares = result.explanation.layers
    np.testing.assert_allclose(shares["conv"] + shares["fc"], 1)
    assert result.explanation.parts["conv"].directions.shape == (3000, 4)
    lone = layered(np.random.default_rng(3), 1)
    lone["conv"] += 20
    assert detector.explain(lone).layers["conv"][0] > 0.8


def test_chunks_merge_and_files(data, tmp_path):
    whole = ARHTDetector().fit(data["fit"]).calibrate(data["held"])
    halves = [{name: rows[part] for name, rows in data["fit"].items()} for part in (slice(200), slice(200, None))]
    held = [{name: rows[part] for name, rows in data["held"].items()} for part in (slice(301), slice(301, None))]
    expected = whole.test(data["queries"])
    others = (
        ARHTDetector().fit(iter(halves)),
        ARHTDetector().fit(halves[0]).merge(ARHTDetector().fit(halves[1])),
        ARHTDetector().merge(ARHTDetector().fit(data["fit"])),
    )
    for other in others:
        assert other.inputs == 500
        found = other.calibrate(iter(held)).test(data["queries"])
        np.testing.assert_allclose(found.score, expected.score, rtol=1e-6, atol=1e-6)
    whole.save(tmp_path / "d.safetensors")
    loaded = arht.load(tmp_path / "d.safetensors")
    again = loaded.test(data["queries"])
    np.testing.assert_array_equal(again.score, expected.score)
    np.testing.assert_array_equal(again.pvalue, expected.pvalue)
    np.testing.assert_array_equal(again.layers["fc"].pvalue, expected.layers["fc"].pvalue)


def test_two_sided_layers(data):
    detector = ARHTDetector(tail="two-sided").fit(data["fit"]).calibrate(data["held"])
    p = detector.test(data["queries"]).pvalue
    low, high = level_band(0.05, 3000, calibration=400, outside=1e-6)
    assert low <= (p <= 0.05).sum() <= high
    centre = {name: np.tile(rows.mean(0), (2, 1)) for name, rows in data["fit"].items()}
    assert (detector.test(centre).pvalue < 0.05).all()


def test_a_bad_layer_marks_its_query(data):
    detector = ARHTDetector().fit(data["fit"]).calibrate(data["held"])
    clean = detector.test(data["queries"])
    spoiled = {name: rows.copy() for name, rows in data["queries"].items()}
    spoiled["fc"][7, 0] = np.nan
    result = detector.test(spoiled)
    assert result.outcome[7] == arht.Outcome.NOT_FINITE
    assert np.isnan(result.pvalue[7])
    np.testing.assert_allclose(np.delete(result.score, 7), np.delete(clean.score, 7))


def test_other_statistics_have_layers_too():
    rng = np.random.default_rng(0)
    p = {name: rng.dirichlet(np.ones(4), size=(400, 3)) for name in ("head", "early exit")}
    result = Entropy().fit(p).calibrate(p).test(p, explain=True)
    assert result.score.shape == (400,)
    assert result.explanation.parts == {}
    scorer = FromScorer(lambda x: np.abs(x).sum(1)).fit({"a": rng.normal(size=(50, 3)), "b": rng.normal(size=(50, 2))})
    assert scorer.inputs == 50
    assert scorer.calibrate({"a": rng.normal(size=(60, 3)), "b": rng.normal(size=(60, 2))}).calibrated


def test_wrong_calls(data):
    fitted = ARHTDetector().fit(data["fit"])
    conv = data["fit"]["conv"]
    calls = {
        "layers must be conv, fc, as in fit; got conv. Give every layer": lambda: fitted.calibrate({"conv": conv}),
        "needs a dict of layers conv, fc, as in fit; got ndarray": lambda: fitted.calibrate(conv),
        "several layers are combined by the calibration set's laws; got none yet": lambda: fitted.test(data["queries"]),
        "every layer must have the same inputs; got {'a': 3, 'b': 4}": lambda: ARHTDetector().fit(
            {"a": conv[:3], "b": conv[:4]}
        ),
        "needs at least one layer; got an empty dict": lambda: ARHTDetector().fit({}),
        "got layers after an array without": lambda: ARHTDetector().fit(conv).partial_fit(data["fit"]),
        "needs a dict of layers, as before; got ndarray": lambda: ARHTDetector().fit(data["fit"]).partial_fit(conv),
        "both sides must have layers, or neither": lambda: (
            ARHTDetector().fit(data["fit"]).merge(ARHTDetector().fit(conv))
        ),
        "several layers need at least 2 held-out inputs; got 1": lambda: fitted.calibrate(
            {name: rows[:1] for name, rows in data["held"].items()}
        ),
    }
    for words, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
