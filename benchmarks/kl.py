"""Does the divergence from the prior help? LeNet on 500 images of MNIST, with the KL and without.

    python -m benchmarks.kl                   trains and writes results/kl.json
    python -m benchmarks.kl --render FILE     prints the table of a record

Every run is `arht train`'s: MeanField over all weights, over those of the last two layers, or of the last one; the
same settings but for the weight of the KL, of which 1 is the evidence bound itself. Held-out log-likelihood is the mean
log predictive probability of the right class, over images of the training part that no run was trained on, and over the
test images. What is said to be best is best on the former.

Exit code 1 unless the evidence bound, with the last two layers random, beats no KL on the test images, and so does the
best net with a KL the best without.
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

LAYERS: dict[str, str | list[str]] = {"all": "all", "last two": ["fc2", "head"], "last": ["head"]}
WEIGHTS = {"all": (0.0, 0.01, 0.1, 1.0), "last two": (0.0, 0.1, 1.0), "last": (0.0, 0.1, 1.0)}
BOUND = 1.0
IMAGES, HELDOUT, TESTED, DRAWS = 500, 2000, 2000, 20


def train(
    layers: str, weight: float, seed: int, epochs: int, images: Images, transform: Transform
) -> tuple[MeanField, float, float]:
    """The encoder, and the last mean negative log-likelihood and KL of its own images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nets.LeNet(in_channels=1, num_classes=10, activation="relu")
    generator = torch.Generator().manual_seed(seed)
    encoder = MeanField(net, LAYERS[layers], generator=generator)
    settings = training.Settings(epochs=epochs, batch_size=50, kl_weight=weight, schedule="cosine")
    history = training.fit(encoder, images, settings=settings, transform=transform, generator=generator, progress=False)
    return encoder, history.epochs[-1].nll, history.epochs[-1].kl


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
    done = {(row["layers"], row["seed"], row["kl_weight"]) for row in rows}
    full, test = load("mnist", "train", size=32), load("mnist", "test", size=32, limit=TESTED)
    for seed in range(seeds):
        order = torch.randperm(len(full), generator=torch.Generator().manual_seed(seed))
        images, heldout = full[order[:IMAGES]], full[order[IMAGES : IMAGES + HELDOUT]]
        transform = Transform.of(images)
        for layers, weight in ((layers, weight) for layers, weights in WEIGHTS.items() for weight in weights):
            if (layers, seed, weight) in done:
                continue
            began = time.perf_counter()
            encoder, nll, kl = train(layers, weight, seed, epochs, images, transform)
            row: dict[str, Any] = {"layers": layers, "seed": seed, "kl_weight": weight}
            row |= {"train_nll": round(nll, 5), "kl_per_image": round(kl / IMAGES, 5)}
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


Row = dict[str, Any]
Net = tuple[str, float]  # which layers are random, and the weight of the KL


def by_net(record: dict[str, Any]) -> dict[Net, list[Row]]:
    """The rows of each kind of net, in the order of the seeds; a seed that is still being run is left out."""
    nets_of = {(layers, weight) for layers, weights in WEIGHTS.items() for weight in weights}
    found: dict[int, dict[Net, Row]] = {}
    for row in record["rows"]:
        found.setdefault(row["seed"], {})[row["layers"], row["kl_weight"]] = row
    whole = [found[seed] for seed in sorted(found) if found[seed].keys() >= nets_of]
    return {
        net: [rows[net] for rows in whole]
        for net in sorted(nets_of, key=lambda net: (list(WEIGHTS).index(net[0]), net[1]))
    }


def mean(rows: list[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def best(nets_of: dict[Net, list[Row]], kl: bool) -> Net:
    """The net with a KL, or without, that has the best mean log-likelihood on the held-out training images."""
    candidates = [net for net in nets_of if (net[1] > 0) == kl]
    return max(candidates, key=lambda net: mean(nets_of[net], "heldout_log_likelihood"))


def gains(nets_of: dict[Net, list[Row]], net: Net, other: Net) -> list[float]:
    """Test log-likelihood of one kind of net less that of another, seed by seed."""
    name = "test_log_likelihood"
    return [a[name] - b[name] for a, b in zip(nets_of[net], nets_of[other], strict=True)]


def compared(nets_of: dict[Net, list[Row]]) -> list[tuple[Net, Net]]:
    """Each comparison that is made: the bound with none, and with the best net without, and the best with the best."""
    without = best(nets_of, False)
    pairs = [((layers, BOUND), (layers, 0.0)) for layers in WEIGHTS]
    return list(dict.fromkeys([*pairs, (("last two", BOUND), without), (best(nets_of, True), without)]))


def good(record: dict[str, Any]) -> bool:
    """Whether the evidence bound over the last two layers beats no KL, and the best with a KL the best without."""
    nets_of = by_net(record)
    pairs = [(("last two", BOUND), ("last two", 0.0)), (best(nets_of, True), best(nets_of, False))]
    return all(np.mean(gains(nets_of, *pair)) > 0 for pair in pairs)


def render(record: dict[str, Any]) -> str:
    """A markdown table: a row a kind of net, mean and range over the seeds; then the comparisons."""
    nets_of, s = by_net(record), record["settings"]
    seeds = len(next(iter(nets_of.values())))
    chosen = best(nets_of, True), best(nets_of, False)
    out = [
        f"MNIST, LeNet, MeanField, {s['images']} training images, {s['epochs']} epochs, {seeds} seeds; log-likelihood "
        f"per image of the predictive mean of {s['draws']} draws, mean (range). Bold: the best with a KL and the best "
        f"without, on {s['heldout']} further images of the training part. A weight of 1 is the evidence bound.",
        "",
        "| random layers | weight of the KL | nll, training | KL per image | log-likelihood, held out "
        "| log-likelihood, test | accuracy, test |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for net, rows in nets_of.items():
        cells = []
        for key, form in (
            ("train_nll", ".3f"),
            ("kl_per_image", ".1f"),
            ("heldout_log_likelihood", ".3f"),
            ("test_log_likelihood", ".3f"),
            ("test_accuracy", ".1%"),
        ):
            values = [row[key] for row in rows]
            cells.append(f"{np.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})")
        name = f"**{net[1]:g}**" if net in chosen else f"{net[1]:g}"
        out.append(f"| {net[0]} | {name} | " + " | ".join(cells) + " |")
    out += ["", "| gain in test log-likelihood per image | over | mean | seed by seed |", "|---|---|--:|---|"]
    for net, other in compared(nets_of):
        found = gains(nets_of, net, other)
        cells = [f"{layers}, weight {weight:g}" for layers, weight in (net, other)]
        each = ", ".join(f"{gain:+.3f}" for gain in found)
        out.append(f"| {cells[0]} | {cells[1]} | {np.mean(found):+.3f} | {each} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.kl", description="Training with the KL and without")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/kl.json"))
    parser.add_argument("--render", type=Path, help="print the table of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        torch.set_num_threads(args.threads)
        run(args.seeds, args.epochs, args.out)
    record = json.loads((args.render or args.out).read_text(encoding="utf-8"))
    print(render(record))
    return 0 if good(record) else 1


if __name__ == "__main__":
    sys.exit(main())
