"""The conformance kit on every detector; the kit itself fails a detector that breaks the contract."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor

import arht
from arht.detectors import (
    ARHTDetector,
    DifferentialEntropy,
    Energy,
    Entropy,
    FromScorer,
    HotellingDetector,
    MahalanobisDetector,
    MaximumProbability,
    MutualInformation,
    RHTDetector,
    files,
)
from arht.detectors.conformance import (
    CHECKS,
    check_detector,
    default_data,
    embeddings,
    load_and_compare,
    save_for_comparison,
)

SOURCE = Path(arht.__file__).parents[1]


class Distance:
    """A scorer as pytorch-ood has them: fit on tensors, predict scores, larger = more OOD."""

    def fit(self, x, y=None):
        self.mean = x.mean(0)
        return self

    def predict(self, x):
        return (x - self.mean).norm(dim=1)


class Nearest:
    """A scorer as PyOD has them: decision_function, larger = more abnormal."""

    def fit(self, x, y=None):
        self.rows = x
        self.decision_scores_ = self.decision_function(x)
        return self

    def decision_function(self, x):
        return np.sort(((x[:, None] - self.rows) ** 2).sum(2), axis=1)[:, 3]


FACTORIES = {
    "arht": ARHTDetector,
    "arht, class": partial(ARHTDetector, reference="class"),
    "arht, relative": partial(ARHTDetector, reference="relative"),
    "arht, two-sided": partial(ARHTDetector, tail="two-sided"),
    "arht, class, two-sided": partial(ARHTDetector, reference="class", tail="two-sided"),
    "arht, 200 ridges": partial(ARHTDetector, ridge=None),
    "arht, three priors": partial(ARHTDetector, prior=((1, 0, 0), (0, 1, 0), (0, 0, 1))),
    "arht, relative ridge": partial(ARHTDetector, ridge_unit="mean_eigenvalue"),
    "rht": RHTDetector,
    "rht, class": partial(RHTDetector, ridge=0.1, reference="class"),
    "rht, relative": partial(RHTDetector, reference="relative"),
    "hotelling": HotellingDetector,
    "hotelling, class": partial(HotellingDetector, reference="class"),
    "mahalanobis": MahalanobisDetector,
    "mahalanobis, class": partial(MahalanobisDetector, reference="class"),
    "mahalanobis, relative": partial(MahalanobisDetector, reference="relative", ridge=0.1),
    "maximum probability": MaximumProbability,
    "maximum probability of logits": partial(MaximumProbability, "logits"),
    "entropy": Entropy,
    "mutual information": MutualInformation,
    "differential entropy, matched": partial(DifferentialEntropy, "probabilities"),
    "energy": Energy,
    "isolation forest": lambda: FromScorer(IsolationForest(n_estimators=20, random_state=0)),
    "local outlier factor": lambda: FromScorer(LocalOutlierFactor(novelty=True)),
    "pytorch-ood style": lambda: FromScorer(Distance()),
    "pyod style": lambda: FromScorer(Nearest()),
    "a callable": lambda: FromScorer(lambda x: np.abs(x).max(1)),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FACTORIES)
def test_conformance(name, check):
    check(FACTORIES[name], default_data(FACTORIES[name]))


def test_one_draw_a_query():
    data = embeddings(draws=1)
    for name in ("arht", "arht, class", "arht, relative", "rht", "rht, relative", "hotelling", "mahalanobis, class"):
        check_detector(FACTORIES[name], data, fresh_process=False)


def test_differential_entropy_of_concentrations():
    """A network that predicts a Dirichlet: sure inputs have a large concentration, OOD ones a flat one."""
    data = default_data(Entropy)
    scale = {"fit": 50, "calibration": 50, "queries": 50, "ood": 5}
    parts = {name: getattr(data, name) * factor + 0.5 for name, factor in scale.items()}
    check_detector(DifferentialEntropy, type(data)(labels=data.labels, **parts), fresh_process=False)


def test_every_detector_of_a_file_is_covered():
    assert {type(factory()).__name__ for factory in FACTORIES.values()} | {"DifferentialEntropy"} == set(files.CLASSES)


def test_fresh_process(tmp_path):
    """All detectors' files, read by one new interpreter: the same bits."""
    saved = 0
    for number, name in enumerate(FACTORIES):
        folder = tmp_path / str(number)
        if save_for_comparison(FACTORIES[name], default_data(FACTORIES[name]), folder):
            saved += 1
        else:
            (folder / "detector.safetensors").unlink()
            folder.rmdir()
    assert saved == 22
    env = {k: v for k, v in os.environ.items() if k != "ARHT_CHECK_SHAPES"} | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "arht.detectors.conformance", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # and it can fail: the last bit of one expectation
    spoiled = dict(np.load(tmp_path / "0" / "expected.npz"))
    spoiled["score"][7] = np.nextafter(spoiled["score"][7], np.inf)
    np.savez(tmp_path / "0" / "expected.npz", **spoiled)
    with pytest.raises(AssertionError, match=r"scores of the loaded ARHTDetector\(\)"):
        load_and_compare(tmp_path / "0")


class Unlike(MahalanobisDetector):
    """Breaks one rule of the contract, named by its argument."""

    rule = ""

    def _measure(self, queries):
        measured = super()._measure(queries)
        score = measured.score
        if self.rule == "direction":
            measured.score = -score
        if self.rule == "neighbours":
            measured.score = score - score.mean()
        if self.rule == "chance":
            measured.score = score + torch.rand(len(score), dtype=torch.float64)
        if self.rule == "bad rows":
            measured.score = score.nan_to_num(1e9)
            measured.outcome = torch.zeros_like(measured.outcome)
        if self.rule == "calibration set is the reference" and len(score) == 2000:
            measured.score = score * 1.3
        return measured

    def _join(self, part, kept, shift=0):
        if self.rule == "merge" and self._moments is not None:
            part = type(part)(part.n, self._moments.mean, part.scatter)
        super()._join(part, kept, shift)


@pytest.mark.parametrize(
    ("rule", "check"),
    [
        ("direction", "check_direction"),
        ("neighbours", "check_chunks"),
        ("neighbours", "check_bad_rows"),
        ("chance", "check_deterministic"),
        ("bad rows", "check_bad_rows"),
        ("calibration set is the reference", "check_pvalues"),
        ("merge", "check_merge"),
        ("merge", "check_chunks"),
    ],
)
def test_the_kit_notices(rule, check, monkeypatch):
    monkeypatch.setattr(Unlike, "rule", rule)
    (function,) = (found for found in CHECKS if found.__name__ == check)
    with pytest.raises(AssertionError):
        function(Unlike, embeddings())
    monkeypatch.setattr(Unlike, "rule", "")
    function(Unlike, embeddings())


def test_a_failed_check_says_which(monkeypatch):
    monkeypatch.setattr(Unlike, "rule", "direction")
    with pytest.raises(AssertionError, match=r"^check_direction: Unlike\(\): OOD inputs score higher"):
        check_detector(Unlike, fresh_process=False)


def test_in_a_fresh_process_of_its_own():
    check_detector(partial(MahalanobisDetector, reference="class"))
