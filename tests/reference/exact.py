"""The naive twin in 50-digit arithmetic: for ill-conditioned references, where a dense float64 inverse is no judge."""

from __future__ import annotations

import mpmath
import numpy as np

from tests.reference import dense

mp = mpmath.MPContext()
mp.dps = 50


def numbers(x):
    """An array of 50-digit numbers, each equal to its float."""
    return None if x is None else np.vectorize(mp.mpf, otypes=[object])(np.asarray(x, dtype=np.float64))


def inverse(a):
    return np.array((mp.matrix(a.tolist()) ** -1).tolist(), dtype=object).reshape(a.shape)


def terms(x, y, ridge, mean=0):
    return dense.terms(numbers(x), numbers(y), ridge, mean, number=mp.mpf, inverse=inverse)


def arht(x, y, ridges, prior, mean=0):
    return dense.arht(numbers(x), numbers(y), ridges, prior, mean, number=mp.mpf, inverse=inverse)


def hotelling(x, y=None, mean=0):
    """T² with the inverse at ridge 0."""
    s, d, weight, _ = dense.pooled(numbers(x), numbers(y), mean, mp.mpf)
    return weight * (d @ inverse(s) @ d)
