"""``arht demo``: the two-sample tests and detection on scikit-learn's digits, real images that ship with it."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from arht._shapes import Float, Int, Tensor
from arht.errors import InputError, ResolutionWarning
from arht.stats import Moments, Reference, TestResult, arht_scores, arht_test, decide, hotelling_test, rht_test
from arht.stats.nulls import Conformal, Permutation

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Record", "main", "report", "run"]

LEVEL = FDR = 0.05
SIZE = 25
"""Images in each of two samples."""
DRAWS = 10
"""Copies of each image; they stand in for an encoder's posterior draws of its embedding."""
SHIFT = 0.5
"""How far a copy is moved at most, in pixels, along each axis."""
UNSEEN = (8, 9)
SHARES = (0.4, 0.4)
"""Shares of the known images that are reference and calibration; the rest are queries."""
SPLITS = 10


@dataclass(frozen=True, slots=True)
class TwoSample:
    """One test: two different digits, two samples of one digit, and all pairs of samples of one digit."""

    test: str
    different: float | None
    same: float | None
    guarantee: str | None
    """None where the test refused."""
    rejected: int | None
    """Of the pairs of samples of one digit, at the level."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over random splits, and half its 95 % interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: list[float]) -> Estimate:
        """From one value a split."""
        from scipy.stats import t

        spread = torch.tensor(values, dtype=torch.float64).std().item()
        return cls(math.fsum(values) / len(values), float(t.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5)

    def show(self, scale: float = 1, places: int = 3) -> str:
        """In units of 1 / scale (percent: 100)."""
        sign = " %" if scale == 100 else ""
        return f"{scale * self.mean:.{places}f} ± {scale * self.half:.{places}f}{sign}"


@dataclass(frozen=True, slots=True)
class Detection:
    """One detector on all splits. A false alarm is a query of a known digit whose p-value is at most the level."""

    detector: str
    auroc: Estimate
    asymptotic: Estimate
    """False alarms by the asymptotic p-value."""
    conformal: Estimate
    """False alarms by the conformal p-value."""
    decided: Estimate
    """Queries called unseen."""
    fdr: Estimate
    """Share of known digits among them."""
    power: Estimate
    """Share of the unseen digits that are among them."""


@dataclass(frozen=True, slots=True)
class Record:
    """Everything the demo computes."""

    refusal: str
    pairs: int
    """How many pairs of samples of one digit there are."""
    permutations: int
    floor: float
    """The smallest p-value that so many permutations can give."""
    two_sample: tuple[TwoSample, ...]
    reference: int
    calibration: int
    known: int
    unseen: int
    needed: int
    """Queries that must reach the smallest p-value together before one is rejected."""
    detection: tuple[Detection, ...]


def run(seed: int = 0) -> Record:
    """Compute the example; the seed governs which images go where, the copies, and the permutations."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = torch.from_numpy(bunch.data), torch.from_numpy(bunch.target)
    generator = torch.Generator().manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small products: a second thread is a loss
    try:
        return Record(**_two_sample(images, labels, generator), **_detection(images, labels, generator))
    finally:
        torch.set_num_threads(threads)


