"""arht_scores: many queries against one reference, each equal to the dense twin's own answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arht import Moments, Reference, arht_scores, arht_test
from arht.stats import arht_stream
from arht.stats.nulls import Conformal, CubeRoot
from arht.stats.results import Outcome
from tests.reference import dense, exact
from tests.targets import rows

PRIORS = {"identity": (1, 0, 0), "paper": (0, 1, 0), "square": (0, 0, 1), "mixed": (0.5, 0.3, 0.2)}
# n1, P, K: K < P, K = P, K > P, one draw, P > n1 + K - 2, no room for the series
SHAPES = [
    (4000, 12, 5), (4000, 12, 12), (4000, 12, 30), (4000, 12, 1),
    (60_000, 12, 30), (20, 12, 5), (10, 24, 4), (10, 24, 40),
]  # fmt: skip


def queries(count, k, p, *, kind="flat", shift=0.5, seed=7):
    """Clouds of K draws, each about a centre of its own."""
    x = rows(count * k, p, kind=kind, seed=seed).reshape(count, k, p)
    return x + shift * rows(count, p, kind=kind, seed=seed + 1)[:, None]


def grid(x, multiples=(0.01, 0.1, 1.0)):
    return np.var(x, axis=0).mean() * np.array(multiples)


def assert_equal_to_the_twin(result, x, draws, ridges, prior, judge=dense):
    assert (result.outcome == Outcome.OK).all()
    for i, cloud in enumerate(draws):
        twin = judge.arht(x, cloud, ridges, prior)
        at = judge.terms(x, cloud, result.ridge[i])
        # the ridge is the twin's, or one that is as good to the last digits
        assert float(at.q(prior)) == pytest.approx(float(twin.q(prior)), rel=1e-9)
        # RHT from the statistic, by undoing the cube root
        third, theta1, theta2 = 1 / 3, result.theta1[i], result.theta2[i]
        step = result.statistic[i] * (2 * theta2) ** 0.5 * third * theta1 ** (third - 1) / at.p**0.5
        rht = at.p * (theta1**third + step) ** 3
        expected = [float(value) for value in (at.theta1, at.theta2, at.rht)]
        np.testing.assert_allclose([theta1, theta2, rht], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("n", "p", "k"), SHAPES)
def test_each_query_equals_the_twin(n, p, k, prior):
    x, draws = rows(n, p, kind="spiked", offset=2.0), queries(6, k, p, kind="spiked") + 2.0
    ridges = grid(x)
    result = arht_scores(draws, Reference.of(x), ridges=ridges, priors=PRIORS[prior])
    assert_equal_to_the_twin(result, x, draws, ridges, PRIORS[prior])


@pytest.mark.parametrize(("n", "p", "k"), [(4000, 12, 5), (4000, 12, 12), (4000, 12, 30), (4000, 12, 1), (9, 14, 4)])
def test_an_ill_conditioned_reference(n, p, k):
    """Eigenvalues over ten decades, ridges of a millionth to a tenth of their mean.

    With more columns than rows the printed formulas lose digits in float64, so 50-digit arithmetic judges.
    """
    judge = exact if p > n else dense
    x, draws = rows(n, p, kind="ill"), queries(3, k, p, kind="ill")
    for ridge in grid(x, (1e-6, 1e-3, 0.1)):  # each alone, so that the smallest is not only offered
        result = arht_scores(draws, Reference.of(x), ridges=[ridge])
        assert_equal_to_the_twin(result, x, draws, [ridge], (0, 1, 0), judge)


@pytest.mark.parametrize("k", [5, 30])
def test_queries_far_wider_than_the_reference(k):
    """Draws a hundred times as wide: no series converges, the answer is as exact."""
    x, draws = rows(3000, 12), 100 * queries(4, k, 12)
    result = arht_scores(draws, Reference.of(x), ridges=grid(x))
    assert_equal_to_the_twin(result, x, draws, grid(x), (0, 1, 0))


@pytest.mark.parametrize("k", [1, 6, 40])
def test_it_is_the_two_sample_test(k):
    """The default grid has 200 ridges; the number of priors is one or three."""
    x, draws = rows(3000, 12, kind="spiked"), queries(5, k, 12)
    reference = Reference.of(x)
    ridges = reference.default_ridges().numpy()
    for priors in ((0, 1, 0), ((1, 0, 0), (0, 1, 0), (0, 0, 1))):
        result = arht_scores(draws, reference, priors=priors)
        for i, cloud in enumerate(draws):
            alone = arht_test(x, cloud, ridges=ridges, priors=priors)
            for name in ("statistic", "theta1", "theta2", "ridge"):
                assert getattr(result, name)[i] == pytest.approx(getattr(alone, name), rel=1e-8), name
            assert result.pvalue[i] == pytest.approx(alone.pvalue, rel=1e-6)


def test_a_row_is_a_query_of_one_draw():
    x, single = rows(500, 6), rows(9, 6, seed=3, shift=0.5)
    ours, theirs = (arht_scores(q, Reference.of(x), ridges=grid(x)) for q in (single, single[:, None]))
    np.testing.assert_array_equal(ours.statistic, theirs.statistic)


@pytest.mark.parametrize("priors", [(0, 1, 0), ((1, 0, 0), (0, 1, 0))])
@pytest.mark.parametrize(("n", "p", "k"), [(4000, 12, 5), (60_000, 12, 30), (300, 12, 30), (10, 24, 4), (500, 12, 1)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_query_is_marked_and_its_neighbours_are_bit_identical(n, p, k, priors, bad):
    reference, draws = Reference.of(rows(n, p)), queries(7, k, p)
    ridges = grid(rows(n, p))
    clean = arht_scores(draws, reference, ridges=ridges, priors=priors)
    broken = draws.copy()
    broken[3, k // 2, 1] = bad
    result = arht_scores(broken, reference, ridges=ridges, priors=priors)
    others = np.arange(7) != 3
    assert result.outcome[3] == Outcome.NOT_FINITE
    assert np.isnan(result.pvalue[3])
    assert np.isnan(result.score[3])
    for name in ("score", "pvalue", "ridge", "theta1", "theta2", "outcome"):
        np.testing.assert_array_equal(getattr(result, name)[others], getattr(clean, name)[others], err_msg=name)
    assert not result.decide(fdr=0.999).rejected[3]


def test_a_bad_query_changes_no_bit_of_those_that_are_answered_exactly():
    """Small matrices are multiplied many at a time, and the last digits may depend on how many.

    Where the number was that of the queries which needed it, they did in 2 of 1,000 such calls.
    """
    for seed in range(300):
        rng = np.random.default_rng(seed)
        eigenvalues = np.sort(10 ** rng.uniform(-2, 0, 5))[::-1].copy()
        zeros, axes = torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
        reference = Reference(5000, zeros, axes, torch.from_numpy(5000 * eigenvalues))
        draws = rng.standard_normal((6, 3, 5))
        draws[:3] *= 10  # too wide for the series
        ridges = np.array([0.01, 0.1, 1.0]) * eigenvalues.mean()
        clean = arht_scores(draws, reference, ridges=ridges)
        draws[0, 0, 0] = np.nan
        broken = arht_scores(draws, reference, ridges=ridges)
        for name in ("statistic", "pvalue", "theta1", "theta2"):
            np.testing.assert_array_equal(getattr(broken, name)[1:], getattr(clean, name)[1:], err_msg=name)


@pytest.mark.parametrize(("n", "p", "k"), [(4000, 12, 5), (60_000, 12, 30), (300, 12, 30), (10, 24, 4), (500, 12, 1)])
def test_neither_chunks_nor_neighbours_matter(n, p, k):
    reference, draws = Reference.of(rows(n, p)), queries(23, k, p, shift=2.0)
    ridges = grid(rows(n, p))
    whole = arht_scores(draws, reference, ridges=ridges)
    order = np.random.default_rng(0).permutation(23)
    for other, index in (
        (arht_scores(draws, reference, ridges=ridges, memory=1), np.arange(23)),  # one query at a time
        (arht_scores(draws, reference, ridges=ridges, memory=200_000), np.arange(23)),
        (arht_scores(draws[order], reference, ridges=ridges), order),
        (arht_scores(draws[4:5], reference, ridges=ridges), np.array([4])),
    ):
        np.testing.assert_array_equal(other.ridge, whole.ridge[index])
        for name in ("statistic", "theta1", "theta2"):
            np.testing.assert_allclose(getattr(other, name), getattr(whole, name)[index], rtol=2e-9, err_msg=name)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_a_stream_is_the_batch(k):
    x, draws = rows(4000, 12), queries(20, k, 12)
    reference = Reference.of(x)
    whole = arht_scores(draws, reference, ridges=grid(x))
    parts = list(arht_stream(np.split(draws, [3, 4, 11]), reference, ridges=grid(x)))
    assert [len(part.score) for part in parts] == [3, 1, 7, 9]
    np.testing.assert_allclose(np.concatenate([part.score for part in parts]), whole.score, rtol=1e-9)
    np.testing.assert_array_equal(np.concatenate([part.ridge for part in parts]), whole.ridge)


def test_a_stream_reads_one_chunk_at_a_time():
    x, read = rows(400, 6), []

    def chunks():
        for i in range(3):
            read.append(i)
            yield queries(2, 4, 6, seed=i)

    results = arht_stream(chunks(), x, ridges=grid(x))
    assert read == []
    next(results)
    assert read == [0]


@pytest.mark.parametrize("k", [4, 20])
def test_the_order_of_the_draws_does_not_matter(k):
    x, draws = rows(3000, 12), queries(4, k, 12)
    shuffled = draws[:, np.random.default_rng(1).permutation(k)]
    ours, theirs = (arht_scores(q, Reference.of(x), ridges=grid(x)).statistic for q in (draws, shuffled))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_single_precision_is_scored_as_the_same_numbers():
    x, draws = rows(3000, 12), queries(4, 20, 12).astype(np.float32)
    ours = arht_scores(draws, Reference.of(x), ridges=grid(x))
    theirs = arht_scores(draws.astype(np.float64), Reference.of(x), ridges=grid(x))
    np.testing.assert_allclose(ours.statistic, theirs.statistic, rtol=1e-9)


def test_a_second_call_uses_what_the_first_prepared():
    x, draws = rows(4000, 12), queries(4, 5, 12)
    reference = Reference.of(x)
    first = arht_scores(draws, reference, ridges=grid(x))
    prepared = dict(reference.prepared)
    assert prepared
    second = arht_scores(draws, reference, ridges=grid(x))
    np.testing.assert_array_equal(first.statistic, second.statistic)
    assert all(reference.prepared[key] is value for key, value in prepared.items())
    # another K or grid is another frame, and old ones make room
    for k in range(2, 40):
        arht_scores(queries(1, k, 12), reference, ridges=grid(x))
    for weight in range(1, 40):
        arht_scores(draws, reference, ridges=grid(x), priors=(weight, 1))
    assert len(reference.prepared) <= 16 + 1  # the choices of ridges
    assert len(reference.prepared["choices"]) <= 16
    np.testing.assert_array_equal(arht_scores(draws, reference, ridges=grid(x)).statistic, first.statistic)


def test_arrays_in_arrays_out_tensors_in_tensors_out():
    x, draws = rows(300, 6), queries(3, 4, 6)
    reference = Reference.of(x)
    assert isinstance(arht_scores(draws, reference, ridges=[0.1]).score, np.ndarray)
    assert isinstance(arht_scores(torch.from_numpy(draws), reference, ridges=[0.1]).score, torch.Tensor)


def test_no_queries_are_no_error():
    result = arht_scores(np.zeros((0, 4, 6)), Reference.of(rows(300, 6)), ridges=[0.1])
    assert result.score.shape == result.pvalue.shape == (0,)


def test_conformal_ranks_the_cube_root_score():
    x = rows(2000, 8)
    reference = Reference.of(x)
    held, draws = queries(99, 5, 8, shift=1.0, seed=20), queries(10, 5, 8, shift=1.0, seed=50)
    calibration = arht_scores(held, reference, ridges=grid(x)).score
    result = arht_scores(draws, reference, ridges=grid(x), null=Conformal(calibration))
    plain = arht_scores(draws, reference, ridges=grid(x), null=CubeRoot())
    np.testing.assert_array_equal(result.score, plain.score)
    np.testing.assert_allclose(result.pvalue, [(1 + (calibration >= s).sum()) / 100 for s in plain.score])
    assert (result.guarantee, result.smallest_pvalue) == ("conformal", 0.01)


def test_scores_grow_with_the_distance():
    x = rows(3000, 12)
    cloud = queries(1, 10, 12, shift=0.0)[0]
    far = np.stack([cloud + step for step in (0.0, 0.3, 0.6, 1.2)])
    assert (np.diff(arht_scores(far, Reference.of(x), ridges=grid(x)).score) > 0).all()


@pytest.mark.parametrize(("p", "k"), [(40, 10), (40, 50)])
def test_working_space_does_not_grow_with_the_number_of_queries(p, k):
    """What is allocated beside the queries and the results stays below the space asked for."""
    from torch.profiler import ProfilerActivity, profile

    reference = Reference.of(Moments.of(rows(20_000, p)))
    ridges, peaks = grid(rows(200, p)), []
    for count in (200, 800):
        draws = torch.from_numpy(queries(count, k, p))
        arht_scores(draws, reference, ridges=ridges, memory=1 << 20)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            arht_scores(draws, reference, ridges=ridges, memory=1 << 20)
        level = peak = 0
        for event in record.profiler.kineto_results.events():
            if event.name() == "[memory]":
                level += event.nbytes()
                peak = max(peak, level)
        peaks.append(peak)
    assert 0 < peaks[0] < 8 << 20
    assert peaks[1] - peaks[0] < 600 * 8 * 40  # a few numbers for each further query
