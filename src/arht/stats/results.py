"""What a test returns: values, and how far they can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from arht.stats.multiplicity import Decision, decide

__all__ = ["Guarantee", "Outcome", "PriorResults", "TestResult"]

Guarantee = Literal["exact", "asymptotic", "conformal", "none"]
"""What stands behind a p-value.

* ``exact``: P(p ≤ level) ≤ level at every sample size, under the assumption the test names.
* ``asymptotic``: the level is approached as samples and dimension grow; how far off it is at a given size is
  in the table of realised levels in the docs.
* ``conformal``: P(p ≤ level) ≤ level for a query exchangeable with the calibration data, whatever its law.
* ``none``: no claim.
"""


class Outcome(IntEnum):
    """What became of one query. Anything but ``OK`` has a NaN p-value and is never rejected."""

    OK = 0
    NOT_FINITE = 1
    """The query holds a NaN or an infinity."""
    DEGENERATE = 2
    """The statistic does not exist for this query: its covariance is singular where it must not be, or a
    difference of zero is divided by a variance of zero."""


@dataclass(frozen=True, slots=True)
class PriorResults:
    """What each prior of a composite test found; the leading axis is the query's where there are several."""

    ridge: Any
    """Chosen ridge of each prior, [..., M]."""
    statistic: Any
    """Standardised RHT at that ridge, [..., M]; the test's statistic is the largest."""
    pvalue: Any
    """P-value of each prior's own test, [..., M], not corrected for there being several."""
    theta1: Any
    theta2: Any
    correlation: Any
    """Estimated null correlation of the M statistics, [..., M, M]."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test, or one per query. Arrays come back as the kind that went in (numpy or torch)."""

    __test__ = False  # not a test case, whatever its name says to pytest

    method: str
    statistic: Any
    """The quantity the test computes, on its natural scale."""
    score: Any
    """The ranking quantity: larger means stronger evidence against "more of the same"."""
    pvalue: Any
    pvalue_error: float
    """Numerical error of `pvalue`, as a share of it: an upper estimate over all queries; 0 for closed forms."""
    ridge: Any
    """Ridge that the statistic was computed at; ``None`` for tests without one."""
    theta1: Any
    theta2: Any
    guarantee: Guarantee
    null: str
    """The law that turned the statistic into the p-value, with its parameters."""
    smallest_pvalue: float
    """No p-value of this law can be below this number (0 where there is no floor)."""
    outcome: Any
    """`Outcome` code of each query."""
    priors: PriorResults | None = None

    def decide(self, fdr: float = 0.05, method: str = "bh") -> Decision:
        """Reject at a controlled false-discovery rate; see `arht.stats.multiplicity.decide`."""
        return decide(self.pvalue, fdr=fdr, method=method, smallest_pvalue=self.smallest_pvalue)
