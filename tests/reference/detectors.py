"""Naive twins of the detectors: one query at a time, dense inverses, loops."""

import numpy as np


def rht(draws, mean, scatter, n, n_mean, ridge):
    """w (x̄ - μ)'(S + ridge I)⁻¹(x̄ - μ) of one query [K, P]; S pools `scatter` (n - 1 degrees) with the draws' own."""
    k, p = draws.shape
    centre = draws.mean(0)
    own = (draws - centre).T @ (draws - centre)
    pooled = (scatter + own) / (n + k - 2)
    d = centre - mean
    return n_mean * k / (n_mean + k) * d @ np.linalg.inv(pooled + ridge * np.eye(p)) @ d


def thetas(draws, scatter, n, ridge):
    """Θ₁ and Θ₂ of the pooled covariance, from its eigenvalues."""
    k, p = draws.shape
    own = (draws - draws.mean(0)).T @ (draws - draws.mean(0))
    nu = n + k - 2
    values = np.linalg.eigvalsh((scatter + own) / nu)
    gamma = p / nu
    m = (1 / (values + ridge)).mean()
    m_prime = (1 / (values + ridge) ** 2).mean()
    base = 1 - gamma * (1 - ridge * m)
    theta1 = (1 - ridge * m) / base
    theta2 = (1 - ridge * m) / base**3 - ridge * (m - ridge * m_prime) / base**4
    return theta1, theta2


def moments(rows):
    centre = rows.mean(0)
    return len(rows), centre, (rows - centre).T @ (rows - centre)


def within(rows, labels):
    """Per class: count and mean; and the pooled within-class scatter."""
    parts = {c: moments(rows[labels == c]) for c in np.unique(labels)}
    return {c: (n, mean) for c, (n, mean, _) in parts.items()}, sum(scatter for *_, scatter in parts.values())
