"""The series in the whitened perturbation: its bounds hold, and they choose the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arht import Reference, arht_scores
from arht.stats import scoring
from arht.stats.exact import Cloud, dense, low_rank
from arht.stats.perturbation import TOLERANCE, Frame, Workspace, _narrow, _radius
from arht.stats.spectrum import thetas_from_sums
from tests.targets import rows

SPACE = Workspace(torch.device("cpu"))


def setting(n, p, k, *, kind="spiked", multiple=0.05, wide=1.0, offset=0.0, count=6):
    """A frame, queries, and the same queries in the reference's eigenbasis."""
    x = rows(n, p, kind=kind, offset=offset)
    reference, degrees = Reference.of(x), n + k - 2
    eigenvalues = reference.eigenvalues / degrees
    ridge = multiple * float(eigenvalues.mean())
    frame = Frame(reference.basis, reference.mean, eigenvalues, degrees, ridge, k)
    q = wide * rows(count * k, p, kind=kind, seed=5, shift=0.3).reshape(count, k, p) + offset
    queries = torch.from_numpy(q)
    return frame, queries, Cloud.of(queries, reference.basis, reference.mean, eigenvalues, degrees)


def by_eigenvalues(cloud, ridge):
    """shrunk, shrunk2 and form from the eigenvalues of each S."""
    values, squares = dense(cloud)
    u = values / (values + ridge)
    return u.sum(1), u.square().sum(1), (squares / (values + ridge)).sum(1)


def errors(sums, exact, width, degrees):
    """Largest relative error of Θ₁, Θ₂ and the form, per query."""
    ours = (*thetas_from_sums(sums.shrunk, sums.shrunk2, width, degrees), sums.form)
    theirs = (*thetas_from_sums(exact[0], exact[1], width, degrees), exact[2])
    return torch.stack([(a / b - 1).abs() for a, b in zip(ours, theirs, strict=True)]).amax(0)


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("kind", ["flat", "spiked", "ill"])
@pytest.mark.parametrize(("p", "k"), [(12, 4), (12, 12), (12, 40), (30, 2)])
@pytest.mark.parametrize("n", [500, 5_000, 100_000])
def test_no_error_exceeds_its_bound(n, p, k, kind, thorough):
    said = []
    for multiple in (1e-3, 0.05, 1.0):
        for wide in (0.3, 1.0, 3.0):
            frame, queries, cloud = setting(n, p, k, kind=kind, multiple=multiple, wide=wide)
            sums = frame.series(queries, SPACE, thorough)
            wrong = errors(sums, by_eigenvalues(cloud, frame.ridge), p, frame.degrees)
            assert (wrong <= sums.bound + 1e-12).all(), (wrong, sums.bound)  # the judge's own rounding: 1e-12
            said.append(sums.bound)
    if n == 100_000 and kind != "ill":
        assert (torch.cat(said) < TOLERANCE).any()  # the bound is of use


def test_no_error_exceeds_its_bound_far_from_the_origin():
    """An offset a million times the scale costs digits, and the bound says so."""
    for p, k in ((12, 4), (12, 40)):
        for offset in (1e2, 1e4, 1e6):
            frame, queries, cloud = setting(20_000, p, k, offset=offset)
            sums = frame.series(queries, SPACE)
            assert (errors(sums, by_eigenvalues(cloud, frame.ridge), p, frame.degrees) <= sums.bound + 1e-9).all()
            if offset == 1e6:
                assert (sums.bound > TOLERANCE).all()


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("kind", ["flat", "spiked", "ill"])
@pytest.mark.parametrize(("p", "k"), [(12, 4), (12, 40), (20, 2)])
def test_an_offset_that_changes_nothing_stays_within_the_bound(p, k, kind, thorough):
    """All numbers are multiples of 2⁻²⁰, so that adding the offset is exact and the answer is that without it."""
    frame, queries, _ = setting(50_000, p, k, kind=kind, count=20)
    queries = (queries * 2**20).round() / 2**20
    reference = Reference.of(rows(50_000, p, kind=kind))
    mean = (reference.mean * 2**20).round() / 2**20
    exact = by_eigenvalues(
        Cloud.of(queries, reference.basis, mean, frame.eigenvalues, frame.degrees), frame.ridge
    )  # its own rounding: 1e-12
    worst = []
    for offset in (0.0, 2.0**8, 2.0**16, 2.0**24):
        moved = Frame(reference.basis, mean + offset, frame.eigenvalues, frame.degrees, frame.ridge, k)
        sums = moved.series(queries + offset, SPACE, thorough)
        wrong = errors(sums, exact, p, frame.degrees)
        assert (wrong <= sums.bound + 1e-12).all(), (offset, wrong, sums.bound)
        worst.append(float(wrong.max()))
    assert worst[3] > 1e-10  # the offset did cost digits


