"""Reference: a sample's scatter, factored."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arht import Moments, Reference
from tests.reference import dense
from tests.targets import rows


@pytest.mark.parametrize(("n", "p"), [(50, 6), (5, 12)])
def test_it_is_the_eigendecomposition_of_the_scatter(n, p):
    x = rows(n, p, kind="spiked", offset=3)
    reference, scatter = Reference.of(x), Moments.of(x).scatter.numpy()
    basis, values = reference.basis.numpy(), reference.eigenvalues.numpy()
    np.testing.assert_allclose(basis * values @ basis.T, scatter, rtol=1e-10, atol=1e-11 * scatter.max())
    np.testing.assert_allclose(basis.T @ basis, np.eye(p), atol=1e-13)
    assert (np.diff(values) <= 0).all()
    assert (values >= 0).all()
    assert (values[n - 1 :] == 0).all()  # rank cannot exceed n - 1
    assert (reference.n, reference.width) == (n, p)


def test_from_moments_rows_or_draws():
    x = rows(60, 6)
    for source in (Moments.of(x), x.reshape(6, 10, 6), torch.from_numpy(x), Moments.stream(np.split(x, 4))):
        reference = Reference.of(source)
        np.testing.assert_allclose(reference.eigenvalues, Reference.of(x).eigenvalues, rtol=1e-11)
        np.testing.assert_allclose(reference.mean, x.mean(0), rtol=1e-12)


@pytest.mark.parametrize(("n", "p"), [(50, 6), (5, 12)])
def test_default_ridges(n, p):
    x = rows(n, p, kind="spiked")
    ridges = Reference.of(x).default_ridges()
    assert ridges.shape == (200,)
    np.testing.assert_allclose(ridges, dense.default_ridges(x), rtol=1e-10)
    np.testing.assert_allclose(Reference.of(x).default_ridges(3), dense.default_ridges(x, count=3), rtol=1e-10)


def test_to_a_device_is_the_same_value():
    reference = Reference.of(rows(20, 3))
    moved = reference.to("cpu")
    assert torch.equal(moved.basis, reference.basis)
    assert moved.n == reference.n
