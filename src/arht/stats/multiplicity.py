"""Many p-values, one decision: adjusted p-values and rejections at a controlled false-discovery rate.

The false-discovery rate (FDR) is the mean share of true nulls among the rejected queries, nothing rejected
counting as zero. A NaN p-value is a query that could not be tested: it belongs to no family, its adjusted
value is NaN, it is never rejected, and `m` counts the others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arht.errors import InputError, ResolutionWarning
from arht.stats._checks import as_real, restorer

__all__ = ["METHODS", "Decision", "bh", "by", "decide", "storey"]

Array = npt.NDArray[np.float64]

TIE = 1e-12
"""Relative slack of `adjusted <= fdr`: conformal p-values hit the bound exactly; rounding must not decide."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Which queries are rejected, and under which rule. Arrays come back as the kind that went in."""

    rejected: Any
    """True where the query is rejected, [B]; never where its p-value is NaN."""
    adjusted: Any
    """Adjusted p-values, [B]: the smallest fdr at which a query is rejected; rejected is adjusted <= fdr."""
    fdr: float
    method: str
    threshold: float
    """Largest rejected p-value: the cut on the raw p-values; 0.0 if nothing is rejected."""
    tested: int
    """Number of p-values that are not NaN: the size m of the family."""
    untested: int

    @property
    def rejected_count(self) -> int:
        """Number of rejected queries."""
        return int(self.rejected.sum())

    def __str__(self) -> str:
        untested = f", {self.untested} untested" if self.untested else ""
        cut = f", p <= {self.threshold:.4g}" if self.rejected_count else ""
        count = f"{self.rejected_count} of {self.tested} rejected"
        return f"{count} by {self.method} at fdr={self.fdr:g}{cut}{untested}"


def bh(pvalues: Any) -> Any:
    """Benjamini-Hochberg adjusted p-values, in the order given.

    With p_(1) <= ... <= p_(m) the sorted pvalues, adjusted_(i) = min over k >= i of min(1, m p_(k) / k), so
    that adjusted <= fdr rejects the k̂ smallest, k̂ = max{k : p_(k) <= fdr k / m}.

    Controls the FDR at (share of true nulls)·fdr where the p-values are independent, or positively dependent
    in the PRDS sense (Benjamini and Yekutieli 2001): one-sided normal tests with correlations >= 0 are, and
    so are conformal p-values that share one calibration set (Bates et al. 2023). No claim under other
    dependence; use `by` there.
    """
    return _adjusted("bh", pvalues, lambda p: _step_up(p, "bh"))


def by(pvalues: Any) -> Any:
    """Benjamini-Yekutieli adjusted p-values, in the order given: the paper's harmonic-number form.

    adjusted_(i) = min over k >= i of min(1, m H_m p_(k) / k) with H_m = 1 + 1/2 + ... + 1/m, so that
    adjusted <= fdr rejects the k̂ smallest, k̂ = max{k : p_(k) <= fdr k / (m H_m)} (the paper's section
    "Optimal Threshold Adjusting").

    Controls the FDR at (share of true nulls)·fdr under any dependence. The price is the factor H_m, about
    ln m + 0.58: where `bh` is valid too, this realises about 1/H_m of the level.
    """
    return _adjusted("by", pvalues, lambda p: _step_up(p, "by"))


def storey(pvalues: Any, *, threshold: float = 0.5) -> Any:
    """Storey's q-values in the finite-sample form: `bh` with the share of true nulls estimated.

    With pi0 = (1 + #{pvalues > threshold}) / (m (1 - threshold)),
    adjusted_(i) = min over k >= i of min(1, pi0 m p_(k) / k).

    Controls the FDR at fdr where the p-values are independent (Storey, Taylor and Siegmund 2004; Benjamini,
    Krieger and Yekutieli 2006). Not proven under dependence, and under positive dependence it does exceed it:
    up to 0.21 where 0.05 is asked for, in the table of realised rates. pi0 is not cut off at 1, since the
    proof needs it whole: cut off, ten independent true nulls meet a rejection at 0.056 instead of 0.05.
    """
    if not 0 < threshold < 1:
        raise InputError(
            f"storey: threshold must be above 0 and below 1; got {threshold!r}. "
            "The p-values above it tell the share of true nulls; use 0.5."
        )
    return _adjusted("storey", pvalues, lambda p: np.minimum(1.0, _null_share(p, threshold) * _step_up(p, "bh")))


METHODS: dict[str, Callable[[Any], Any]] = {"bh": bh, "by": by, "storey": storey}
"""The methods that `decide` knows, by name."""