@pytest.mark.parametrize("thorough", [False, True])
def test_draws_that_are_all_alike(thorough):
    """What is left of them about their mean is rounding alone, and sums of it have either sign.

    Where b'Gb was divided by whatever its sign, one such query in 300, scored alone, came out 10^100 times too large:
    10 of these 3,000 would, none of them by a chance of 5e-5.
    """
    rng, p, k, n = np.random.default_rng(0), 25, 21, 7_000
    basis = torch.linalg.qr(torch.from_numpy(rng.standard_normal((p, p))))[0].contiguous()
    mean = torch.from_numpy(rng.standard_normal(p) * 0.3)
    eigenvalues = torch.from_numpy(np.sort(10 ** rng.uniform(-2, 0, p))[::-1].copy())
    frame = Frame(basis, mean, eigenvalues, n + k - 2, 0.1 * float(eigenvalues.mean()), k)
    one = torch.from_numpy(rng.standard_normal((3_000, 1, p)) * 10 ** rng.uniform(-1, 2, (3_000, 1, 1)))
    exact = ((one[:, 0] - mean) @ basis).square() @ (1 / (eigenvalues + frame.ridge))
    for query, right in zip(one, exact, strict=True):
        sums = frame.series(query.expand(k, p)[None].contiguous(), SPACE, thorough)
        assert abs(sums.form / right - 1) <= sums.bound + 1e-12
        assert sums.bound < TOLERANCE


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("k", [4, 40])
def test_a_query_whose_mean_is_all_but_the_references(k, thorough):
    """The difference of the means cancels nearly all digits, and the bound says so. Exact as above."""
    frame, queries, _ = setting(300_000, 12, k, count=20)
    reference = Reference.of(rows(300_000, 12))
    mean = (reference.mean * 2**20).round() / 2**20
    half = ((queries[:, ::2] - queries.mean(1, keepdim=True)) * 2**20).round() / 2**20
    queries = mean + torch.cat([half, -half], 1) + 2.0**-20  # their mean: the reference's and 2⁻²⁰
    cloud = Cloud.of(queries - mean, reference.basis, 0 * mean, frame.eigenvalues, frame.degrees)
    exact = by_eigenvalues(cloud, frame.ridge)
    for offset in (2.0, 2.0**6):
        moved = Frame(reference.basis, mean + offset, frame.eigenvalues, frame.degrees, frame.ridge, k)
        sums = moved.series(queries + offset, SPACE, thorough)
        wrong = errors(sums, exact, 12, frame.degrees)
        assert (wrong <= sums.bound + 1e-11).all(), (offset, wrong, sums.bound)
    assert wrong.max() > 1e-10  # it did cost digits


@pytest.mark.parametrize("thorough", [False, True])
def test_draws_whose_differences_the_rotation_loses(thorough):
    """Two draws at 1e14 that differ by less than its last digit once they are rotated: what is lost is in the bound."""
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        basis = torch.from_numpy(np.linalg.qr(rng.standard_normal((3, 3)))[0])
        apart = 1e14 * 1.1e-16 * rng.uniform(0.1, 0.6)
        ones, ridge, degrees = torch.ones(3, dtype=torch.float64), 0.1, 100
        frame = Frame(basis, 0 * ones, ones, degrees, ridge, 2)
        query = torch.tensor([[[1e14, apart, 0.0], [1e14, 0.0, -apart]]], dtype=torch.float64)
        sums = frame.series(query, SPACE, thorough)
        value = 2 * (apart / 2) ** 2 * 2 / degrees  # S = I and one direction more: its eigenvalue is 1 + this
        exact = [float(sum(e / (e + ridge) for e in (1, 1, 1 + value)))]
        exact.append(float(sum((e / (e + ridge)) ** 2 for e in (1, 1, 1 + value))))
        theirs = thetas_from_sums(*(torch.tensor([v], dtype=torch.float64) for v in exact), 3, degrees)
        ours = thetas_from_sums(sums.shrunk, sums.shrunk2, 3, degrees)
        wrong = max(float((a / b - 1).abs()) for a, b in zip(ours, theirs, strict=True))
        assert wrong <= float(sums.bound) + 1e-12
        worst = max(worst, wrong)
    assert worst > 1e-9  # it did lose them


