"""From draws to scores, p-values and decisions: one contract, many statistics."""

from __future__ import annotations

from arht.detectors.arht import ARHTDetector
from arht.detectors.base import Detector
from arht.detectors.classes import ClassMoments
from arht.detectors.hotelling import HotellingDetector
from arht.detectors.mahalanobis import MahalanobisDetector
from arht.detectors.predictive import DifferentialEntropy, Energy, Entropy, MaximumProbability, MutualInformation
from arht.detectors.results import DetectionResult, Explanation
from arht.detectors.rht import RHTDetector
from arht.detectors.scorer import FromScorer

__all__ = [
    "ARHTDetector",
    "ClassMoments",
    "DetectionResult",
    "Detector",
    "DifferentialEntropy",
    "Energy",
    "Entropy",
    "Explanation",
    "FromScorer",
    "HotellingDetector",
    "MahalanobisDetector",
    "MaximumProbability",
    "MutualInformation",
    "RHTDetector",
]
