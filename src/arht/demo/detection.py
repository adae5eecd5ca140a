"""The second part: a guard around the encoder, in the mode of its own, the paper's, and beside the entropy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arht._shapes import Tensor
from arht.demo.digits import NAMES, UNSEEN, Data, data, train
from arht.demo.samples import LEVEL
from arht.errors import ResolutionWarning

if TYPE_CHECKING:
    from arht.data import Images
    from arht.detectors import DetectionResult
    from arht.evaluation.audits import Audit
    from arht.evaluation.estimate import Estimate
    from arht.guard import Guard

__all__ = ["FDR", "Detection", "Found", "detect"]

FDR = 0.05
EXPLAINED = 12
"""Queries whose score the report explains, the most suspicious ones."""


@dataclass(frozen=True, slots=True)
class Found:
    """One kind of queries that are no known digit."""

    auroc: Estimate
    """Against the known queries."""
    aupr: float
    fpr95: float
    power: Estimate
    """Share of them that the decision about all queries rejects."""


@dataclass(frozen=True, slots=True)
class Detection:
    """One way of scoring, and one decision about all queries by it."""

    method: str
    kinds: dict[str, Found]
    alarms: Estimate
    """Known queries with p <= level."""
    rejected: int
    fdr: Estimate
    """Share of known digits among the rejected."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Everything that the second part computes."""

    counts: dict[str, int]
    accuracy: float
    """Of the encoder, on known queries."""
    asymptotic: float
    """Known queries with p <= level by the asymptotic law of the paper's statistic."""
    methods: tuple[Detection, ...]
    audit: Audit
    page: Path


def detect(folder: Path, seed: int = 0, *, progress: bool = True) -> Detections:
    """Train, fit, calibrate, score, decide, audit, and write encoder, guard, queries and report into the folder."""
    from arht.guard import Guard

    parts = data(seed)
    encoder = train(parts.train, seed, progress=progress)
    modes = ("auto", "paper")
    guards = {
        mode: Guard(encoder, mode).fit(parts.train, calibration=parts.calibration, progress=progress) for mode in modes
    }
    results = {mode: guard.test(parts.queries, progress=progress) for mode, guard in guards.items()}
    results["entropy"], accuracy = _entropy(guards["auto"], parts)
    audit = guards["auto"].audit(parts.audit, fdr=FDR, tests=len(parts.queries))
    folder.mkdir(parents=True, exist_ok=True)
    guards["auto"].save(folder / "guard.safetensors")
    np.savez(folder / "queries.npz", x_test=parts.queries.pixels.numpy(), y_test=parts.kinds.numpy())
    sizes = {"training": parts.train, "calibration": parts.calibration, "audit": parts.audit}
    return Detections(
        {name: len(part) for name, part in sizes.items()}
        | {name: int((parts.kinds == place).sum()) for place, name in enumerate(NAMES)},
        accuracy,
        _asymptotic(guards["paper"], parts),
        tuple(_measured(name, result, parts.kinds.numpy()) for name, result in results.items()),
        audit,
        _report(guards["auto"], results["auto"], audit, parts, folder, seed),
    )


def _entropy(guard: Guard, parts: Data) -> tuple[DetectionResult, float]:
    """The entropy of the predictions of the same weight draws, calibrated; and the accuracy on known queries."""
    from arht.detectors import Entropy

    def probabilities(images: Images) -> Any:
        x = guard.encoder.transform(images.pixels)
        return guard.encoder.predict_draws(x, bank=guard.bank).numpy()

    found = probabilities(parts.queries)
    known = parts.kinds.numpy() == 0
    right = found[known].mean(1).argmax(1) == parts.digits.numpy()[known]
    return Entropy().calibrate(probabilities(parts.calibration)).test(found), float(right.mean())


def _asymptotic(guard: Guard, parts: Data) -> float:
    """False alarms of the paper's statistic by its asymptotic law, which takes draws for independent inputs."""
    from arht.detectors import ARHTDetector

    def draws(images: Images) -> Tensor:
        found: Tensor = guard.encoder.draw(guard.encoder.transform(images.pixels), bank=guard.bank)
        return found

    result = ARHTDetector().fit(draws(parts.train)).test(draws(parts.queries[parts.kinds == 0]))
    return float((result.pvalue <= LEVEL).double().mean())


def _measured(method: str, result: DetectionResult, kinds: Any) -> Detection:
    from arht.evaluation import evaluate, false_alarm_rate, power, realised_fdr

    known = kinds == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolutionWarning)  # the audit says it
        decision = result.decide(fdr=FDR)
    found = {}
    for place, name in list(enumerate(NAMES))[1:]:
        metrics = evaluate(result.score[known], result.score[kinds == place])
        own = power(decision.rejected[kinds == place], np.ones((kinds == place).sum(), dtype=bool))
        found[name] = Found(metrics.auroc, metrics.aupr.value, metrics.fpr95.value, own)
    return Detection(
        method,
        found,
        false_alarm_rate(result.pvalue <= LEVEL, ~known),
        decision.rejected_count,
        realised_fdr(decision, ~known),
    )


def _report(guard: Guard, result: DetectionResult, audit: Any, parts: Data, folder: Path, seed: int) -> Path:
    """``report.html``: of the guard's verdicts, with pictures and explanations."""
    from arht.report import collect, render, scores_of, thumbnails, write
    from arht.report.explain import explanations

    assert guard._law is not None
    names = [f"a {digit}" if digit >= 0 else "photograph" for digit in parts.digits.tolist()]
    columns, record = scores_of(
        result,
        fdr=FDR,
        labels=parts.kinds > 0,
        ids=names,
        calibration=guard._law.scores,
        reference=guard.score(parts.train),
        audit=audit,
        settings={"unseen digits": list(UNSEEN), "seed": seed, "draws": len(guard.bank), "mode": guard.mode},
    )
    page = collect(columns, record, source="arht demo")
    rows = page["report"]["table"]["columns"]["row"]
    found = explanations(guard, parts.queries[rows[:EXPLAINED]])
    page["report"]["explanations"] = {str(place): one for place, one in enumerate(found)}
    return write(folder / "report.html", render(page, pictures=thumbnails(parts.queries, rows)))