def test_less_than_float32_is_not_used_for_products():
    """With bfloat16 products allowed, what would be float32 is float64: the bounds would not hold otherwise."""
    for p, k in ((12, 4), (12, 40)):
        frame, queries, cloud = setting(100_000, p, k)
        before = frame.series(queries, SPACE, thorough=False)
        torch.set_float32_matmul_precision("medium")
        try:
            assert _narrow() == torch.float64
            sums = Frame.series(frame, queries, Workspace(torch.device("cpu")), False)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert _narrow() == torch.float32
        assert (errors(sums, by_eigenvalues(cloud, frame.ridge), p, frame.degrees) <= sums.bound + 1e-12).all()
        torch.testing.assert_close(sums.form, before.form, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("p", "k"), [(12, 4), (12, 40)])
def test_where_the_series_may_diverge_nothing_is_claimed(p, k):
    frame, queries, _ = setting(300, p, k, wide=30.0)
    assert frame.series(queries, SPACE).bound.isinf().all()
    assert frame.series(queries, SPACE, thorough=False).bound.isinf().all()


def test_one_order_more_narrows_the_bound():
    frame, queries, _ = setting(20_000, 12, 40)
    assert (frame.series(queries, SPACE).bound < frame.series(queries, SPACE, thorough=False).bound / 3).all()


def test_the_diagonal_and_the_norm_are_those_of_the_perturbation():
    for p, k in ((12, 4), (12, 40)):
        frame, queries, _ = setting(5_000, p, k)
        y = (queries - queries.mean(1, keepdim=True)) @ frame.whitening
        e = y.mT @ y
        sums = frame.series(queries, SPACE)
        torch.testing.assert_close(sums.variances, e.diagonal(dim1=1, dim2=2), rtol=1e-5, atol=0)
        norm = torch.linalg.matrix_norm(e)
        assert (sums.spread >= norm * (1 - 1e-12)).all()
        assert (sums.spread <= norm * 1.001).all()


def test_the_radius_is_no_smaller_than_the_largest_eigenvalue():
    y = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 9, 6)))
    e = y.mT @ y
    e[0, 2] = e[0, :, 2] = 0.0  # a row of zeros
    e[1] = 0.0
    largest = torch.linalg.eigvalsh(e)[:, -1]
    assert (_radius(e.abs()) >= largest * (1 - 1e-12)).all()
    assert (_radius(e.abs()) <= 3 * largest + 1e-12).all()


def test_first_order_sums_at_other_ridges_are_as_near_as_stated():
    for p, k in ((12, 4), (12, 40)):
        frame, queries, cloud = setting(5_000, p, k)
        ridges = frame.ridge * torch.tensor([0.3, 1.0, 5.0], dtype=torch.float64)
        weight1, weight2, base1, base2 = frame.first_order(ridges)
        sums = frame.series(queries, SPACE)
        epsilon = sums.spread[:, None] * frame.stretch(ridges)
        for j, ridge in enumerate(ridges):
            shrunk, shrunk2, _ = by_eigenvalues(cloud, float(ridge))
            safe = epsilon[:, j]
            off = safe.square() / (1 - safe) + 1e-5 * safe
            assert ((base1[j] + sums.variances @ weight1[:, j] - shrunk).abs() <= off).all()
            assert ((base2[j] + sums.variances @ weight2[:, j] - shrunk2).abs() <= 5 * off / (1 - safe)).all()


