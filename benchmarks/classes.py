"""Classes that an encoder never saw: MNIST without 8 and 9, CIFAR-10 without its last two classes.

    python -m benchmarks.classes --out results/classes.json      trains, then scores; a restart skips what is done
    python -m benchmarks.classes --render results/classes.json

The encoders are trained as those of benchmarks.ood are, on the first eight classes. In-distribution queries are the
test images of these, out-of-distribution ones the test images of the other two. Nothing was chosen by these sets; the
methods are those of benchmarks.ood as they stand.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arht
from arht.data import Augment, Images, Transform, load
from arht.evaluation import evaluate
from arht.posterior import MeanField
from benchmarks.ood import FIT, LEVEL, METHODS, Methods

KNOWN, UNKNOWN = tuple(range(8)), (8, 9)
HELDOUT = 0.1
TRAINING: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 20, "rho": -3.0, "augment": None},
    "cifar10": {"epochs": 40, "rho": -5.0, "augment": Augment()},
}


def parts(name: str, seed: int) -> tuple[Images, Images]:
    """The training images of the known classes, and the tenth of them that is held out."""
    images = load(name, "train", size=32).of_class(*KNOWN)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held = round(HELDOUT * len(images))
    return images[order[held:].sort().values], images[order[:held].sort().values]


def encoder_of(name: str, seed: int, folder: Path) -> Any:
    """Trained, or from its file; a run that was cut off goes on."""
    path = folder / f"{name}-{seed}.safetensors"
    if path.exists():
        return arht.load(path)
    how, (train, _) = TRAINING[name], parts(name, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = arht.nets.LeNet(in_channels=train.pixels.shape[1], num_classes=len(KNOWN), activation="relu")
    generator = torch.Generator().manual_seed(seed)
    encoder = MeanField(net, rho_mean=how["rho"], generator=generator)
    encoder.transform = Transform.of(train)
    settings = arht.training.Settings(epochs=how["epochs"], kl_weight=0.1, schedule="cosine")
    arht.training.fit(
        encoder,
        train,
        settings=settings,
        transform=encoder.transform,
        augment=how["augment"],
        generator=generator,
        folder=path.with_name(path.name + ".training"),
        progress=False,
    )
    encoder.save(path)
    return encoder


def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """One encoder: every method on the two classes that it never saw."""
    started = time.perf_counter()
    encoder = encoder_of(name, seed, folder)
    train, held = parts(name, seed)
    test = load(name, "test", size=32)
    inside, outside = test.of_class(*KNOWN), test.of_class(*UNKNOWN)
    score = Methods(encoder, train.sample(FIT, generator=torch.Generator().manual_seed(0)), held)
    within, beyond = score(inside.pixels), score(outside.pixels)
    row: dict[str, Any] = {"data": name, "seed": seed, "queries": [len(inside), len(outside)], "cells": {}}
    row["accuracy"] = float((within["class"] == inside.labels).double().mean())
    for method in METHODS:
        metrics = evaluate(within[method].numpy(), beyond[method].numpy())
        row["cells"][method] = {"auroc": metrics.auroc.value, "aupr": metrics.aupr.value, "fpr95": metrics.fpr95.value}
    row["false alarms at 5 %"] = float((within["auto p"] <= LEVEL).double().mean())
    row["found at 5 %"] = float((beyond["auto p"] <= LEVEL).double().mean())
    print({m: round(100 * c["auroc"], 2) for m, c in row["cells"].items()}, file=sys.stderr, flush=True)
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def render(record: dict[str, Any]) -> str:
    """Two tables in Markdown: AUROC of every method, and what auto mode decides at the 5 % level."""
    lines = ["| AUROC | " + " | ".join(METHODS) + " |", "|---|" + "--:|" * len(METHODS)]
    decided = ["| auto, 5 % level | false alarms, % | found, % |", "|---|--:|--:|"]
    for name in TRAINING:
        rows = [row for row in record["rows"] if row["data"] == name]
        if not rows:
            continue
        title = f"{name}, {len(rows)} encoders, accuracy {_mean([row['accuracy'] for row in rows])} %"
        cells = [_mean([row["cells"][method]["auroc"] for row in rows]) for method in METHODS]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
        found = [_mean([row[key] for row in rows]) for key in ("false alarms at 5 %", "found at 5 %")]
        decided.append(f"| {name} | " + " | ".join(found) + " |")
    return "\n".join([*lines, "", *decided, ""])


def _mean(values: list[float]) -> str:
    array = 100 * np.array(values)
    return f"{array.mean():.2f} ± {array.std(ddof=min(1, len(array) - 1)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.classes", description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", type=Path, default=Path("encoders/eight"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(TRAINING), choices=list(TRAINING))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/classes.json"))
    parser.add_argument("--render", type=Path, help="print the table of this record and run nothing")
    args = parser.parse_args()
    if args.render is not None:
        print(render(json.loads(args.render.read_text(encoding="utf-8"))))
        return
    torch.set_num_threads(args.threads)
    args.encoders.mkdir(parents=True, exist_ok=True)
    record = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"rows": []}
    record["versions"] = {"arht": arht.__version__, "torch": torch.__version__}
    done = {(row["data"], row["seed"]) for row in record["rows"]}
    for name in args.data:
        for seed in range(args.seeds):
            if (name, seed) in done:
                continue
            record["rows"].append(run(name, seed, args.encoders))
            beside = args.out.with_name(f".{args.out.name}.{os.getpid()}")
            beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            beside.replace(args.out)
    print(render(record))


if __name__ == "__main__":
    main()
