"""What a detector returns: the test's result, and what a detector knows beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arht.errors import InputError
from arht.stats.multiplicity import Decision
from arht.stats.results import TestResult

__all__ = ["DetectionResult", "Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a query's statistic comes from, and which reference examples are nearest to it."""

    directions: Any = None
    """Share of the statistic by eigen-direction of the reference, [B, P], largest eigenvalue first; rows sum to 1
    (relative: see below).

    With the regularised inverse covariance A and the difference d in the reference's eigenbasis, the share of
    direction p is d_p (A d)_p / d'Ad. With one draw it is d_p² / (e_p + ridge) over their sum; with several the
    query's own scatter couples directions and a share can be slightly negative.

    With reference="relative" the statistic is a difference, c - g, of the forms against the nearest class and against
    the global mean, with the factors that they have in the statistic (ARHT's also has a constant), and may be negative
    or near zero. Direction p of the class's basis V then has the part c_p - g_p, where c_p is as above and
    g_p = (V'd)_p (V'A d)_p with the global d and A, over c + g: positive where it speaks for the query being foreign;
    rows sum to (c - g) / (c + g)."""
    basis: Any = None
    """The directions themselves, in columns, [P, P]."""
    layers: dict[str, Any] | None = None
    """Share of the evidence by layer, name -> [B]: ln p_l / Σ ln p, p_l by the layer's own law; they sum to 1.

    Whatever the rule that combines the layers. With "fisher", whose score is -Σ ln p, it is the layer's share of the
    combined score; with the others the score is no such sum, and the share says only which layers have seen how much:
    "bonferroni" is decided by the layer of the largest share alone, "cauchy" and "harmonic_mean" nearly so, "stouffer"
    weighs layers more evenly, and there a layer can also speak against."""
    parts: dict[str, Explanation] | None = None
    """Each layer's own explanation, where there are several layers."""
    nearest: Any = None
    """Positions, in the order of fitting, of the nearest kept reference examples, [B, k], nearest first."""
    distances: Any = None
    """Their distances from the query in the statistic's own metric (relative: the class's), [B, k]."""


@dataclass(frozen=True, slots=True)
class DetectionResult(TestResult):
    """`TestResult` of a detector: [B] arrays, of the kind that went in (numpy or torch)."""

    __test__ = False

    nearest_class: Any = None
    """Label of the class with the smallest statistic, [B]; ``None`` where the reference has no classes."""
    layers: dict[str, TestResult] | None = None
    """Each layer's own result, where there are several."""
    explanation: Explanation | None = None

    def decide(self, fdr: float = 0.05, method: str = "bh") -> Decision:
        """Reject at a controlled false-discovery rate; see `arht.stats.multiplicity.decide`."""
        if self.guarantee == "none":
            raise InputError(
                f"decide: needs p-values with a guarantee; got scores of {self.method} alone. "
                "Call detector.calibrate(heldout) with in-distribution inputs that the reference does not hold."
            )
        from arht.stats.multiplicity import decide

        return decide(self.pvalue, fdr=fdr, method=method, smallest_pvalue=self.smallest_pvalue)
