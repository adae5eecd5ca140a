"""What every detector must do, as checks that run on yours: ``check_detector(lambda: MyDetector())``.

The checks need no test framework; each is a function of a factory (a call makes a new, unfitted detector) and of data,
and raises AssertionError with one line that says what failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.detectors.base import Detector
from arht.detectors.predictive import PredictiveDetector
from arht.detectors.results import DetectionResult
from arht.errors import InputError
from arht.stats.results import Outcome

__all__ = ["CHECKS", "Data", "check_detector", "embeddings", "load_and_compare", "predictions", "save_for_comparison"]

Array = npt.NDArray[np.float64]
Factory = Callable[[], Detector]

CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
"""Chunks of other sizes may differ in rounding, and ARHT's series in its tolerance."""


@dataclass(frozen=True, slots=True)
class Data:
    """In-distribution draws [., K, P] that a detector is fitted, calibrated and tested on, and OOD ones."""

    fit: Array
    labels: npt.NDArray[np.int64]
    calibration: Array
    queries: Array
    ood: Array


def embeddings(seed: int = 0, draws: int = 4, width: int = 6) -> Data:
    """Three Gaussian classes; each input's draws scatter about it. OOD inputs lie far from all."""
    rng = np.random.default_rng(seed)
    means = 3 * rng.standard_normal((3, width))

    def take(n: int) -> tuple[Array, npt.NDArray[np.int64]]:
        labels = rng.integers(3, size=n)
        inputs = means[labels] + rng.standard_normal((n, width))
        return inputs[:, None] + 0.3 * rng.standard_normal((n, draws, width)), labels

    fit, labels = take(300)
    return Data(fit, labels, take(400)[0], take(2000)[0], take(40)[0] + 25.0)


def predictions(seed: int = 0, draws: int = 4, classes: int = 5, *, logits: bool = False) -> Data:
    """Draws of class probabilities (or logits): sure for in-distribution inputs, flat and various for OOD ones."""
    rng = np.random.default_rng(seed)

    def take(n: int, height: float, spread: float) -> tuple[Array, npt.NDArray[np.int64]]:
        labels = rng.integers(classes, size=n)
        z = rng.standard_normal((n, 1, classes)) + spread * rng.standard_normal((n, draws, classes))
        z[np.arange(n), :, labels] += height
        return z if logits else np.exp(z) / np.exp(z).sum(2, keepdims=True), labels

    fit, labels = take(300, 6.0, 0.3)
    return Data(fit, labels, take(400, 6.0, 0.3)[0], take(2000, 6.0, 0.3)[0], take(40, 0.0, 1.0)[0])


def check_detector(factory: Factory, data: Data | None = None, *, fresh_process: bool = True) -> None:
    """Run every check. Default data: predictions for the measures on predictive draws, embeddings for others.

    >>> from arht.detectors import MahalanobisDetector
    >>> check_detector(MahalanobisDetector, fresh_process=False)
    """
    given = default_data(factory) if data is None else data
    for check in CHECKS:
        try:
            check(factory, given)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {factory()!r}: {error}") from error
    if fresh_process:
        with tempfile.TemporaryDirectory() as folder:
            if save_for_comparison(factory, given, Path(folder) / "0"):
                done = subprocess.run(
                    [sys.executable, "-m", "arht.detectors.conformance", folder], capture_output=True, text=True
                )
                assert done.returncode == 0, f"a fresh process scores differently: {done.stderr[-500:]}"


def default_data(factory: Factory) -> Data:
    """Data of the kind that the detector takes."""
    detector = factory()
    if not isinstance(detector, PredictiveDetector):
        return embeddings()
    return predictions(logits=detector.inputs_are == "logits")


# the checks ---------------------------------------------------------------------------------------------------------


def check_contract(factory: Factory, data: Data) -> None:
    """fit and calibrate return the detector; a result has the fields it should, in the caller's own kind of array."""
    import torch

    detector = factory()
    same(detector.fitted, not detector.needs_fit, "a new detector that needs a fit says it has none")
    same(detector.fit(data.fit, data.labels) is detector, True, "fit returns the detector")
    same(detector.calibrate(data.calibration) is detector, True, "calibrate returns the detector")
    same((detector.fitted, detector.calibrated), (True, True), "fitted and calibrated")
    result = detector.test(data.queries[:50])
    same(isinstance(result, DetectionResult), True, "test returns a DetectionResult")
    same(result.guarantee, "conformal", "calibrated p-values are conformal")
    for name in ("statistic", "score", "pvalue", "outcome"):
        value = getattr(result, name)
        same((type(value), value.shape), (np.ndarray, (50,)), f"{name} of numpy queries")
    same(bool(((result.pvalue > 0) & (result.pvalue <= 1)).all()), True, "p-values lie in (0, 1]")
    same(bool((result.pvalue >= result.smallest_pvalue).all()), True, "no p-value is below smallest_pvalue")
    same(np.array_equal(detector.score(data.queries[:50]), result.score), True, "score is test's score")
    by_tensor = detector.test(torch.from_numpy(data.queries[:50]))
    same(isinstance(by_tensor.score, torch.Tensor), True, "tensors out for tensors in")
    same(np.array_equal(by_tensor.score.numpy(), result.score), True, "tensors score as arrays do")
    narrow = detector.score(data.queries[:50].astype(np.float32))
    np.testing.assert_allclose(narrow, result.score, rtol=1e-2, atol=1e-3, err_msg="float32 scores as float64 does")
    same(detector.test(data.queries[:0]).score.shape, (0,), "no queries, no scores")
    decision = detector.decide(data.queries[:50], fdr=0.5)
    same(np.array_equal(decision.rejected, result.decide(fdr=0.5).rejected), True, "decide is test's decide")


