"""The statistics against naive twins: global, per class, relative; one draw and several."""

import numpy as np
import pytest
import torch

import arht
from arht.detectors import ARHTDetector, ClassMoments, HotellingDetector, MahalanobisDetector, RHTDetector
from arht.errors import InputError
from tests.reference import detectors as twin

RNG = np.random.default_rng(5)
P, C = 7, 3
MEANS = 2 * RNG.normal(size=(C, P))
LABELS = RNG.integers(C, size=90)
ROWS = MEANS[LABELS] + RNG.normal(size=(90, P)) @ np.diag(np.linspace(0.3, 2, P))
DRAWS = {
    1: MEANS[RNG.integers(C, size=12)][:, None] + RNG.normal(size=(12, 1, P)),
    4: MEANS[RNG.integers(C, size=12)][:, None] + RNG.normal(size=(12, 4, P)),
    11: MEANS[RNG.integers(C, size=12)][:, None] + RNG.normal(size=(12, 11, P)),  # more draws than columns
}


def naive(draws, ridge):
    """RHT against the global mean [B], and against each class [B, C], with pooled degrees of the within scatter."""
    n, mean, scatter = twin.moments(ROWS)
    whole = np.array([twin.rht(query, mean, scatter, n, n, ridge) for query in draws])
    classes, inner = twin.within(ROWS, LABELS)
    n_w = len(ROWS) - C + 1
    near = [[twin.rht(q, mu, inner, n_w, n_c, ridge) for n_c, mu in classes.values()] for q in draws]
    return whole, np.array(near)


@pytest.mark.parametrize("draws", DRAWS)
def test_rht_equals_the_twin(draws):
    queries = DRAWS[draws]
    whole, near = naive(queries, 0.3)
    found = RHTDetector(0.3).fit(ROWS).test(queries)
    np.testing.assert_allclose(found.statistic, whole, rtol=1e-9)
    found = RHTDetector(0.3, reference="class").fit(ROWS, LABELS).test(queries)
    np.testing.assert_allclose(found.statistic, near.min(1), rtol=1e-8)
    assert np.array_equal(found.nearest_class, near.argmin(1))
    found = RHTDetector(0.3, reference="relative").fit(ROWS, LABELS).test(queries)
    np.testing.assert_allclose(found.score, near.min(1) - whole, rtol=1e-8)


