"""What a statistic says of a block of queries, and how it becomes a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from arht._shapes import Tensor
from arht.detectors.results import DetectionResult
from arht.stats.nulls import Conformal
from arht.stats.results import Guarantee, Outcome, PriorResults

__all__ = ["Measured", "as_result"]


@dataclass(slots=True)
class Measured:
    """What a detector computes for a block of queries, before any calibration: tensors [B]."""

    statistic: Tensor
    score: Tensor
    """NaN where the outcome is not OK."""
    outcome: Tensor
    pvalue: Tensor | None = None
    guarantee: Guarantee = "none"
    null: str = "none"
    pvalue_error: float = 0.0
    ridge: Tensor | None = None
    theta1: Tensor | None = None
    theta2: Tensor | None = None
    nearest_class: Tensor | None = None
    priors: PriorResults | None = None

    @classmethod
    def of(cls, queries: Tensor, statistic: Tensor, **more: Any) -> Measured:
        """With the outcome that the queries and the statistic show; the statistic is the score."""
        outcome = torch.zeros(len(statistic), dtype=torch.int8)
        bad = ~torch.isfinite(statistic)
        if bool(bad.any()):
            outcome[bad] = int(Outcome.DEGENERATE)
            rows = bad.nonzero()[:, 0]
            finite = torch.isfinite(queries[rows]).flatten(1).all(1)
            outcome[rows[~finite]] = int(Outcome.NOT_FINITE)
            statistic = torch.where(bad, torch.nan, statistic)
        return cls(statistic, more.pop("score", statistic), outcome, **more)


def as_result(
    method: str, measured: Measured, score: Tensor, law: Conformal | None, back: Callable[[Tensor], Any], **more: Any
) -> DetectionResult:
    """The result with arrays of the caller's kind, by `back`: p-values by the law, by the statistic's own without."""
    pvalue, guarantee, null, error = measured.pvalue, measured.guarantee, measured.null, measured.pvalue_error
    if law is not None:
        pvalue, guarantee, null, error = law.pvalue(measured.score), law.guarantee, repr(law), 0.0
    if pvalue is None:
        pvalue = torch.full_like(measured.score, torch.nan)

    def given(value: Tensor | None) -> Any:
        return None if value is None else back(value)

    return DetectionResult(
        method=method,
        statistic=back(measured.statistic),
        score=back(score),
        pvalue=back(torch.where(measured.outcome == Outcome.OK, pvalue, torch.nan)),
        pvalue_error=error,
        ridge=given(measured.ridge),
        theta1=given(measured.theta1),
        theta2=given(measured.theta2),
        guarantee=guarantee,
        null=null,
        smallest_pvalue=0.0 if law is None else law.smallest_pvalue,
        outcome=back(measured.outcome),
        priors=measured.priors,
        nearest_class=given(measured.nearest_class),
        **more,
    )