def check_direction(factory: Factory, data: Data) -> None:
    """Larger score = more OOD; p-values fall as scores rise."""
    detector = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    inside, outside = detector.test(data.queries), detector.test(data.ood)
    higher = float((outside.score[:, None] > inside.score[None]).mean())
    same(higher > 0.9, True, f"OOD inputs score higher; P(higher) = {higher:.3f}")
    order = np.argsort(inside.score)
    same(bool((np.diff(inside.pvalue[order]) <= 1e-12).all()), True, "p-values fall as scores rise")


def check_deterministic(factory: Factory, data: Data) -> None:
    """Twice the same calls give the same bits, and inputs stay as they are."""
    kept = data.queries[:50].copy()
    scores = [
        detector.score(data.queries[:50])
        for detector in (factory().fit(data.fit, data.labels).calibrate(data.calibration) for _ in range(2))
        for _ in range(2)
    ]
    same(all(np.array_equal(scores[0], other) for other in scores), True, "the same calls give the same scores")
    same(np.array_equal(kept, data.queries[:50]), True, "queries are not written to")


def check_chunks(factory: Factory, data: Data) -> None:
    """Chunks of any size give what the whole gives: in fit, calibrate and test."""
    whole = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    expected = whole.test(data.queries[:60])
    cuts = (1, 7, 150)
    if whole.merges:
        pieces = list(zip(np.split(data.fit, cuts), np.split(data.labels, cuts), strict=True))
        chunked = factory().fit(iter(pieces))
        grown = factory()
        for rows, labels in pieces:
            grown.partial_fit(rows, labels)
        for other in (chunked, grown):
            same(other.inputs, len(data.fit), "inputs counts the reference")
            other.calibrate(iter(np.split(data.calibration, (3, 200))))
            found = other.test(data.queries[:60])
            np.testing.assert_allclose(found.score, expected.score, **CLOSE, err_msg="fitted in chunks")
    one_by_one = np.concatenate([whole.score(data.queries[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(one_by_one, expected.score[:20], **CLOSE, err_msg="queries one by one")


def check_merge(factory: Factory, data: Data) -> None:
    """Merging two halves is fitting the whole, in either order; what is merged in does not change."""
    if not factory().merges:
        return
    first, second = (factory().fit(data.fit[part], data.labels[part]) for part in (slice(100), slice(100, None)))
    whole = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    expected = whole.score(data.queries[:60])
    second.calibrate(data.calibration)
    before = second.score(data.queries[:60])
    first.merge(second)
    same(first.inputs, len(data.fit), "inputs counts both")
    same(first.calibrated, False, "a merge drops the calibration")
    same(np.array_equal(before, second.score(data.queries[:60])), True, "the other side does not change")
    np.testing.assert_allclose(first.calibrate(data.calibration).score(data.queries[:60]), expected, **CLOSE)
    empty = factory().merge(second).calibrate(data.calibration)
    np.testing.assert_allclose(empty.score(data.queries[:60]), before, **CLOSE, err_msg="an empty side is neutral")


def check_bad_rows(factory: Factory, data: Data) -> None:
    """A query with NaN or infinity is marked, never rejected, and its neighbours keep their results."""
    detector = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    clean = detector.test(data.queries[:30])
    queries = data.queries[:30].copy()
    queries[3, 0, 1], queries[11, -1, 0], queries[12] = np.nan, np.inf, -np.inf
    result, bad = detector.test(queries), [3, 11, 12]
    good = np.setdiff1d(np.arange(30), bad)
    same(result.outcome[bad].tolist(), [int(Outcome.NOT_FINITE)] * 3, "outcome of NaN and infinite queries")
    same(bool(np.isnan(result.pvalue[bad]).all() and np.isnan(result.score[bad]).all()), True, "they have no numbers")
    same(result.outcome[good].tolist(), [int(Outcome.OK)] * 27, "their neighbours are fine")
    np.testing.assert_allclose(result.score[good], clean.score[good], **CLOSE, err_msg="neighbours of bad rows")
    same(bool(result.decide(fdr=0.99).rejected[bad].any()), False, "a query without a p-value is not rejected")


def check_pvalues(factory: Factory, data: Data) -> None:
    """On fresh in-distribution queries, calibrated p-values are not smaller than uniform ones.

    Each of three counts stays below the 1 - 1e-6 quantile of the exact law, beta-binomial.
    """
    from arht.evaluation.audits import level_band

    detector = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    p = detector.test(data.queries).pvalue
    for level in (0.01, 0.05, 0.2):
        bound = level_band(level, len(p), calibration=len(data.calibration), outside=2e-6)[1]
        count = int((p <= level + 1e-12).sum())
        same(count <= bound, True, f"{count} of {len(p)} p-values <= {level}; at most {bound} is allowed")


def check_errors(factory: Factory, data: Data) -> None:
    """A wrong call raises InputError with one line that names the caller."""
    fitted = factory().fit(data.fit, data.labels)
    calibrated = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    spoiled = data.calibration.copy()
    spoiled[5, 0, 0] = np.nan
    calls: dict[str, Callable[[], Any]] = {
        "queries of another width": lambda: calibrated.test(data.queries[:, :, :-1]),
        "one number as queries": lambda: calibrated.test(np.array(1.0)),
        "text as queries": lambda: calibrated.test(np.full((4, data.fit.shape[2]), "a")),
        "NaN among the calibration inputs": lambda: fitted.calibrate(spoiled),
        "no calibration inputs": lambda: fitted.calibrate(data.calibration[:0]),
        "a file in no folder": lambda: calibrated.save("/no/such/folder/x.safetensors"),
        "an fdr above 1": lambda: calibrated.decide(data.queries, fdr=1.5),
    }
    if fitted.needs_fit:
        calls["test before fit"] = lambda: factory().test(data.queries)
        calls["calibrate before fit"] = lambda: factory().calibrate(data.calibration)
        calls["save before fit"] = lambda: factory().save("x.safetensors")
        calls["no reference rows"] = lambda: factory().fit(data.fit[:0], data.labels[:0])
    if fitted.merges:
        calls["chunks of two widths"] = lambda: factory().fit(
            iter([(data.fit, data.labels), (data.fit[:, :, 1:], data.labels)])
        )
        calls["no chunks"] = lambda: factory().fit(iter([]))
        calls["merge with something else"] = lambda: fitted.merge(object())  # type: ignore[arg-type]
    for what, call in calls.items():
        try:
            call()
        except InputError as error:
            text = str(error)
            same("\n" not in text and ": " in text and len(text) > 20, True, f"{what}: one line, got {text!r}")
        else:
            raise AssertionError(f"{what}: must raise InputError; nothing was raised")


def check_files(factory: Factory, data: Data) -> None:
    """Saved and loaded, a detector gives the same bits, and can go on learning."""
    with tempfile.TemporaryDirectory() as folder:
        if save_for_comparison(factory, data, Path(folder) / "0"):
            load_and_compare(Path(folder) / "0")
            from arht.loading import load

            loaded = load(Path(folder) / "0" / "detector.safetensors")
            same(repr(loaded), repr(factory()), "parameters come back")
            if loaded.merges:
                loaded.partial_fit(data.fit, data.labels).calibrate(data.calibration)
                grown = factory().fit(data.fit, data.labels).partial_fit(data.fit, data.labels)
                expected = grown.calibrate(data.calibration).score(data.queries[:60])
                np.testing.assert_allclose(loaded.score(data.queries[:60]), expected, **CLOSE, err_msg="learned on")


CHECKS: tuple[Callable[[Factory, Data], None], ...] = (
    check_contract,
    check_direction,
    check_deterministic,
    check_chunks,
    check_merge,
    check_bad_rows,
    check_pvalues,
    check_errors,
    check_files,
)


def same(found: Any, expected: Any, what: str) -> None:
    """Assert, with a line that says what was looked at."""
    assert found == expected, f"{what}: got {found!r}, must be {expected!r}"


# files, here and in a fresh process ---------------------------------------------------------------------------------


def save_for_comparison(factory: Factory, data: Data, folder: Path) -> bool:
    """A detector, queries and their results in a folder; False for a detector whose file needs its scorer beside it."""
    from arht.detectors.scorer import FromScorer

    detector = factory().fit(data.fit, data.labels).calibrate(data.calibration)
    folder.mkdir(parents=True, exist_ok=True)
    digest = detector.save(folder / "detector.safetensors")
    if isinstance(detector, FromScorer):
        return False
    result = detector.test(data.queries[:60])
    np.savez(folder / "expected.npz", queries=data.queries[:60], score=result.score, pvalue=result.pvalue)
    (folder / "expected.json").write_text(json.dumps({"repr": repr(detector), "digest": digest}), encoding="utf-8")
    return True


def load_and_compare(folder: Path) -> None:
    """Load the detector of that folder: its scores and p-values must be the saved ones bit for bit."""
    from arht.loading import load

    detector = load(folder / "detector.safetensors")
    about = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    same(repr(detector), about["repr"], "the loaded detector")
    with np.load(folder / "expected.npz") as expected:
        result = detector.test(expected["queries"])
        same(np.array_equal(result.score, expected["score"]), True, f"scores of the loaded {detector!r}")
        same(np.array_equal(result.pvalue, expected["pvalue"]), True, f"p-values of the loaded {detector!r}")
    same(detector.save(folder / "again.safetensors"), about["digest"], "digest of the file, saved again")


if __name__ == "__main__":
    for part in sorted(Path(sys.argv[1]).iterdir()):
        load_and_compare(part)
