"""Naive twin of the tests: one query at a time, one inverse a ridge, straight from the paper's formulas.

Nothing is shared with `arht.stats`. The arithmetic is that of the arrays that come in: `tests.reference.exact` sends
50-digit numbers through the same lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Terms(NamedTuple):
    """What the paper defines at one ridge, for p columns."""

    p: int
    ridge: Any
    rht: Any
    theta1: Any
    theta2: Any
    rho: tuple[Any, ...]
    gamma: Any

    def q(self, prior):
        """Q(λ, γ; ξ) = Σ_k ξ_k ρ̂_k / {γ Θ̂₂}^½."""
        return sum(xi * rho for xi, rho in zip(prior, self.rho, strict=False)) / (self.gamma * self.theta2) ** 0.5

    @property
    def standardised(self):
        """Equation 4."""
        return self.p**0.5 * (self.rht / self.p - self.theta1) / (2 * self.theta2) ** 0.5

    @property
    def cube_root(self):
        """The delta method on (RHT/p)^⅓."""
        third = 1 / 3
        scale = (2 * self.theta2) ** 0.5 * third * self.theta1 ** (third - 1)
        return self.p**0.5 * ((self.rht / self.p) ** third - self.theta1**third) / scale


def pooled(x, y=None, mean=0, number=float):
    """Equation 1: S_n with divisor n - 2 (one sample: n - 1); d; n1 n2 / (n1 + n2) (one sample: n); the divisor."""
    centred = x - x.mean(0)
    if y is None:
        n = number(len(x))
        return centred.T @ centred / (n - 1), x.mean(0) - mean, n, n - 1
    other = y - y.mean(0)
    n1, n2 = number(len(x)), number(len(y))
    s = (centred.T @ centred + other.T @ other) / (n1 + n2 - 2)
    return s, x.mean(0) - y.mean(0) - mean, n1 * n2 / (n1 + n2), n1 + n2 - 2


def hotelling(x, y=None, mean=0):
    """T² = (n1 n2 / (n1 + n2)) d' S⁻¹ d: equation 2 before the factor that makes it F."""
    s, d, weight, _ = pooled(x, y, mean)
    return weight * d @ np.linalg.solve(s, d)


def terms(x, y, ridge, mean=0, number=float, inverse=np.linalg.inv):
    """Equation 3, Θ̂₁, Θ̂₂ and ρ̂_k as printed below equation 4; ρ̂₃ with H₂ after Li et al. (2020)."""
    s, d, weight, degrees = pooled(x, y, mean, number)
    return at_ridge(s, d, weight, degrees, number(ridge), inverse)


def at_ridge(s, d, weight, degrees, ridge, inverse=np.linalg.inv):
    """`terms` of a pooled covariance that is there."""
    p = len(d)
    r = inverse(s + ridge * np.eye(p))
    rht = weight * (d @ r @ d)  # equation 3
    gamma = p / degrees
    m = np.trace(r) / p
    m_prime = np.trace(r @ r) / p
    bracket = 1 - gamma * (1 - ridge * m)
    theta1 = (1 - ridge * m) / bracket
    theta2 = (1 - ridge * m) / bracket**3 - ridge * (m - ridge * m_prime) / bracket**4
    h1 = np.trace(s) / p
    h2 = np.trace(s @ s) / p - gamma * h1**2
    rho2 = (1 + gamma * theta1) * (h1 - ridge * theta1)
    rho3 = (1 + gamma * theta1) * (h2 - ridge * rho2)
    return Terms(p, ridge, rht, theta1, theta2, (m, theta1, rho2, rho3), gamma)


def arht(x, y, ridges, prior, mean=0, number=float, inverse=np.linalg.inv):
    """`terms` at the ridge where Q is largest."""
    s, d, weight, degrees = pooled(x, y, mean, number)
    every = [at_ridge(s, d, weight, degrees, number(ridge), inverse) for ridge in ridges]
    return max(every, key=lambda term: term.q(prior))


def default_ridges(x, y=None, count=200):
    """Log-spaced from a hundredth of the mean eigenvalue of S to 20 times its largest."""
    values = np.linalg.eigvalsh(pooled(x, y)[0])
    return np.geomspace(values.mean() / 100, 20 * values.max(), count)