@pytest.mark.parametrize("draws", DRAWS)
def test_global_arht_is_arht_scores(draws):
    detector = ARHTDetector(0.01, (1, 5, 100)).fit(ROWS)
    found = detector.test(DRAWS[draws])
    expected = arht.arht_scores(DRAWS[draws], ROWS, ridges=[0.01, 0.05, 1.0])
    for name in ("statistic", "score", "pvalue", "ridge", "theta1", "theta2"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    assert (found.guarantee, found.null, found.method) == (expected.guarantee, expected.null, "arht")


@pytest.mark.parametrize("draws", DRAWS)
def test_arht_of_classes_equals_the_twin(draws):
    """At one ridge, so that the twin need not choose: standardised smallest RHT; relative on the linear scale."""
    queries, ridge = DRAWS[draws], 0.3
    whole, near = naive(queries, ridge)
    n, _, scatter = twin.moments(ROWS)
    _, inner = twin.within(ROWS, LABELS)
    within = np.array([twin.thetas(query, inner, len(ROWS) - C + 1, ridge) for query in queries]).T
    total = np.array([twin.thetas(query, scatter, n, ridge) for query in queries]).T
    theta1, theta2 = within
    cube = np.cbrt(near.min(1) / P) - np.cbrt(theta1)
    expected = 3 * np.sqrt(P) * cube * theta1 ** (2 / 3) / np.sqrt(2 * theta2)
    found = ARHTDetector(ridge, (1,), reference="class").fit(ROWS, LABELS).score(queries)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)

    def linear(value, t):
        return np.sqrt(P) * (value / P - t[0]) / np.sqrt(2 * t[1])

    found = ARHTDetector(ridge, (1,), reference="relative").fit(ROWS, LABELS).score(queries)
    np.testing.assert_allclose(found, linear(near.min(1), within) - linear(whole, total), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("draws", DRAWS)
def test_hotelling_equals_the_two_sample_test(draws):
    detector = HotellingDetector().fit(ROWS)
    found = detector.test(DRAWS[draws])
    for i, query in enumerate(DRAWS[draws]):
        expected = arht.hotelling_test(ROWS, query)
        np.testing.assert_allclose(found.statistic[i], expected.statistic, rtol=1e-9)
        np.testing.assert_allclose(found.pvalue[i], expected.pvalue, rtol=1e-7)
    assert (found.guarantee, found.null) == ("exact", expected.null)


def test_mahalanobis_equals_scipy():
    from scipy.spatial.distance import mahalanobis

    queries = DRAWS[4]
    inverse = np.linalg.inv(np.cov(ROWS.T))
    expected = [mahalanobis(query.mean(0), ROWS.mean(0), inverse) ** 2 for query in queries]
    np.testing.assert_allclose(MahalanobisDetector().fit(ROWS).score(queries), expected, rtol=1e-9)
    _, inner = twin.within(ROWS, LABELS)
    inverse = np.linalg.inv(inner / (len(ROWS) - C))
    means = [ROWS[c == LABELS].mean(0) for c in range(C)]
    near = [min(mahalanobis(query.mean(0), mean, inverse) ** 2 for mean in means) for query in queries]
    np.testing.assert_allclose(MahalanobisDetector(reference="class").fit(ROWS, LABELS).score(queries), near, rtol=1e-9)


def test_what_can_be_fitted_is_the_same():
    expected = ARHTDetector().fit(ROWS).score(DRAWS[4])
    same = [
        arht.Moments.of(ROWS),
        ROWS.reshape(30, 3, P),
        torch.from_numpy(ROWS),
        ROWS.tolist(),
        iter([ROWS[:40], ROWS[40:]]),
        [ROWS[:40], torch.from_numpy(ROWS[40:])],
        iter([arht.Moments.of(ROWS[:40]), ROWS[40:]]),
        ClassMoments.of(torch.from_numpy(ROWS), torch.from_numpy(LABELS)),
    ]
    for reference in same:
        np.testing.assert_allclose(ARHTDetector().fit(reference).score(DRAWS[4]), expected, rtol=1e-7, atol=1e-8)
    groups = {c: arht.Moments.of(ROWS[c == LABELS]) for c in range(C)}
    by_rows = ARHTDetector(reference="relative").fit(ROWS, LABELS).score(DRAWS[4])
    joined = ARHTDetector(reference="relative").fit(ClassMoments.join(groups)).score(DRAWS[4])
    np.testing.assert_allclose(joined, by_rows, rtol=1e-7, atol=1e-8)


def test_fit_starts_anew_and_new_moments_drop_the_calibration():
    detector = ARHTDetector().fit(ROWS + 5).calibrate(ROWS).fit(ROWS)
    assert not detector.calibrated
    assert detector.inputs == len(ROWS)
    np.testing.assert_array_equal(detector.score(DRAWS[4]), ARHTDetector().fit(ROWS).score(DRAWS[4]))
    assert not detector.calibrate(ROWS).partial_fit(ROWS[:5]).calibrated


@pytest.mark.parametrize("reference", ["global", "class", "relative"])
def test_a_ridge_in_units_of_the_mean_eigenvalue_ignores_units(reference):
    detector = ARHTDetector(0.1, ridge_unit="mean_eigenvalue", reference=reference).fit(ROWS, LABELS)
    scaled = ARHTDetector(0.1, ridge_unit="mean_eigenvalue", reference=reference).fit(1000 * ROWS, LABELS)
    np.testing.assert_allclose(scaled.score(1000 * DRAWS[4]), detector.score(DRAWS[4]), rtol=1e-6, atol=1e-7)
    absolute = ARHTDetector(0.1, reference=reference).fit(ROWS, LABELS).score(DRAWS[4])
    moved = ARHTDetector(0.1, reference=reference).fit(1000 * ROWS, LABELS).score(1000 * DRAWS[4])
    assert np.abs(moved - absolute).max() > 1e-3


def test_two_sided_finds_what_is_too_near():
    """The measured reason for the mode: inputs at the very centre score below all in-distribution ones."""
    rng = np.random.default_rng(0)
    x, held = rng.normal(size=(2000, 40)), rng.normal(size=(999, 40))
    centre = 0.05 * rng.normal(size=(5, 40))
    upper = ARHTDetector().fit(x).calibrate(held).test(centre)
    both = ARHTDetector(tail="two-sided").fit(x).calibrate(held).test(centre)
    assert (upper.pvalue == 1).all()
    assert (both.pvalue == 2 / 1000).all()
    far = ARHTDetector(tail="two-sided").fit(x).calibrate(held).test(np.stack([centre[0], x[0], 0 * x[0] + 3]))
    assert far.score[1] < min(far.score[0], far.score[2])
    assert far.score[0] > ARHTDetector(tail="two-sided").fit(x).calibrate(held).score(held).max() - 1e-9


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    "detector",
    [
        ARHTDetector(),
        ARHTDetector(reference="class"),
        RHTDetector(0.5),
        HotellingDetector(),
        MahalanobisDetector(reference="class"),
    ],
    ids=repr,
)
def test_explanations_share_out_the_form(detector, draws):
    detector.fit(ROWS, LABELS)
    queries = DRAWS[draws]
    found = detector.explain(queries)
    assert found.directions.shape == (12, P)
    np.testing.assert_allclose(found.directions.sum(1), 1)
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(P), atol=1e-12)
    # the dense form: d ∘ (A d) in the basis
    if isinstance(detector, RHTDetector):
        ridge = 0.5
        n, mean, scatter = twin.moments(ROWS)
        if detector.reference != "global":
            classes, scatter = twin.within(ROWS, LABELS)
            n -= C - 1
        for i, query in enumerate(queries):
            if detector.reference != "global":
                mean = classes[int(detector.test(queries).nearest_class[i])][1]
            own = (query - query.mean(0)).T @ (query - query.mean(0))
            inverse = np.linalg.inv((scatter + own) / (n + draws - 2) + ridge * np.eye(P))
            d = found.basis.T @ (query.mean(0) - mean)
            parts = d * (found.basis.T @ inverse @ found.basis @ d)
            np.testing.assert_allclose(found.directions[i], parts / parts.sum(), atol=1e-9)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("kind", [RHTDetector, HotellingDetector, MahalanobisDetector, ARHTDetector])
