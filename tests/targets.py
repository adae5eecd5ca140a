"""Data with known covariance, shared by the tests. None of it is symmetric about the null: a sign shows."""

from __future__ import annotations

import numpy as np
from scipy.linalg import sqrtm
from scipy.stats import ortho_group

LAMBDAS = (0.01, 0.05, 0.1)
"""The paper's multiples of λ₀, for unit columns."""


def rotation(p, seed=0):
    return ortho_group.rvs(p, random_state=seed) if p > 1 else np.ones((1, 1))


def autoregressive(p, rho=0.7):
    index = np.arange(p)
    return rho ** np.abs(index[:, None] - index)


def spectrum(kind, p):
    """Population eigenvalues."""
    return {
        "flat": np.ones(p),
        "spiked": np.r_[20.0, 5.0, np.ones(p)][:p],
        "ill": np.logspace(0, -10, p),
    }[kind]


def rows(n, p, *, kind="flat", seed=0, shift=0.0, offset=0.0):
    """n rows with that spectrum in a rotated basis; `shift` along one direction, `offset` added to every entry."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) * np.sqrt(spectrum(kind, p)) @ rotation(p).T
    return x + shift * np.linspace(1, 2, p) / p**0.5 + offset


def pair(n1, n2, p, *, kind="flat", seed=0, shift=0.4):
    return rows(n1, p, kind=kind, seed=seed), rows(n2, p, kind=kind, seed=seed + 1000, shift=shift)


def correlated(n, p, seed, rho=0.7):
    """Autoregressive rows."""
    return np.random.default_rng(seed).standard_normal((n, p)) @ sqrtm(autoregressive(p, rho)).real
