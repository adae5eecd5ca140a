"""Moments: any chunks, any order, any offset give the same; taking out undoes putting in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arht import Moments
from arht.stats import moments as module
from tests.reference import exact
from tests.targets import correlated, rows

X = correlated(50, 4, 1) + np.linspace(1, 2, 4)


def same(a, b, rtol=1e-12):
    assert a.n == b.n
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol)
    size = float((b.scatter.diagonal() + b.mean.square()).max())
    np.testing.assert_allclose(a.scatter, b.scatter, rtol=rtol, atol=rtol * size)


def naive(x):
    centred = x - x.mean(0)
    return Moments(len(x), torch.from_numpy(x.mean(0)), torch.from_numpy(centred.T @ centred))


def test_of_rows_is_numpy():
    moments = Moments.of(X)
    same(moments, naive(X))
    np.testing.assert_allclose(moments.covariance, np.cov(X.T), rtol=1e-12)
    assert moments.width == 4


def test_draws_are_rows():
    same(Moments.of(X.reshape(5, 10, 4)), naive(X))


def test_a_vector_is_one_column():
    same(Moments.of(X[:, 0]), naive(X[:, :1]))


@given(st.lists(st.integers(1, 49), max_size=6, unique=True), st.randoms(use_true_random=False))
def test_any_chunks_in_any_order(cuts, shuffle):
    chunks = np.split(X, sorted(cuts))
    shuffle.shuffle(chunks)
    same(Moments.stream(chunks), naive(X))
    merged = Moments.zero(4)
    for chunk in chunks:
        merged = Moments.of(chunk).merge(merged)
    same(merged, naive(X))


@given(st.integers(1, 49))
def test_subtract_undoes_merge(cut):
    a, b = Moments.of(X[:cut]), Moments.of(X[cut:])
    same(a.merge(b).subtract(b), a, rtol=1e-10)
    same(a.merge(b).subtract(a), b, rtol=1e-10)
    nothing = a.merge(b).subtract(Moments.of(X))
    assert nothing.n == 0
    same(nothing.merge(a), a)


def test_operands_do_not_change():
    a, b = Moments.of(X[:20]), Moments.of(X[20:])
    before = [part.clone() for part in (a.mean, a.scatter, b.mean, b.scatter)]
    a.merge(b)
    a.merge(b).subtract(b)
    Moments.stream([X[:20], X[20:]])
    assert all(torch.equal(now, then) for now, then in zip((a.mean, a.scatter, b.mean, b.scatter), before, strict=True))


def test_blocks_within_one_array(monkeypatch):
    whole = Moments.of(X)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8 * 4 * 7)  # 7 rows at a time
    same(Moments.of(X), whole)


@pytest.mark.parametrize("offset", [1e3, 1e8])
@pytest.mark.parametrize("block", [1 << 20, 8 * 4 * 7])
def test_a_common_offset_costs_no_digits(offset, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_BYTES", block)
    x = X + offset  # rounds x itself; the truth is computed from what is left
    centred = exact.numbers(x) - exact.numbers(x).mean(0)
    truth = (centred.T @ centred).astype(np.float64)
    for moments in (Moments.of(x), Moments.stream(np.split(x, 5))):
        np.testing.assert_allclose(moments.scatter, truth, rtol=1e-12, atol=3e-16 * offset * np.abs(truth).max())
        np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8])
def test_other_numbers_are_read_as_float64(dtype):
    x = np.rint(30 * (X + 2)).astype(dtype)
    moments = Moments.of(x)
    assert moments.scatter.dtype == torch.float64
    same(moments, naive(x.astype(np.float64)))
    same(Moments.of(torch.from_numpy(x)), moments)


def test_a_read_only_memory_map(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    same(Moments.of(np.load(tmp_path / "x.npy", mmap_mode="r")), naive(X.astype(np.float32).astype(np.float64)))


def test_grouped_and_within():
    labels = np.arange(50) % 3 * 10
    x = X + labels[:, None]  # group means far apart: the within scatter must not see them
    groups = Moments.grouped(x, labels)
    assert list(groups) == [0, 10, 20]
    for label, group in groups.items():
        same(group, naive(x[labels == label]))
    degrees, scatter = Moments.within(groups.values())
    assert degrees == 47
    centred = x - np.stack([x[labels == label].mean(0) for label in labels])
    np.testing.assert_allclose(scatter, centred.T @ centred, rtol=1e-11)
    together = groups[20].merge(groups[0]).merge(groups[10])
    same(together, naive(x))


def test_order_of_many_rows_does_not_matter():
    x = rows(20_000, 3, offset=5)
    same(Moments.of(x), Moments.of(x[::-1].copy()), rtol=1e-11)
