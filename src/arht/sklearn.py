"""scikit-learn estimators around the detectors: ``fit``, ``score_samples``, ``decision_function``, ``predict``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from arht.detectors import ARHTDetector, Detector, MahalanobisDetector, RHTDetector
from arht.errors import InputError
from arht.stats.multiplicity import TIE, Decision

__all__ = ["ARHTOutlierDetector", "MahalanobisOutlierDetector", "RHTOutlierDetector"]

Array = npt.NDArray[np.float64]

SLACK = 1e-9
"""Relative slack of the cut: a calibration row must fall on the same side in a batch of any size."""


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators. `fit` splits X into a reference and a calibration set.

    Attributes
    ----------
    detector_ : arht.detectors.Detector
        Fitted and calibrated.
    offset_ : float
        ``decision_function`` is ``score_samples - offset_``; negative where the conformal p-value is at most `level`.
        -inf where the calibration set is too small to reject at that level at all.
    n_features_in_ : int
    """

    level: float
    fdr: float | None
    method: str
    calibration: float
    random_state: Any

    @abstractmethod
    def _detector(self) -> Detector:
        """A new detector with the estimator's parameters."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the reference and calibrate.

        X [n, P] is in-distribution data; y, classes, is used where reference is not "global", and ignored otherwise.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=3)
        self._check()
        detector, labels = self._detector(), None
        if getattr(detector, "reference", "global") != "global":
            if y is None:
                raise InputError(f"{type(self).__name__}.fit: reference={detector.reference!r} needs y; got none.")  # type: ignore[attr-defined]
            self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        order = check_random_state(self.random_state).permutation(len(X))
        held = min(max(1, int(self.calibration * len(X))), len(X) - 2)
        apart, rest = order[:held], order[held:]
        detector.fit(np.ascontiguousarray(X[rest]), None if labels is None else labels[rest])
        detector.calibrate(np.ascontiguousarray(X[apart]))
        self.detector_ = detector
        self.offset_ = self._offset(detector)
        return self

    def score_samples(self, X: Any) -> Array:
        """The detector's score with its sign turned: larger is more normal."""
        return -self._score(X)

    def decision_function(self, X: Any) -> Array:
        """`score_samples` minus `offset_`: negative for outliers at `level`."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """-1 for outliers, 1 for inliers.

        Without `fdr`, each row by itself: -1 where its p-value is at most `level`. With `fdr`, the rows of X together:
        -1 where rejected at that false-discovery rate, so that the answer about a row depends on the others.
        """
        outlier = self.decision_function(X) < 0 if self.fdr is None else np.asarray(self.decide(X).rejected)
        return np.where(outlier, -1, 1)

    def pvalues(self, X: Any) -> Array:
        """Conformal p-values."""
        X = self._checked(X)
        return np.asarray(self.detector_.test(X).pvalue)

    def decide(self, X: Any, fdr: float | None = None) -> Decision:
        """The rows of X to reject at a false-discovery rate: `fdr`, else the estimator's own, else 0.05."""
        X = self._checked(X)
        rate = self.fdr if fdr is None else fdr
        return self.detector_.test(X).decide(fdr=0.05 if rate is None else rate, method=self.method)

    def _score(self, X: Any) -> Array:
        X = self._checked(X)
        return np.asarray(self.detector_.score(X), dtype=np.float64)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return np.ascontiguousarray(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def _check(self) -> None:
        shares = {"level": self.level, "calibration": self.calibration, "fdr": 0.5 if self.fdr is None else self.fdr}
        for name, value in shares.items():
            if not 0 < value < 1:
                raise InputError(f"{type(self).__name__}: {name} must be above 0 and below 1; got {value!r}.")

    def _offset(self, detector: Detector) -> float:
        """Minus the largest score that is not rejected at `level`."""
        law = detector._law
        assert law is not None
        n, sides = law.scores.numel(), 1 if law.tail == "upper" else 2
        k = int(np.floor(self.level * (n + 1) / sides * (1 + TIE)))  # rejected if fewer than k scores are as extreme
        if k == 0:
            return -np.inf
        cut = float(law.scores[n - k]) if sides == 1 else -np.log(2 * k / (n + 1))
        return -(cut + SLACK * (1 + abs(cut)))


class ARHTOutlierDetector(OutlierDetector):
    """`arht.ARHTDetector` as an estimator.

    Parameters
    ----------
    ridge, multiples, prior, ridge_unit, reference, tail
        As in `arht.ARHTDetector`.
    level : float
        `predict` marks rows with a conformal p-value of at most this; it is the share of false alarms.
    fdr : float or None
        If given, `predict` decides about all rows together at this false-discovery rate instead.
    method : {"bh", "by", "storey"}
        Of decisions at `fdr`.
    calibration : float
        Share of the training rows that is held out to calibrate.
    random_state : int, RandomState or None
        Of the split.

    Examples
    --------
    >>> import numpy as np
    >>> from arht.sklearn import ARHTOutlierDetector
    >>> X = np.random.default_rng(0).normal(size=(400, 8))
    >>> estimator = ARHTOutlierDetector(random_state=0).fit(X)
    >>> estimator.predict(np.stack([np.zeros(8), np.full(8, 3.0)])).tolist()
    [1, -1]
    """

    def __init__(
        self,
        *,
        ridge: float | None = 0.01,
        multiples: Any = (1, 5, 10),
        prior: Any = (0, 1, 0),
        ridge_unit: str = "absolute",
        reference: str = "global",
        tail: str = "upper",
        level: float = 0.05,
        fdr: float | None = None,
        method: str = "bh",
        calibration: float = 0.5,
        random_state: Any = None,
    ) -> None:
        self.ridge = ridge
        self.multiples = multiples
        self.prior = prior
        self.ridge_unit = ridge_unit
        self.reference = reference
        self.tail = tail
        self.level = level
        self.fdr = fdr
        self.method = method
        self.calibration = calibration
        self.random_state = random_state

    def _detector(self) -> Detector:
        return ARHTDetector(
            self.ridge,
            self.multiples,
            self.prior,
            ridge_unit=self.ridge_unit,  # type: ignore[arg-type]
            reference=self.reference,  # type: ignore[arg-type]
            tail=self.tail,  # type: ignore[arg-type]
        )


class RHTOutlierDetector(OutlierDetector):
    """`arht.detectors.RHTDetector` as an estimator.

    Parameters
    ----------
    ridge, ridge_unit, reference, tail
        As in `arht.detectors.RHTDetector`.
    level, fdr, method, calibration, random_state
        As in `ARHTOutlierDetector`.
    """

    def __init__(
        self,
        *,
        ridge: float = 0.01,
        ridge_unit: str = "absolute",
        reference: str = "global",
        tail: str = "upper",
        level: float = 0.05,
        fdr: float | None = None,
        method: str = "bh",
        calibration: float = 0.5,
        random_state: Any = None,
    ) -> None:
        self.ridge = ridge
        self.ridge_unit = ridge_unit
        self.reference = reference
        self.tail = tail
        self.level = level
        self.fdr = fdr
        self.method = method
        self.calibration = calibration
        self.random_state = random_state

    def _detector(self) -> Detector:
        return RHTDetector(
            self.ridge,
            ridge_unit=self.ridge_unit,  # type: ignore[arg-type]
            reference=self.reference,  # type: ignore[arg-type]
            tail=self.tail,  # type: ignore[arg-type]
        )


class MahalanobisOutlierDetector(OutlierDetector):
    """`arht.detectors.MahalanobisDetector` as an estimator.

    Parameters
    ----------
    reference, ridge, tail
        As in `arht.detectors.MahalanobisDetector`; here the ridge is 1e-6, so that any data can be fitted.
    level, fdr, method, calibration, random_state
        As in `ARHTOutlierDetector`.
    """

    def __init__(
        self,
        *,
        reference: str = "global",
        ridge: float = 1e-6,
        tail: str = "upper",
        level: float = 0.05,
        fdr: float | None = None,
        method: str = "bh",
        calibration: float = 0.5,
        random_state: Any = None,
    ) -> None:
        self.reference = reference
        self.ridge = ridge
        self.tail = tail
        self.level = level
        self.fdr = fdr
        self.method = method
        self.calibration = calibration
        self.random_state = random_state

    def _detector(self) -> Detector:
        return MahalanobisDetector(reference=self.reference, ridge=self.ridge, tail=self.tail)  # type: ignore[arg-type]