def decide(pvalues: Any, *, fdr: float = 0.05, method: str = "bh", smallest_pvalue: float = 0.0) -> Decision:
    """Reject at false-discovery rate fdr: every query whose p-value, adjusted by the method, is <= fdr.

    What the rate holds under is the method's own statement: `bh`, `by`, `storey`. `smallest_pvalue` is the
    floor of the law that made the p-values, 1/(n+1) for n calibration points. A lone rejection needs
    p <= fdr/(m c), c = 1 (bh), H_m (by), pi0 (storey); where the floor is above that, a `ResolutionWarning`
    says how many queries must reach the floor together. An adjusted value within 1e-12 (relative) above fdr
    counts as fdr.
    """
    if method not in METHODS:
        raise InputError(
            f"decide: method must be one of {', '.join(map(repr, METHODS))}; got {method!r}. "
            "Use 'bh', or 'by' where the dependence of the p-values is unknown."
        )
    check_fdr(fdr)
    if not 0 <= smallest_pvalue <= 1:
        raise InputError(
            f"decide: smallest_pvalue must be between 0 and 1; got {smallest_pvalue!r}. "
            "It is the least p-value that the null law can give; use 0 where it has no floor."
        )
    p, restore = read_pvalues("decide", pvalues, axes="B")
    adjusted: Array = METHODS[method](p)
    adjusted[(adjusted > fdr) & (adjusted <= fdr * (1 + TIE))] = fdr
    rejected = adjusted <= fdr  # False where NaN
    tested = int(np.count_nonzero(~np.isnan(p)))
    warn_of_resolution(tested, _factor(p[~np.isnan(p)], method), fdr, method, smallest_pvalue)
    return Decision(
        rejected=restore(rejected),
        adjusted=restore(adjusted),
        fdr=fdr,
        method=method,
        threshold=float(p[rejected].max(initial=0.0)),
        tested=tested,
        untested=p.size - tested,
    )


def read_pvalues(who: str, values: Any, *, axes: str, vector: bool = False) -> tuple[Array, Callable[[Any], Any]]:
    """P-values as a float64 array of its own, checked, and how to give an array back as the caller's kind.

    `axes` names the axes, "B" or "B L"; `vector` allows the first to be missing. NaN passes.
    """
    tensor = as_real(who, "pvalues", values)
    p: Array = np.array(tensor.cpu().numpy())  # a copy: callers write into it
    ndim = len(axes.split())
    if p.ndim != ndim and not (vector and p.ndim == ndim - 1):
        raise InputError(
            f"{who}: pvalues must be of shape [{axes}]{f' or [{axes[-1]}]' if vector else ''}; "
            f"got {p.shape}. "
            + (
                "Give one p-value per query; several are combined first, by arht.stats.combination.combine."
                if ndim == 1
                else "Put the p-values of one query along the last axis."
            )
        )
    outside = p[(p < 0) | (p > 1)]
    if outside.size:
        raise InputError(
            f"{who}: pvalues must be between 0 and 1, or NaN; got {outside.size} outside, the first "
            f"{outside[0]:g}. These are not probabilities; pass p-values, not statistics or scores."
        )
    restore = restorer(values)
    return p, lambda array: restore(torch.from_numpy(np.asarray(array)).to(tensor.device))


def _adjusted(who: str, pvalues: Any, adjust: Callable[[Array], Array]) -> Any:
    p, restore = read_pvalues(who, pvalues, axes="B")
    tested = ~np.isnan(p)
    if tested.any():
        p[tested] = adjust(p[tested])
    return restore(p)


def _step_up(p: Array, method: str) -> Array:
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p, method=method), dtype=np.float64)


def _null_share(p: Array, threshold: float = 0.5) -> float:
    return float((1 + np.count_nonzero(p > threshold)) / (p.size * (1 - threshold)))


def check_fdr(fdr: float) -> None:
    """Above 0 and below 1."""
    if not 0 < fdr < 1:
        raise InputError(
            f"decide: fdr must be above 0 and below 1; got {fdr!r}. "
            "It is the share of false rejections to allow; use 0.05, for instance."
        )


def _factor(p: Array, method: str) -> float:
    """c of a method: a lone rejection needs p <= fdr/(m c)."""
    if method == "by":
        return float(np.sum(1 / np.arange(1, p.size + 1)))
    return _null_share(p) if method == "storey" and p.size else 1.0


def warn_of_resolution(m: int, c: float, fdr: float, method: str, floor: float) -> None:
    """Warn if the law's smallest p-value is too large for a lone rejection among m."""
    if m == 0:
        return
    if floor <= fdr / (m * c) * (1 + TIE):
        return
    needed = math.ceil(floor * m * c / fdr * (1 - TIE))
    points = math.ceil(m * c / fdr * (1 - TIE)) - 1
    consequence = (
        f"{needed} queries must reach the floor together before any is rejected"
        if needed <= m
        else f"Not even all {m} queries at the floor would be rejected: nothing can be"
    )
    warnings.warn(
        f"decide: one rejection by {method!r} at fdr={fdr:g} among m={m} needs a p-value "
        f"<= {fdr / (m * c):.3g}; got smallest_pvalue={floor:.3g}. {consequence}; "
        f"{points} calibration points remove the limit.",
        ResolutionWarning,
        stacklevel=3,
    )
