"""How the embedding's moments and an ARHT score settle with the number of draws K.

    python -m benchmarks.settling --encoder encoders/mnist-0.safetensors encoders/cifar10-0.safetensors \\
        --out results/settling.json                      # pictures are looked for below ARHT_DATA
    python -m benchmarks.settling --render results/settling.json

Two banks of weight draws, made apart, stand for two people who fit the same detector. Of each, the first K draws are
used for the reference and for the queries. Another bank of 1,000 draws gives each input's mean and covariance to
compare with, for five banks, of which the median is shown: a draw in some hundreds lies far from the rest. The
reference is made of training pictures. Queries are pictures of the test split, without labels, and the same pictures
with pixel noise of a standard deviation of 0.1: no other data set takes part in the choice of K.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import arht
from arht.data import load
from arht.evaluation import auroc
from arht.posterior import Bank
from arht.posterior import load as load_encoder

DRAWS = (5, 10, 20, 50, 100, 200, 300)
EXACT = 1000
DEFAULT = 20
REFERENCE = 300
QUERIES = 150
BANKS = 5
NOISE = 0.1
FIGURES = ("mean_error", "covariance_error", "rank_correlation", "auroc", "auroc_difference")


def pictures(name: str, encoder: Any) -> tuple[Tensor, Tensor]:
    """Inputs of the net: of the reference, and the queries, clean ones before the noisy ones."""
    train = load(name, "train", limit=REFERENCE, progress=False).pixels
    test = load(name, "test", limit=QUERIES, progress=False).pixels
    noise = torch.randn(test.shape, generator=torch.Generator().manual_seed(0)) * 255 * NOISE
    noisy = (test + noise).round().clamp(0, 255).to(torch.uint8)
    return encoder.transform(train), encoder.transform(torch.cat([test, noisy]))


def moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, P] and covariance [B, P, P] of each input's draws."""
    draws = draws.double()
    mean = draws.mean(1)
    centred = draws - mean[:, None]
    return mean, centred.mT @ centred / (draws.shape[1] - 1)


def exact(encoder: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return moments(encoder.draw(x, EXACT, generator=torch.Generator().manual_seed(99)))


def errors(draws: Tensor, truth: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Error of the mean in units of the posterior's spread, and of the covariance relative to its norm."""
    mean, covariance = moments(draws)
    spread = truth[1].diagonal(dim1=1, dim2=2).sum()
    far = (covariance - truth[1]).square().sum().sqrt() / truth[1].square().sum().sqrt()
    return float(((mean - truth[0]).square().sum() / spread).sqrt()), float(far)


def ranks(values: np.ndarray) -> np.ndarray:
    return values.argsort().argsort().astype(float)


def measure_one(path: Path) -> dict[str, Any]:
    encoder: Any = load_encoder(path)
    name = encoder.record["data"]["name"]
    train, queries = pictures(name, encoder)
    banks: list[Bank] = [
        encoder.bank(max(DRAWS), generator=torch.Generator().manual_seed(seed)) for seed in range(1, BANKS + 1)
    ]
    references = [encoder.draw(train, bank=bank) for bank in banks[:2]]
    clouds = [encoder.draw(queries if place < 2 else queries[:QUERIES], bank=bank) for place, bank in enumerate(banks)]
    truth = exact(encoder, queries[:QUERIES])
    rows = []
    for k in DRAWS:
        scores, seconds = [], 0.0
        for reference, cloud in zip(references, clouds[:2], strict=True):
            fitted = arht.Reference.of(reference[:, :k].flatten(0, 1))
            start = time.perf_counter()
            scores.append(arht.arht_scores(cloud[:, :k], fitted).score.numpy())
            seconds += time.perf_counter() - start
        found = [errors(cloud[:QUERIES, :k], truth) for cloud in clouds]
        areas = [auroc(score[:QUERIES], score[QUERIES:]).value for score in scores]
        rows.append(
            {
                "draws": k,
                "mean_error": float(np.median([mean for mean, _ in found])),
                "covariance_error": float(np.median([covariance for _, covariance in found])),
                "rank_correlation": float(np.corrcoef(*(ranks(score[:QUERIES]) for score in scores))[0, 1]),
                "auroc": float(np.mean(areas)),
                "auroc_difference": abs(areas[0] - areas[1]),
                "scoring_ms_per_input": 1e3 * seconds / (2 * len(queries)),
            }
        )
    return {"encoder": path.stem, "data": name, "width": truth[0].shape[1], "rows": rows}


def render(record: dict[str, Any]) -> str:
    lines = [
        f"Reference: {record['reference']} training pictures; queries: {record['queries']} of the test split; moments "
        f"against {record['exact']:,} draws of another bank, medians of {record['banks']} banks.",
    ]
    for part in record["encoders"]:
        lines += [
            "",
            f"**{part['encoder']}**, P = {part['width']}:",
            "",
            "| K | error of the mean, in posterior sd | error of the covariance, relative | rank correlation of the "
            "scores of two banks | AUROC of noisy pictures | its difference between the banks |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['draws']} | " + " | ".join(f"{row[key]:.3f}" for key in FIGURES) + " |" for row in part["rows"]
        ]
    lines += ["", f"At the default, K = {DEFAULT}, and at K = {DRAWS[-1]}: {'; '.join(summary(record))}."]
    return "\n".join(lines)


def summary(record: dict[str, Any]) -> list[str]:
    """What the choice of the default looks at."""
    found = []
    for part in record["encoders"]:
        rows = {row["draws"]: row for row in part["rows"]}
        few, many = rows[DEFAULT], rows[DRAWS[-1]]
        found.append(
            f"{part['encoder']}, rank correlation {few['rank_correlation']:.3f} and {many['rank_correlation']:.3f}, "
            f"AUROC {few['auroc']:.3f} and {many['auroc']:.3f}"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, nargs="+", help="files of arht train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="write the record there")
    parser.add_argument("--render", type=Path, metavar="RECORD", help="print the tables of an existing record")
    arguments = parser.parse_args()
    if arguments.render:
        print(render(json.loads(arguments.render.read_text())))
        return 0
    if not arguments.encoder:
        parser.error("--encoder or --render is needed")
    torch.set_num_threads(arguments.threads)
    parts = []
    for path in arguments.encoder:
        parts.append(measure_one(path))
        print(f"{path.stem}: done", file=sys.stderr)
    record = {
        "benchmark": "settling",
        "reference": REFERENCE,
        "queries": QUERIES,
        "exact": EXACT,
        "noise": NOISE,
        "banks": BANKS,
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "encoders": parts,
    }
    text = json.dumps(record, indent=1)
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(arguments.out)
    print(text if arguments.json else render(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
