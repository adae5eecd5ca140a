"""Several p-values of one query, made one: what each method assumes, and what it keeps of their guarantee.

Input [B, L] or [L], output [B] or a scalar, of the kind that went in. L p-values of one query, one per layer
say, are as a rule dependent. Every method is monotone in each p-value, so p-values that are stochastically
larger than uniform (conformal ones, conservative tests) are covered by whatever covers uniform ones. The
combined p-value has the weakest `guarantee` of those it was made from, and keeps it

* with `bonferroni` and `harmonic_mean(dependence="any")`: always;
* with `fisher`, `stouffer` and `harmonic_mean`: if the L p-values are independent; otherwise it is "none";
* with `cauchy`: if they are independent, or all equal; otherwise "asymptotic" at best, as the level falls.

Conformal p-values of several layers are dependent through the query and through the calibration set: only the
first line keeps "conformal". The other way is to combine the scores and to calibrate the combination.

A NaN in any layer makes the query's combined p-value NaN. VALIDITY says all this in one line a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.stats._checks import as_real
from arht.stats.multiplicity import read_pvalues

__all__ = ["METHODS", "VALIDITY", "bonferroni", "cauchy", "combine", "fisher", "harmonic_mean", "stouffer"]

Array = npt.NDArray[np.float64]

VALIDITY = {
    "bonferroni": "any dependence: P(p <= level) <= level",
    "fisher": "independent layers: exact; rejects too often under positive dependence",
    "stouffer": "independent layers: exact; rejects too often under positive dependence",
    "cauchy": "independent or equal layers: exact; otherwise asymptotic as the level goes to 0, shown for "
    "pairwise normal layers",
    "harmonic_mean": "independent layers: exact; otherwise a working model, off by at most the factor e ln L",
    "harmonic_mean_any": "any dependence: P(p <= level) <= level",
}
"""Of each method's name: under which dependence of the layers its p-value is valid."""


def fisher(pvalues: Any) -> Any:
    """Fisher's combination: P(chi2 with 2L degrees of freedom >= -2 Σ_l ln pvalues_l).

    Exact for independent uniform p-values; too small under positive dependence.
    """
    from scipy.special import gammaincc

    return _combined("fisher", pvalues, lambda p: gammaincc(p.shape[-1], -np.log(p).sum(-1)))


def stouffer(pvalues: Any, *, weights: Any = None) -> Any:
    """Stouffer's combination: 1 - Φ(Σ_l weights_l z_l / √(Σ_l weights_l²)), z_l = Φ⁻¹(1 - pvalues_l).

    Exact for independent uniform p-values; too small under positive dependence. One p-value of 1 makes the
    result 1, beside a 0 as well: the side on which it stays valid.
    """
    from scipy.special import ndtr, ndtri

    def combined(p: Array) -> Array:
        w = _weights("stouffer", weights, p.shape[-1])
        total = _sum_with_minus_first(w, -ndtri(p))
        return np.asarray(ndtr(-total / np.sqrt((w**2).sum())))

    return _combined("stouffer", pvalues, combined)


def cauchy(pvalues: Any, *, weights: Any = None) -> Any:
    """Cauchy combination (Liu and Xie 2020): 1/2 - arctan(T)/π.

    T = Σ_l weights_l tan(π (1/2 - pvalues_l)) / Σ_l weights_l. Exact for independent uniform p-values and
    for equal ones; under dependence the level is approached as it goes to 0, shown for pairwise normal
    statistics. One p-value of 1 makes the result 1 (the tangent is -∞), whatever the others say: conformal
    p-values do reach 1.
    """

    def combined(p: Array) -> Array:
        w = _weights("cauchy", weights, p.shape[-1])
        # tan(π(1/2 - p)) = cot(πp) = -cot(π(1 - p)), each used where its argument is exact and small
        tail = np.tan(np.pi * np.minimum(p, 1 - p))
        total = _sum_with_minus_first(w / w.sum(), np.where(p <= 0.5, 1, -1) / tail)
        return np.asarray(np.arctan2(1.0, total) / np.pi)

    return _combined("cauchy", pvalues, combined)


