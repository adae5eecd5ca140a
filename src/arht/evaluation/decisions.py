"""What a decision turned out to be worth, once it is known which queries were OOD."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.evaluation.estimate import Estimate, clopper_pearson

__all__ = ["false_alarm_rate", "power", "realised_fdr"]

Flags = npt.NDArray[np.bool_]


def realised_fdr(decision: Any, is_ood: Any, *, level: float = 0.95) -> Estimate:
    """Share of in-distribution queries among the rejected; 0 if none is rejected.

    It is one realisation of what the FDR is the mean of. The Clopper-Pearson interval takes the rejections for
    independent, which those of one calibration set are not quite.

    >>> print(realised_fdr([True, True, True, False], [True, True, False, False]))
    0.3333 [0.008404, 0.9057]
    """
    rejected, ood = _flags("realised_fdr", decision, is_ood)
    return clopper_pearson(int((rejected & ~ood).sum()), int(rejected.sum()), level=level)


def power(decision: Any, is_ood: Any, *, level: float = 0.95) -> Estimate:
    """Share of the OOD queries that are rejected. One that could not be tested was not found: it counts."""
    rejected, ood = _flags("power", decision, is_ood)
    return clopper_pearson(int((rejected & ood).sum()), int(ood.sum()), level=level)


def false_alarm_rate(decision: Any, is_ood: Any, *, level: float = 0.95) -> Estimate:
    """Share of the in-distribution queries that are rejected."""
    rejected, ood = _flags("false_alarm_rate", decision, is_ood)
    return clopper_pearson(int((rejected & ~ood).sum()), int((~ood).sum()), level=level)


def _flags(who: str, decision: Any, is_ood: Any) -> tuple[Flags, Flags]:
    """A Decision, or its `rejected`, and the truth, as two arrays of booleans [B]."""
    pair = []
    for name, given in (("decision", getattr(decision, "rejected", decision)), ("is_ood", is_ood)):
        values = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
        if values.ndim != 1 or values.dtype.kind not in "buif" or not np.isin(values, (0, 1)).all():
            raise InputError(
                f"{who}: {name} must be true or false for each query [B]; got shape {values.shape}, dtype "
                f"{values.dtype}. Pass a Decision, and True where a query is OOD."
            )
        pair.append(values.astype(bool))
    if len(pair[0]) != len(pair[1]):
        raise InputError(
            f"{who}: decision and is_ood must be of one length; got {len(pair[0])} and {len(pair[1])}. "
            "They are not about the same queries."
        )
    return pair[0], pair[1]
