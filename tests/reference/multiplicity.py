"""Naive twins of `arht.stats.multiplicity` and `arht.stats.combination`: loops, from the formulas."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np


def step_up(pvalues, fdr, factor=1.0):
    """Paper, "Optimal Threshold Adjusting": p_i <= fdr k̂/(m H_m), k̂ = max{k : p_(k) <= fdr k/(m H_m)}.

    `factor` stands where H_m does: 1 for Benjamini-Hochberg, pi0 for Storey.
    """
    p = [float(x) for x in pvalues]
    m = len(p)
    count = 0
    for k in range(1, m + 1):
        if sorted(p)[k - 1] <= fdr * k / (m * factor):
            count = k
    return np.array([count > 0 and x <= fdr * count / (m * factor) for x in p], dtype=bool)


def harmonic_number(m):
    return sum(1 / j for j in range(1, m + 1))


def null_share(pvalues, threshold=0.5):
    """Storey's pi0, finite-sample form: (1 + #{p > threshold}) / (m (1 - threshold))."""
    above = 0
    for x in pvalues:
        above += x > threshold
    return (1 + above) / (len(pvalues) * (1 - threshold))


def adjusted(pvalues, factor=1.0):
    """Smallest fdr at which the step-up rule rejects p_i: min over p_(k) >= p_i of factor m p_(k)/k."""
    p = [float(x) for x in pvalues]
    m = len(p)
    out = []
    for x in p:
        best = 1.0
        for k, y in enumerate(sorted(p), start=1):
            if y >= x:
                best = min(best, factor * m * y / k)
        out.append(best)
    return np.array(out)


def fisher(p):
    """Chi-square tail with 2L degrees of freedom as a Poisson sum: e^{-s} Σ_{j<L} s^j/j!, s = -Σ ln p."""
    s = -sum(math.log(x) for x in p)
    return sum(math.exp(-s + j * math.log(s) - math.lgamma(j + 1)) if s else float(j == 0) for j in range(len(p)))


def stouffer(p, weights):
    law = NormalDist()
    z = sum(w * -law.inv_cdf(x) for w, x in zip(weights, p, strict=True))
    return 0.5 * math.erfc(z / math.sqrt(sum(w * w for w in weights)) / math.sqrt(2))


def cauchy(p, weights):
    t = sum(w * math.tan((0.5 - x) * math.pi) for w, x in zip(weights, p, strict=True)) / sum(weights)
    return 0.5 - math.atan(t) / math.pi


def harmonic_of_two(p):
    """P(1/U + 1/V >= s) = ∫_1^{s-1} dx/(x² (s - x)) + 1/(s - 1) = 2/s + 2 ln(s - 1)/s², s = Σ 1/p_l."""
    s = 1 / p[0] + 1 / p[1]
    return 2 / s + 2 * math.log(s - 1) / s**2


def harmonic_by_convolution(p):
    """P(Σ 1/U_l >= s) for three layers: ∫_0^1 S_2(s - 1/u) du with S_2 as above, 1 where u <= 1/(s - 2)."""
    s = sum(1 / x for x in p)
    low = 1 / (s - 2)
    nodes, weights = np.polynomial.legendre.leggauss(500)
    u = low ** ((1 - nodes) / 2)  # even in ln u
    tail = [harmonic_of_two([2 / r, 2 / r]) for r in s - 1 / u]
    return low - math.log(low) / 2 * float((weights * u * tail).sum())


def bonferroni(p):
    return min(1.0, len(p) * min(p))
