"""How well an encoder predicts: accuracy, macro F1, Brier score."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError
from arht.evaluation.estimate import RESAMPLES, Estimate, bootstrap, check_level, clopper_pearson

__all__ = ["accuracy", "brier", "macro_f1"]


def accuracy(labels: Any, predictions: Any, *, level: float = 0.95) -> Estimate:
    """Share of correct predictions (classes [B], or probabilities [B, C]), with its Clopper-Pearson interval."""
    check_level("accuracy", level)
    truth, guess = _pair("accuracy", labels, predictions)
    return clopper_pearson(int((truth == guess).sum()), len(truth), level=level)


def macro_f1(
    labels: Any, predictions: Any, *, level: float = 0.95, resamples: int = RESAMPLES, generator: Any = None
) -> Estimate:
    """Mean over classes of F1 = 2 TP / (2 TP + FP + FN), 0 where a class has none of the three."""
    from sklearn.metrics import f1_score

    check_level("macro_f1", level)
    truth, guess = _pair("macro_f1", labels, predictions)
    value = float(f1_score(truth, guess, average="macro", zero_division=0.0))
    classes, coded = np.unique(np.r_[truth, guess], return_inverse=True)
    size, n = len(classes), len(truth)
    table = np.bincount(coded[:n] * size + coded[n:], minlength=size * size)

    def statistic(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        matrix = weights.reshape(-1, size, size)
        hits, all_ = np.einsum("rcc->rc", matrix), matrix.sum(1) + matrix.sum(2)
        return (2 * hits / np.maximum(all_, 1)).sum(1) / np.maximum((all_ > 0).sum(1), 1)

    return bootstrap(value, statistic, table, level=level, resamples=resamples, generator=generator)


def brier(
    labels: Any, probabilities: Any, *, level: float = 0.95, resamples: int = RESAMPLES, generator: Any = None
) -> Estimate:
    """Mean over inputs of Σ_c (probability_c - [label = c])², between 0 and 2."""
    check_level("brier", level)
    truth, p = _array(labels), _array(probabilities)
    if p.ndim != 2 or len(p) != len(truth) or not len(p):
        raise InputError(
            f"brier: probabilities must be [B, C] for labels [B]; got shapes {p.shape} and {truth.shape}. "
            "Pass the predictive probabilities of every class."
        )
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= p.shape[1]:
        raise InputError(
            f"brier: labels must be integers from 0 to {p.shape[1] - 1}; got dtype {truth.dtype}. "
            "They name columns of the probabilities."
        )
    losses = (p**2).sum(1) + 1 - 2 * p[np.arange(len(p)), truth]

    def statistic(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return weights @ losses / np.maximum(weights.sum(1), 1)

    ones = np.ones(len(losses), dtype=np.int64)
    return bootstrap(float(losses.mean()), statistic, ones, level=level, resamples=resamples, generator=generator)


def _array(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _pair(who: str, labels: Any, predictions: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    truth, guess = _array(labels), _array(predictions)
    if guess.ndim == 2:
        guess = guess.argmax(1)
    if truth.ndim != 1 or truth.shape != guess.shape or not len(truth):
        raise InputError(
            f"{who}: labels must be [B] and predictions [B] or [B, C], B >= 1; got shapes {truth.shape} and "
            f"{_array(predictions).shape}. Pass one prediction per label."
        )
    return truth, guess
