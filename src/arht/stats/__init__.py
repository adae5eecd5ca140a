"""The mathematics of arht: pure functions on float64 tensors. Knows no model, no file, no global state."""

from arht.stats.adaptive import arht_test
from arht.stats.hotelling import hotelling_test
from arht.stats.moments import Moments
from arht.stats.multiplicity import Decision, decide
from arht.stats.reference import Reference
from arht.stats.results import Outcome, PriorResults, TestResult
from arht.stats.rht import rht_test
from arht.stats.scoring import arht_scores, arht_stream

__all__ = [
    "Decision",
    "Moments",
    "Outcome",
    "PriorResults",
    "Reference",
    "TestResult",
    "arht_scores",
    "arht_stream",
    "arht_test",
    "decide",
    "hotelling_test",
    "rht_test",
]
