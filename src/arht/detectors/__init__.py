"""From draws to scores, p-values and decisions: one contract, many statistics."""

from __future__ import annotations

from arht.detectors.arht import ARHTDetector
from arht.detectors.base import Detector
from arht.detectors.classes import ClassMoments
from arht.detectors.results import DetectionResult, Explanation

__all__ = ["ARHTDetector", "ClassMoments", "DetectionResult", "Detector", "Explanation"]
