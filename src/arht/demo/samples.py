"""The first part: two-sample tests on real images, fewer of them than they have pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from arht._shapes import Float, Int, Tensor
from arht.errors import InputError
from arht.stats import Moments, arht_test, hotelling_test, rht_test
from arht.stats.nulls import Permutation

__all__ = ["LEVEL", "SIZE", "Samples", "TwoSample", "two_sample"]

LEVEL = 0.05
SIZE = 25
"""Images in each of two samples."""


@dataclass(frozen=True, slots=True)
class TwoSample:
    """One test: two different digits, two samples of one digit, and all pairs of samples of one digit."""

    test: str
    different: float | None
    same: float | None
    guarantee: str | None
    """None where the test refused."""
    rejected: int | None
    """Of the pairs of samples of one digit, at the level."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The first part: all tests."""

    refusal: str
    pairs: int
    """How many pairs of samples of one digit there are."""
    permutations: int
    floor: float
    """The smallest p-value that so many permutations can give."""
    rows: tuple[TwoSample, ...]


def two_sample(seed: int = 0) -> Samples:
    """The two-sample tests; the seed governs which images go where, and the permutations."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images: Float[Tensor, "N P"] = torch.from_numpy(bunch.data)
    labels: Int[Tensor, " N"] = torch.from_numpy(bunch.target)
    generator = torch.Generator().manual_seed(seed)
    samples = {digit: _shuffled(images[labels == digit], generator).split(SIZE) for digit in range(10)}
    pairs = [
        (first, second)
        for parts in samples.values()
        for first, second in zip(parts[::2], parts[1::2], strict=False)
        if len(second) == SIZE
    ]
    different, same = (samples[3][0], samples[8][0]), (samples[3][0], samples[3][1])
    scale = float(Moments.of(different[0]).covariance.diagonal().mean())
    permutation = Permutation(generator=generator)
    tests: dict[str, Any] = {
        "rht, a small ridge": lambda x, y: rht_test(x, y, ridge=scale / 100),
        "arht": arht_test,
        "arht, permutation": lambda x, y: arht_test(x, y, null=permutation),
    }
    try:
        hotelling_test(*different)
        raise AssertionError("more pixels than images, and yet a T² test")
    except InputError as error:
        refusal = str(error)
    rows = [TwoSample("hotelling", None, None, None, None)]
    for name, test in tests.items():
        apart = test(*different)
        rejected = sum(float(test(*pair).pvalue) <= LEVEL for pair in pairs)
        rows.append(TwoSample(name, float(apart.pvalue), float(test(*same).pvalue), apart.guarantee, rejected))
    return Samples(refusal, len(pairs), permutation.count, permutation.smallest_pvalue, tuple(rows))


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]