@pytest.mark.parametrize("wide", [0.1, 1.0, 100.0])
@pytest.mark.parametrize(("n", "p", "k"), [(2_000, 12, 4), (200, 12, 11), (30, 12, 3)])
def test_woodbury_is_exact(n, p, k, wide):
    _, _, cloud = setting(n, p, k, wide=wide)
    for ridge in (0.01, 1.0):
        shrunk, shrunk2, form, magnified = low_rank(cloud, ridge)
        exact = by_eigenvalues(cloud, ridge)
        for ours, theirs in zip((shrunk, shrunk2), exact[:2], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=0)
        assert ((form / exact[2] - 1).abs() <= magnified + 1e-12).all()


def test_dense_is_numpy():
    _, _, cloud = setting(100, 6, 9)
    values, squares = dense(cloud)
    for i in range(len(values)):
        s = np.diag(cloud.eigenvalues) + cloud.draws[i].T.numpy() @ cloud.draws[i].numpy() / cloud.degrees
        np.testing.assert_allclose(values[i], np.linalg.eigvalsh(s)[::-1], rtol=1e-10)
        d = cloud.difference[i].numpy()
        np.testing.assert_allclose((squares[i] / (values[i] + 0.3)).sum(), d @ np.linalg.solve(s + 0.3 * np.eye(6), d))


class Watched:
    """Counts the queries that go each way."""

    def __init__(self, monkeypatch):
        self.exactly = self.thorough = 0
        exact, series = scoring._Engine._exactly, Frame.series

        def counted(engine, cloud):
            self.exactly += len(cloud.difference.unique(dim=0))  # a batch is filled up by repeating
            return exact(engine, cloud)

        def ordered(frame, queries, space, thorough=True):
            self.thorough += len(queries) if thorough else 0
            return series(frame, queries, space, thorough)

        monkeypatch.setattr(scoring._Engine, "_exactly", counted)
        monkeypatch.setattr(Frame, "series", ordered)


def scored(n, k, wide=1.0):
    x = rows(n, 12)
    draws = wide * rows(8 * k, 12, seed=5, shift=0.3).reshape(8, k, 12)
    return arht_scores(draws, Reference.of(x), ridges=[0.01, 0.1, 1.0])


@pytest.mark.parametrize("k", [4, 40])
def test_the_bound_chooses_the_exact_way(monkeypatch, k):
    near = scored(300_000, k)
    watched = Watched(monkeypatch)
    again = scored(300_000, k)
    assert watched.exactly == 0  # the bound holds, the series answers
    np.testing.assert_array_equal(again.statistic, near.statistic)
    monkeypatch.setattr(scoring, "TOLERANCE", 0.0)  # no bound is small enough
    forced = scored(300_000, k)
    assert watched.exactly == 8
    np.testing.assert_array_equal(forced.ridge, near.ridge)
    for name in ("theta1", "theta2"):
        np.testing.assert_allclose(getattr(forced, name), getattr(near, name), rtol=1e-9)
    np.testing.assert_allclose(forced.statistic, near.statistic, rtol=1e-8)


@pytest.mark.parametrize("k", [4, 40])
def test_wide_queries_go_the_exact_way(monkeypatch, k):
    watched = Watched(monkeypatch)
    scored(3_000, k, wide=50.0)
    assert watched.exactly == 8


def test_one_order_more_only_where_it_is_needed(monkeypatch):
    watched = Watched(monkeypatch)
    scored(10_000_000 // 10, 40, wide=0.3)
    assert (watched.thorough, watched.exactly) == (0, 0)
    scored(60_000, 40)
    assert (watched.thorough, watched.exactly) == (8, 0)
    scored(100_000, 4)
    assert (watched.thorough, watched.exactly) == (8, 0)
    scored(100_000, 4, wide=3.0)  # wider than the reference: not foreseen
    assert (watched.thorough, watched.exactly) == (16, 0)
    scored(20_000, 4)  # foreseen
    assert (watched.thorough, watched.exactly) == (24, 0)


def test_the_workspace_gives_the_same_memory_again():
    space = Workspace(torch.device("cpu"))
    first = space.take("a", torch.float64, 4, 5)
    assert first.is_contiguous()
    assert space.take("a", torch.float64, 3, 2).data_ptr() == first.data_ptr()
    assert space.take("b", torch.float64, 3, 2).data_ptr() != first.data_ptr()
    assert space.take("a", torch.float64, 40, 50).shape == (40, 50)
