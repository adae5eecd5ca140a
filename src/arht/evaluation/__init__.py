"""How good are the scores and the decisions, and how sure is that: metrics with intervals.

One direction everywhere: a larger score means more OOD, and OOD is the positive class. Nothing here turns a
score round because it would look better so.
"""

from __future__ import annotations

from arht.evaluation.audits import Audit, LevelCheck, audit, level_band
from arht.evaluation.calibration import PvaluePlot, pvalue_plot
from arht.evaluation.curves import Curve, precision_recall, roc
from arht.evaluation.decisions import false_alarm_rate, power, realised_fdr
from arht.evaluation.estimate import Estimate, clopper_pearson
from arht.evaluation.planning import Plan, plan
from arht.evaluation.prediction import accuracy, brier, macro_f1
from arht.evaluation.ranking import Metrics, aupr, auroc, evaluate, fpr_at

__all__ = [
    "Audit",
    "Curve",
    "Estimate",
    "LevelCheck",
    "Metrics",
    "Plan",
    "PvaluePlot",
    "accuracy",
    "audit",
    "aupr",
    "auroc",
    "brier",
    "clopper_pearson",
    "evaluate",
    "false_alarm_rate",
    "fpr_at",
    "level_band",
    "macro_f1",
    "plan",
    "power",
    "precision_recall",
    "pvalue_plot",
    "realised_fdr",
    "roc",
]