def test_relative_explanations_share_out_the_difference(kind, draws):
    """The directions' parts, in units of class plus global distance, sum to the statistic, global term and all."""
    queries = DRAWS[draws]
    relative = kind(reference="relative").fit(ROWS, LABELS)
    found, result = relative.explain(queries), relative.test(queries)
    share = found.directions.sum(1)
    if kind is ARHTDetector:  # up to the constants of its two standardisations: rebuilt from Θ₁
        scale, offset = [], []
        near = torch.from_numpy(result.nearest_class)
        x = torch.from_numpy(queries)
        for side, columns in ((relative._classes, near), (relative._global, torch.zeros(len(queries), dtype=int))):
            r = arht.arht_scores(x, side.reference, ridges=relative._ridges(side), null="normal")
            values = relative._values(side, x)[torch.arange(len(queries)), columns]
            offset.append(P**0.5 * r.theta1 / (2 * r.theta2).sqrt())
            scale.append(values + offset[-1])
        expected = (scale[0] - scale[1]).numpy()
        np.testing.assert_allclose(result.statistic, expected - (offset[0] - offset[1]).numpy(), rtol=1e-8)
        total = (scale[0] + scale[1]).numpy()
    else:
        parts = [kind(reference=name).fit(ROWS, LABELS).test(queries).statistic for name in ("class", "global")]
        expected, total = result.statistic, parts[0] + parts[1]
    np.testing.assert_allclose(share * total, expected, rtol=1e-7, atol=1e-9 * total.max())
    # the dense parts, by direction of the class's basis
    if kind is MahalanobisDetector:
        basis = found.basis
        n, mean, scatter = twin.moments(ROWS)
        classes, within = twin.within(ROWS, LABELS)
        for i, query in enumerate(queries):
            centre = classes[int(result.nearest_class[i])][1]
            rows = []
            for middle, covariance in ((centre, within / (n - C)), (mean, scatter / (n - 1))):
                d = query.mean(0) - middle
                rows.append((basis.T @ d) * (basis.T @ np.linalg.solve(covariance, d)))
            np.testing.assert_allclose(found.directions[i], (rows[0] - rows[1]) / (sum(rows).sum()), atol=1e-9)