def harmonic_mean(pvalues: Any, *, dependence: str = "independent") -> Any:
    """Harmonic mean h = L / Σ_l (1/pvalues_l), turned into a p-value.

    dependence="independent": P(Σ_l 1/U_l >= L/h) for independent uniform U_l, exact at every L. The Landau
    law of Wilson (2019) is its limit as L grows, at L = 5 still 5.5 % too large at h = 0.05. Under
    dependence it is a working model. The Laplace transform of 1/U is E_2(s); inverted around its cut on the
    negative axis,

        P = (1/π) ∫_0^∞ e^{-r L/h} Im[(e^r - r Ei(r) + iπr)^L] dr/r,

    by the trapezoidal rule in ln r to about 1e-11; where that would lose digits, P > 0.999 and 1 is returned.

    dependence="any": min(1, c h), c = 1, 2, e ln L for L = 1, 2, >= 3 (Vovk and Wang 2020): valid whatever
    the dependence.
    """
    if dependence not in ("independent", "any"):
        raise InputError(
            f"harmonic_mean: dependence must be 'independent' or 'any'; got {dependence!r}. "
            "Use 'any' for a p-value that is valid whatever the dependence."
        )

    def combined(p: Array) -> Array:
        layers = p.shape[-1]
        least = p.min(-1)
        mean = np.where(least > 0, least / np.mean(least[:, None] / p, -1), 0.0)
        if dependence == "any":
            return mean * (layers if layers <= 2 else math.e * math.log(layers))
        return _independent_harmonic(mean, layers)

    return _combined("harmonic_mean", pvalues, combined)


def bonferroni(pvalues: Any) -> Any:
    """Bonferroni's combination: min(1, L min_l pvalues_l). Valid under any dependence."""
    return _combined("bonferroni", pvalues, lambda p: p.shape[-1] * p.min(-1))


METHODS: dict[str, Callable[..., Any]] = {
    "bonferroni": bonferroni,
    "fisher": fisher,
    "stouffer": stouffer,
    "cauchy": cauchy,
    "harmonic_mean": harmonic_mean,
    "harmonic_mean_any": partial(harmonic_mean, dependence="any"),
}
"""The methods that `combine` knows, by name."""


def combine(pvalues: Any, method: str = "bonferroni") -> Any:
    """Combine each query's L p-values by the method named; VALIDITY[method] says what the result is worth."""
    if method not in METHODS:
        raise InputError(
            f"combine: method must be one of {', '.join(map(repr, METHODS))}; got {method!r}. "
            "Use 'bonferroni' where the dependence of the layers is unknown."
        )
    return METHODS[method](pvalues)


def _combined(who: str, pvalues: Any, rule: Callable[[Array], Array]) -> Any:
    p, restore = read_pvalues(who, pvalues, axes="B L", vector=True)
    if p.shape[-1] == 0:
        raise InputError(
            f"{who}: pvalues must hold at least one p-value per query; got shape {p.shape}. "
            "There is nothing to combine; the layers are the last axis."
        )
    rows = np.atleast_2d(p)
    tested = ~np.isnan(rows).any(-1)
    out = np.full(len(rows), np.nan)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        out[tested] = np.minimum(1.0, rule(rows[tested]))
    return restore(out if p.ndim == 2 else out[0])


def _weights(who: str, weights: Any, layers: int) -> Array:
    w: Array = np.ones(layers) if weights is None else as_real(who, "weights", weights).cpu().numpy()
    if w.shape != (layers,) or not (np.isfinite(w).all() and (w >= 0).all() and w.any()):
        raise InputError(
            f"{who}: weights must be {layers} finite numbers >= 0, one per layer, not all 0; "
            f"got {w.tolist()}. They say how much each layer counts; leave them out for equal ones."
        )
    return w


def _sum_with_minus_first(weights: Array, terms: Array) -> Array:
    """Weighted sum over the last axis; a term of -∞ wins over one of +∞, and a weight of 0 over both."""
    used = weights > 0
    total = (terms[:, used] * weights[used]).sum(-1)
    return np.where((terms[:, used] == -np.inf).any(-1), -np.inf, total)


def _independent_harmonic(mean: Array, layers: int) -> Array:
    """The integral in `harmonic_mean`, with r = v h/L and v = e^y on an even grid of y."""
    from scipy.special import expi

    step = 0.05
    v = np.exp(-38 + step * np.arange(900))  # e^-38 < 2^-53; beyond e^6.95 the integrand is 0
    out = np.ones_like(mean)
    for start in range(0, len(mean), 512):
        h = mean[start : start + 512]
        r = v * np.maximum(h, 1e-20)[:, None] / layers  # [b, nodes]
        transform = np.exp(r) - r * expi(r) + 1j * np.pi * r
        integrand = ((transform * np.exp(-v / layers)) ** layers).imag
        integrand[~np.isfinite(integrand)] = 0.0  # far out, where e^-v has won
        value = integrand.sum(-1) * step / np.pi
        value[np.abs(integrand).max(-1) > 1e3] = 1.0
        out[start : start + 512] = np.where(h < 1e-20, h, value)  # P/h - 1 is of the order of h ln(1/h)
    return out