def main(folder: str = "demo") -> None:
    """Run the example and print it; the last line is the path of its report."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:
        _print(run(), console)
        page = report(folder)
        console.print(f"Report, to be opened in a browser: {page}", markup=False, highlight=False, soft_wrap=True)
    sys.stdout.write(captured.get())


def report(folder: str, seed: int = 0) -> Path:
    """One split of the digits, the nearest of one reference a digit, with an audit, as ``folder/report.html``."""
    from arht import data
    from arht.evaluation import audit
    from arht.report import collect, render, scores_of, thumbnails, write

    images = data.load("digits", "train"), data.load("digits", "test")
    pixels, labels = torch.cat([part.pixels for part in images]), torch.cat([cast(Tensor, p.labels) for p in images])
    generator = torch.Generator().manual_seed(seed)
    draws = moved_copies(pixels.flatten(1).double(), generator)
    is_unseen = torch.isin(labels, torch.tensor(UNSEEN))
    known = _shuffled((~is_unseen).nonzero()[:, 0], generator)
    cuts = [round(share * len(known)) for share in (*SHARES, 0.1)]
    reference, calibration, audited, held = known.split([*cuts, len(known) - sum(cuts)])
    queries = _shuffled(torch.cat([held, is_unseen.nonzero()[:, 0]]), generator)
    grouped = Moments.grouped(draws[reference].flatten(0, 1), labels[reference].repeat_interleave(DRAWS)).values()
    references = [Reference.of(moments) for moments in grouped]
    law = Conformal(_smallest(references, draws[calibration])[0])

    def test(rows: Tensor) -> TestResult:
        scores = _smallest(references, draws[rows])[0]
        outcome = torch.zeros(len(scores), dtype=torch.int8)
        claim: dict[str, Any] = {"guarantee": law.guarantee, "null": repr(law), "smallest_pvalue": law.smallest_pvalue}
        parts: dict[str, Any] = {
            "pvalue_error": 0.0,
            "ridge": None,
            "theta1": None,
            "theta2": None,
            "outcome": outcome,
            **claim,
        }
        return TestResult("arht, nearest digit", scores, scores, law.pvalue(scores), **parts)

    columns, record = scores_of(
        test(queries),
        fdr=FDR,
        labels=is_unseen[queries],
        ids=[f"a {digit}" for digit in labels[queries].tolist()],
        calibration=law.scores,
        reference=test(reference).score,
        audit=audit(test(audited), calibration=law.scores, fdr=FDR, tests=len(queries)),
        settings={"unseen digits": list(UNSEEN), "seed": seed, "draws": DRAWS},
    )
    page = collect(columns, record, source="arht demo")
    shown = replace(images[0], pixels=pixels[queries], labels=labels[queries])
    pictures = thumbnails(shown, page["report"]["table"]["columns"]["row"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write(Path(folder) / "report.html", render(page, pictures=pictures))


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]


def _two_sample(images: Float[Tensor, "N P"], labels: Int[Tensor, " N"], generator: torch.Generator) -> dict[str, Any]:
    samples = {
        digit: _shuffled(images[labels == digit], generator).split(SIZE) for digit in range(int(labels.max()) + 1)
    }
    pairs = [
        (first, second)
        for parts in samples.values()
        for first, second in zip(parts[::2], parts[1::2], strict=False)
        if len(second) == SIZE
    ]
    different, same = (samples[3][0], samples[8][0]), (samples[3][0], samples[3][1])
    scale = float(Moments.of(different[0]).covariance.diagonal().mean())
    permutation = Permutation(generator=generator)
    tests: dict[str, Any] = {
        "rht, a small ridge": lambda x, y: rht_test(x, y, ridge=scale / 100),
        "arht": arht_test,
        "arht, permutation": lambda x, y: arht_test(x, y, null=permutation),
    }
    try:
        hotelling_test(*different)
        raise AssertionError("more pixels than images, and yet a T² test")
    except InputError as error:
        refusal = str(error)
    rows = [TwoSample("hotelling", None, None, None, None)]
    for name, test in tests.items():
        apart = test(*different)
        rejected = sum(float(test(*pair).pvalue) <= LEVEL for pair in pairs)
        rows.append(TwoSample(name, float(apart.pvalue), float(test(*same).pvalue), apart.guarantee, rejected))
    return {
        "refusal": refusal,
        "pairs": len(pairs),
        "permutations": permutation.count,
        "floor": permutation.smallest_pvalue,
        "two_sample": tuple(rows),
    }


def moved_copies(images: Float[Tensor, "N P"], generator: torch.Generator) -> Float[Tensor, "N K P"]:
    """Copies of each 8 × 8 image, each moved by its own random part of a pixel (bilinear, the border repeated)."""
    count = len(images) * DRAWS
    copies = images.reshape(-1, 1, 8, 8).repeat_interleave(DRAWS, 0)
    motion = torch.eye(2, 3, dtype=torch.float64).repeat(count, 1, 1)
    motion[:, :, 2] = SHIFT * (2 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 1) * 2 / 8
    where = torch.nn.functional.affine_grid(motion, [count, 1, 8, 8], align_corners=False)
    moved = torch.nn.functional.grid_sample(copies, where, padding_mode="border", align_corners=False)
    return moved.reshape(len(images), DRAWS, -1)


def _detection(images: Float[Tensor, "N P"], labels: Int[Tensor, " N"], generator: torch.Generator) -> dict[str, Any]:
    draws = moved_copies(images, generator)
    is_unseen = torch.isin(labels, torch.tensor(UNSEEN))
    known, unseen = (~is_unseen).nonzero()[:, 0], is_unseen.nonzero()[:, 0]
    cuts = [round(share * len(known)) for share in SHARES]
    found: dict[str, list[list[float]]] = {"one reference": [], "nearest of one a digit": []}
    for _ in range(SPLITS):
        reference, calibration, held = _shuffled(known, generator).split([*cuts, len(known) - sum(cuts)])
        grouped = Moments.grouped(draws[reference].flatten(0, 1), labels[reference].repeat_interleave(DRAWS)).values()
        for values, moments in zip(found.values(), ([Moments.of(draws[reference])], grouped), strict=True):
            references = [Reference.of(part) for part in moments]
            law = Conformal(_smallest(references, draws[calibration])[0])
            scores, working = _smallest(references, draws[torch.cat([held, unseen])])
            values.append(_measure(scores, working, law, len(held)))
    queries = len(known) - sum(cuts) + len(unseen)
    return {
        "reference": cuts[0],
        "calibration": cuts[1],
        "known": len(known) - sum(cuts),
        "unseen": len(unseen),
        "needed": math.ceil(queries / (FDR * (cuts[1] + 1))),
        "detection": tuple(
            Detection(name, *(Estimate.of(list(column)) for column in zip(*rows, strict=True)))
            for name, rows in found.items()
        ),
    }


def _smallest(references: list[Reference], draws: Float[Tensor, "B K P"]) -> tuple[Tensor, Tensor]:
    """Of all references, the smallest score and its asymptotic p-value: how far a query is from the nearest."""
    results = []
    for reference in references:
        start = float(reference.eigenvalues.mean()) / (reference.n - 1) / 100
        results.append(arht_scores(draws, reference, ridges=[start, 5 * start, 10 * start]))
    scores, nearest = torch.stack([result.score for result in results]).min(0)
    return scores, torch.stack([result.pvalue for result in results]).gather(0, nearest[None])[0]


def _measure(scores: Tensor, working: Tensor, law: Conformal, known: int) -> list[float]:
    """The fields of `Detection`, of one split; the first `known` queries are known digits."""
    from sklearn.metrics import roc_auc_score

    pvalues = law.pvalue(scores)
    is_unseen = torch.arange(len(scores)) >= known
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolutionWarning)  # said once, below the table
        decision = decide(pvalues, fdr=FDR, smallest_pvalue=law.smallest_pvalue)
    rejected = decision.rejected
    count = decision.rejected_count
    return [
        float(roc_auc_score(is_unseen, scores)),
        float((working[:known] <= LEVEL).double().mean()),
        float((pvalues[:known] <= LEVEL).double().mean()),
        float(count),
        float(rejected[:known].sum()) / max(count, 1),
        float(rejected[known:].double().mean()),
    ]


def _print(record: Record, console: Console) -> None:
    from rich.table import Table

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    say(
        f"1. Do two samples have the same mean? Real 8 × 8 images of digits, {SIZE} in each sample: "
        "fewer images than pixels.\n"
    )
    table = Table("test", "p: 3s and 8s", "p: 3s and 3s", "guarantee", f"false alarms of {record.pairs}")
    for row in record.two_sample:
        if row.guarantee is None:
            table.add_row(row.test, "refuses", "refuses", "-", "-")
        else:
            table.add_row(row.test, f"{row.different:.3g}", f"{row.same:.3g}", row.guarantee, str(row.rejected))
    console.print(table)
    say(f"- {record.refusal}")
    say("- Small p-values speak against one mean: plainly so for 3s and 8s, not at all for 3s and other 3s.")
    say(f"- Permutation is exact; its {record.permutations} relabellings give no p-value below {record.floor:.2g}.")
    say(
        f"- Last column: rejections at {LEVEL:.0%} among {record.pairs} pairs of samples, each pair of one digit; "
        f"about {LEVEL * record.pairs:g} are due to chance.\n"
    )
    say(
        "2. Which images show a digit that the reference never saw? 0 to 7 are known, 8 and 9 are not. Each image is "
        f"given as {DRAWS} copies, each moved by up to {SHIFT:g} pixel: they stand in for an encoder's posterior "
        f"draws. {record.reference} known images are the reference, {record.calibration} calibrate the p-values, "
        f"{record.known} known and {record.unseen} unseen ones are queries. Means over {SPLITS} random splits, ± half "
        "the 95 % interval.\n"
    )
    table = Table("", *(found.detector for found in record.detection))
    for name, field, scale, places in (
        ("AUROC", "auroc", 1, 3),
        (f"false alarms at {LEVEL:.0%}, asymptotic law", "asymptotic", 100, 1),
        (f"false alarms at {LEVEL:.0%}, conformal law", "conformal", 100, 1),
        ("queries called unseen", "decided", 1, 0),
        ("realised FDR", "fdr", 100, 1),
        ("power", "power", 100, 1),
    ):
        estimates = (getattr(found, field) for found in record.detection)
        table.add_row(name, *(estimate.show(scale, places) for estimate in estimates))
    console.print(table)
    say(
        "- AUROC: 0.5 is blind, 1 is perfect. One mean for eight digits describes none of them; the nearest digit does."
    )
    say("- Asymptotic law: it takes the copies of one image for as many images, so every known image looks strange.")
    say(f"- Conformal law: a rank among held-out known images; at most {LEVEL:.0%} on average, whatever the score.")
    share = record.known / (record.known + record.unseen)
    say(
        f"- Called unseen: by Benjamini-Hochberg at FDR {FDR:.0%} on conformal p-values. Of these, at most "
        f"{share * FDR:.1%} are known digits, on average (FDR); power is the share of the unseen that is called so."
    )
    if record.needed > 1:
        say(
            f"- {record.calibration} calibration images give no p-value below {1 / (record.calibration + 1):.2g}, and "
            f"{record.needed} queries must reach that floor together before one is called unseen: this limits the "
            "power, and more calibration images lift it."
        )
    say("\nNext: arht test X Y, on two files of your own embeddings (npy, npz, csv, parquet). See arht test --help.")