def test_nearest_are_the_nearest():
    """All rows are kept here, so a brute-force search in the statistic's metric must agree; a kept row finds itself."""
    detector = MahalanobisDetector(keep=1000).fit(ROWS)
    queries = np.concatenate([DRAWS[1][:, 0], ROWS[17:18]])
    found = detector.explain(queries, nearest=3)
    inverse = np.linalg.inv(np.cov(ROWS.T))
    d = queries[:, None] - ROWS
    distances = np.sqrt(np.einsum("bnp,pq,bnq->bn", d, inverse, d))
    order = distances.argsort(1)[:, :3]
    assert np.array_equal(found.nearest, order)
    np.testing.assert_allclose(found.distances, np.take_along_axis(distances, order, 1), atol=1e-6)
    assert found.nearest[-1, 0] == 17
    assert MahalanobisDetector(keep=0).fit(ROWS).explain(queries).nearest is None


def test_the_result_carries_the_explanation():
    detector = ARHTDetector().fit(ROWS).calibrate(ROWS)
    result = detector.test(DRAWS[4], explain=True)
    np.testing.assert_array_equal(result.explanation.directions, detector.explain(DRAWS[4]).directions)
    assert detector.test(DRAWS[4]).explanation is None
    tensors = detector.test(torch.from_numpy(DRAWS[4]), explain=True)
    assert isinstance(tensors.explanation.nearest, torch.Tensor)


def test_what_is_kept_does_not_depend_on_order():
    first = ARHTDetector(keep=10).fit(ROWS)
    order = np.random.default_rng(0).permutation(len(ROWS))
    second = ARHTDetector(keep=10).fit(iter([ROWS[order[:50]], ROWS[order[50:]]]))
    np.testing.assert_array_equal(np.sort(first._kept.rows, 0), np.sort(second._kept.rows, 0))
    assert sorted(first._kept.positions.tolist()) == sorted(order[second._kept.positions].tolist())


def test_constant_direction_is_refused_where_it_must_be():
    flat = ROWS.copy()
    flat[:, 2] = 1.0
    for detector in (HotellingDetector(), MahalanobisDetector()):
        with pytest.raises(InputError, match="must have full rank P=7; got rank 6 from n=90 rows"):
            detector.fit(flat).test(DRAWS[1])
    assert np.isfinite(MahalanobisDetector(ridge=0.1).fit(flat).score(DRAWS[1])).all()
    assert np.isfinite(ARHTDetector().fit(flat).score(DRAWS[1])).all()


def test_a_query_too_large_for_numbers_is_degenerate():
    queries = DRAWS[1].copy()
    queries[2] = 1e200
    result = ARHTDetector().fit(ROWS).calibrate(ROWS).test(queries)
    assert result.outcome[2] == arht.Outcome.DEGENERATE
    assert np.isnan(result.pvalue[2])
    assert (np.delete(result.outcome, 2) == 0).all()
