"""What every detector promises, of a guard: the parts of the conformance kit that apply to raw inputs.

The kit itself runs on every detector that a guard holds; here its data go through a module that passes vectors on, so
that the guard around a detector must say what the detector says.
"""

import dataclasses

import numpy as np
import pytest
import torch

import arht
from arht.detectors import ARHTDetector, MahalanobisDetector, RHTDetector
from arht.detectors.conformance import check_detector
from arht.errors import InputError
from arht.posterior import Deterministic
from arht.stats.results import Outcome, TestResult

RNG = np.random.default_rng(5)
LABELS = RNG.integers(3, size=400)
FIT = (RNG.normal(size=(400, 6)) + 3 * np.eye(3, 6)[LABELS]).astype(np.float32)
HELD = (RNG.normal(size=(300, 6)) + 3 * np.eye(3, 6)[RNG.integers(3, size=300)]).astype(np.float32)
FRESH = (RNG.normal(size=(200, 6)) + 3 * np.eye(3, 6)[RNG.integers(3, size=200)]).astype(np.float32)
OOD = (RNG.normal(size=(200, 6)) - 6).astype(np.float32)
AMONG = (0.3 * RNG.normal(size=(200, 6)) + np.eye(3, 6).sum(0)).astype(np.float32)

MAKE = {
    "arht": lambda: ARHTDetector(),
    "rht, class": lambda: RHTDetector(0.1, reference="class"),
    "rht, relative": lambda: RHTDetector(0.1, reference="relative"),
    "mahalanobis, class, two-sided": lambda: MahalanobisDetector(reference="class", tail="two-sided"),
}


@pytest.fixture(params=MAKE)
def pair(request):
    """The detector by itself, and a guard around it; both calibrated."""
    alone = MAKE[request.param]().fit(FIT, LABELS).calibrate(HELD)
    guard = arht.Guard(Deterministic(torch.nn.Identity(), ""), MAKE[request.param]())
    return alone, guard.fit(FIT, LABELS, calibration=HELD)


def test_the_same_as_the_detector_on_the_features(pair):
    alone, guard = pair
    for queries in (FRESH, OOD):
        expected, found = alone.test(queries), guard.test(queries)
        for field in ("score", "statistic"):
            np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.pvalue, expected.pvalue, atol=2 / 301)
        assert found.guarantee == expected.guarantee == "conformal"
        assert (found.nearest_class is None) == (expected.nearest_class is None)
        assert found.smallest_pvalue == expected.smallest_pvalue


def test_the_result_is_whole_and_of_the_callers_kind(pair):
    _, guard = pair
    result = guard.test(FRESH)
    assert isinstance(result, TestResult)
    names = {field.name for field in dataclasses.fields(result)}
    assert names >= {"statistic", "score", "pvalue", "guarantee", "null", "smallest_pvalue", "outcome", "layers"}
    for name in ("statistic", "score", "pvalue", "outcome"):
        values = getattr(result, name)
        assert isinstance(values, np.ndarray)
        assert values.shape == (200,)
    assert isinstance(guard.test(torch.from_numpy(FRESH)).score, torch.Tensor)
    assert np.array_equal(guard.score(FRESH), result.score)


def test_out_of_distribution_inputs_score_higher(pair):
    """The relative form finds what lies among the classes, and cancels what is far from all of them alike."""
    _, guard = pair
    odd = AMONG if guard.mode.reference == "relative" else OOD
    assert np.median(guard.score(odd)) > np.quantile(guard.score(FRESH), 0.95)


def test_no_query_depends_on_the_others(pair):
    """Order, neighbours and a bad row change nothing for the rest."""
    _, guard = pair
    whole = guard.test(FRESH)
    order = RNG.permutation(200)
    np.testing.assert_allclose(guard.score(FRESH[order]), whole.score[order], rtol=1e-9)
    np.testing.assert_allclose(guard.score(FRESH[:1]), whole.score[:1], rtol=1e-9)
    bad = FRESH.copy()
    bad[3, 2] = np.nan
    result = guard.test(bad)
    assert result.outcome[3] == Outcome.NOT_FINITE
    others = np.arange(200) != 3
    assert np.array_equal(result.score[others], whole.score[others])


def test_fit_and_calibrate_may_come_in_chunks_and_again(pair):
    _, guard = pair
    detector = guard.mode
    other = arht.Guard(guard.encoder, detector)
    other.fit((FIT[part], LABELS[part]) for part in (slice(0, 90), slice(90, 400)))
    other.calibrate(HELD[part] for part in (slice(0, 100), slice(100, 300)))
    np.testing.assert_allclose(other.score(FRESH), guard.score(FRESH), rtol=1e-6, atol=1e-9)
    with pytest.raises(InputError, match="calibrate"):
        other.fit(FIT, LABELS).test(FRESH)  # a new fit forgets the calibration


def test_arrays_that_were_given_are_not_changed(pair):
    _, guard = pair
    copies = [array.copy() for array in (FIT, HELD, FRESH)]
    guard.fit(FIT, LABELS, calibration=HELD).test(FRESH, explain=True)
    for array, copy in zip((FIT, HELD, FRESH), copies, strict=True):
        assert np.array_equal(array, copy)


def test_the_kit_passes_for_the_detectors_of_the_recipe():
    check_detector(lambda: RHTDetector(0.01, ridge_unit="mean_eigenvalue", reference="relative"), fresh_process=False)
