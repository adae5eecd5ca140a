"""Does the divergence from the prior help? LeNet on 500 images of MNIST, with the KL and without.

    python -m benchmarks.kl                   trains and writes results/kl.json
    python -m benchmarks.kl --render FILE     prints the table of a record

Every run is `arht train`'s: MeanField over all weights, the same settings but for the weight of the KL. Held-out
log-likelihood is the mean log predictive probability of the right class, over images of the training part that no run
was trained on, and over the test images. The weight that is compared with none is the best on the former.
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

from arht import nets, training
from arht.data import Images, Transform, load
from arht.posterior import MeanField

WEIGHTS = (0.0, 0.01, 0.1, 1.0)
IMAGES, HELDOUT, TESTED, DRAWS = 500, 2000, 2000, 20


def train(weight: float, seed: int, epochs: int, images: Images, transform: Transform) -> tuple[MeanField, float]:
    """The encoder, and the last mean negative log-likelihood of its own images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nets.LeNet(in_channels=1, num_classes=10, activation="relu")
    generator = torch.Generator().manual_seed(seed)
    encoder = MeanField(net, generator=generator)
    settings = training.Settings(epochs=epochs, batch_size=50, kl_weight=weight, schedule="cosine")
    history = training.fit(encoder, images, settings=settings, transform=transform, generator=generator, progress=False)
    return encoder, history.epochs[-1].nll


def measure(encoder: MeanField, images: Images, transform: Transform) -> tuple[float, float]:
    """Mean log-likelihood and accuracy of the predictive mean."""
    p = encoder.predict(transform(images), DRAWS, generator=torch.Generator().manual_seed(1)).double()
    assert images.labels is not None
    right = p[torch.arange(len(images)), images.labels].clamp_min(1e-12)
    return float(right.log().mean()), float((p.argmax(1) == images.labels).double().mean())


def run(seeds: int, epochs: int, out: Path) -> None:
    """Write the record after every run; runs that a record of the same settings has are not made again."""
    settings = {"images": IMAGES, "heldout": HELDOUT, "tested": TESTED, "draws": DRAWS, "epochs": epochs}
    rows: list[dict[str, Any]] = []
    if out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))
        rows = found["rows"] if found["settings"] == settings else []
    done = {(row["seed"], row["kl_weight"]) for row in rows}
    full, test = load("mnist", "train", size=32), load("mnist", "test", size=32, limit=TESTED)
    for seed in range(seeds):
        order = torch.randperm(len(full), generator=torch.Generator().manual_seed(seed))
        images, heldout = full[order[:IMAGES]], full[order[IMAGES : IMAGES + HELDOUT]]
        transform = Transform.of(images)
        for weight in WEIGHTS:
            if (seed, weight) in done:
                continue
            began = time.perf_counter()
            encoder, nll = train(weight, seed, epochs, images, transform)
            row: dict[str, Any] = {"seed": seed, "kl_weight": weight, "train_nll": round(nll, 5)}
            for name, part in (("heldout", heldout), ("test", test)):
                likelihood, accuracy = measure(encoder, part, transform)
                row |= {f"{name}_log_likelihood": round(likelihood, 5), f"{name}_accuracy": accuracy}
            rows.append(row)
            print(f"{row} {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            versions = {"python": platform.python_version(), "torch": torch.__version__}
            record = {"benchmark": "kl", "settings": settings, "versions": versions, "rows": rows}
            part = out.with_name(out.name + ".part")
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(part, out)


def best(record: dict[str, Any]) -> float:
    """The weight above zero with the best mean log-likelihood on the held-out training images."""
    weights = sorted({row["kl_weight"] for row in record["rows"]} - {0.0})
    return max(weights, key=lambda weight: np.mean(values(record, weight, "heldout_log_likelihood")))


def values(record: dict[str, Any], weight: float, name: str) -> list[float]:
    return [row[name] for row in record["rows"] if row["kl_weight"] == weight]


def render(record: dict[str, Any]) -> str:
    """A markdown table: a row a weight, mean and range over the seeds."""
    seeds_of = [{row["seed"] for row in record["rows"] if row["kl_weight"] == weight} for weight in WEIGHTS]
    whole = set.intersection(*seeds_of)  # a seed that is still being run is left out
    record = {**record, "rows": [row for row in record["rows"] if row["seed"] in whole]}
    s, chosen = record["settings"], best(record)
    weights = sorted({row["kl_weight"] for row in record["rows"]})
    seeds = len(values(record, chosen, "train_nll"))
    out = [
        f"MNIST, LeNet, MeanField, {s['images']} training images, {s['epochs']} epochs, {seeds} seeds; log-likelihood "
        f"per image of the predictive mean of {s['draws']} draws, mean (range). Bold: the weight that is best on "
        f"{s['heldout']} further images of the training part.",
        "",
        "| weight of the KL | nll, training | log-likelihood, held out | log-likelihood, test | accuracy, test |",
        "|--:|--:|--:|--:|--:|",
    ]

    def cell(weight: float, name: str, form: str) -> str:
        found = values(record, weight, name)
        return f"{np.mean(found):{form}} ({min(found):{form}} to {max(found):{form}})"

    for weight in weights:
        name = f"**{weight:g}**" if weight == chosen else f"{weight:g}"
        cells = [cell(weight, key, ".3f") for key in ("train_nll", "heldout_log_likelihood", "test_log_likelihood")]
        out.append(f"| {name} | " + " | ".join([*cells, cell(weight, "test_accuracy", ".1%")]) + " |")
    gains = [a - b for a, b in zip(*(values(record, w, "test_log_likelihood") for w in (chosen, 0.0)), strict=True)]
    out += ["", f"Gain in test log-likelihood over no KL, seed by seed: {', '.join(f'{gain:+.3f}' for gain in gains)}."]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.kl", description="Training with the KL and without")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/kl.json"))
    parser.add_argument("--render", type=Path, help="print the table of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        torch.set_num_threads(args.threads)
        run(args.seeds, args.epochs, args.out)
    print(render(json.loads((args.render or args.out).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
