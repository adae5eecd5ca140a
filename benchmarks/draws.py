"""Speed of draws beside the plain loop.

    python -m benchmarks.draws --json                     # prints the record
    python -m benchmarks.draws --out results/draws.json
    python -m benchmarks.draws --render results/draws.json

The plain loop resamples every random weight, runs the whole net on the whole batch without gradients, and keeps the
embedding, K times. Both see the same inputs, in turns, and a ratio is of one pair; the plain loop is timed on fewer
draws where its time is the same for each of them. Before that, both make their draws from the same weights, which
must agree to rounding, and from their own, whose means and variances must agree as two samples of one law do.
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

import torch
from torch import Tensor
from torch.func import functional_call

# name, random layers, draws, draws that the plain loop is timed on, inputs, smallest ratio asked for
CELLS: tuple[tuple[str, Any, int, int, int, float], ...] = (
    ("LeNet", "all", 300, 30, 1000, 1.3),
    ("ResNet18", ["layer4.1.conv1", "fc"], 100, 5, 1000, 10.0),
)
ROUNDING = 1e-4
LARGEST_Z = 6.0


class Embedded(torch.nn.Module):
    """The embedding of a net as its output."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net.embed(x)


def plain(encoder: Any, x: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """The loop; the scales of the weights are worked out once, the memory for the draws is taken once."""
    net = Embedded(encoder.net).eval()
    out: Tensor | None = None
    with torch.no_grad():
        for k, weights in enumerate(encoder._stream(draws, generator)):
            found = functional_call(net, {f"net.{name}": value for name, value in weights.items()}, (x,))
            if out is None:
                out = torch.empty(len(x), draws, found.shape[1])
            out[:, k] = found
    assert out is not None
    return out


def agreement(encoder: Any, x: Tensor) -> tuple[float, float]:
    """Largest difference under the same weights, relative; largest z of a mean or variance under other weights."""
    few, draws = x[:40], 200
    ours = encoder.draw(few, draws, generator=torch.Generator().manual_seed(1)).double()
    same = plain(encoder, few, draws, torch.Generator().manual_seed(1)).double()
    other = plain(encoder, few, draws, torch.Generator().manual_seed(2)).double()
    error = float((ours - same).abs().max() / same.abs().max())
    difference = ours.mean(1) - other.mean(1)
    z = difference / ((ours.var(1) + other.var(1)) / draws).sqrt()
    squares = [(sample - sample.mean(1, keepdim=True)).square() for sample in (ours, other)]
    spread = (squares[0].mean(1) - squares[1].mean(1)) / ((squares[0].var(1) + squares[1].var(1)) / draws).sqrt()
    return error, float(max(z.abs().max(), spread.abs().max()))


def product_rate(seconds: float = 0.5) -> float:
    """Multiply-adds counted twice per second of a float32 product, 1024 x 1024 x 1024."""
    a = torch.rand(1024, 1024)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * 1024**3 / (time.perf_counter() - start))
    return best


def cell(name: str, layers: Any, draws: int, timed: int, inputs: int, wanted: float, pairs: int) -> dict[str, Any]:
    from arht import nets
    from arht.posterior import MeanField

    torch.manual_seed(0)
    encoder: Any = MeanField(nets.build({"architecture": name}), layers, generator=torch.Generator().manual_seed(0))
    encoder.eval()
    x = torch.randn(inputs, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    error, z = agreement(encoder, x)
    if not error < ROUNDING or not z < LARGEST_Z:
        raise SystemExit(f"benchmarks.draws: {name}: the draws differ, by {error:.1e}, z = {z:.1f}")
    rate = product_rate()
    generator = torch.Generator().manual_seed(4)
    times = torch.empty(pairs, 2, dtype=torch.float64)
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 else (1, 0):
            start = time.perf_counter()
            if side:
                encoder.draw(x, draws, generator=generator)
            else:
                plain(encoder, x, timed, generator)
            times[pair, side] = (time.perf_counter() - start) / (draws if side else timed)
    ratios = times[:, 0] / times[:, 1]
    low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return {
        "net": name,
        "random": layers,
        "draws": draws,
        "inputs": inputs,
        "pairs": pairs,
        "ratio": middle,
        "quartiles": [low, high],
        "wanted": wanted,
        "ours_us_per_draw_and_input": float(times[:, 1].median()) / inputs * 1e6,
        "plain_us_per_draw_and_input": float(times[:, 0].median()) / inputs * 1e6,
        "product_rate_gflops": rate / 1e9,
        "largest_difference": error,
        "largest_z": z,
    }


def measure(pairs: int) -> dict[str, Any]:
    rows = []
    for settings in CELLS:
        row = cell(*settings, pairs)
        rows.append(row)
        print(f"{row['net']}: {row['ratio']:.1f}x", file=sys.stderr)
    return {
        "benchmark": "draws",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "cells": rows,
    }


def render(record: dict[str, Any]) -> str:
    lines = [
        f"{record['threads']} thread(s) on both sides, torch {record['versions']['torch']}; medians of "
        f"{record['cells'][0]['pairs']} interleaved pairs.",
        "",
        "| net | random | K | inputs | times faster than the plain loop | quartiles | asked for | "
        "µs per draw and input, ours | plain | product rate, GFLOP/s | same weights: differ by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["cells"]:
        low, high = row["quartiles"]
        random = row["random"] if isinstance(row["random"], str) else ", ".join(row["random"])
        lines.append(
            f"| {row['net']} | {random} | {row['draws']} | {row['inputs']:,} | **{row['ratio']:.1f}** | "
            f"{low:.1f} to {high:.1f} | ≥ {row['wanted']} | {row['ours_us_per_draw_and_input']:.1f} | "
            f"{row['plain_us_per_draw_and_input']:.1f} | {row['product_rate_gflops']:.0f} | "
            f"{row['largest_difference']:.0e} |"
        )
    return "\n".join(lines)


def passed(record: dict[str, Any]) -> bool:
    return all(row["ratio"] >= row["wanted"] for row in record["cells"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="write the record there")
    parser.add_argument("--render", type=Path, metavar="RECORD", help="print the table of an existing record")
    arguments = parser.parse_args()
    if arguments.render:
        print(render(json.loads(arguments.render.read_text())))
        return 0
    torch.set_num_threads(arguments.threads)
    record = measure(arguments.pairs)
    text = json.dumps(record, indent=1)
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(arguments.out)
    print(text if arguments.json else render(record))
    return 0 if passed(record) else 1


if __name__ == "__main__":
    sys.exit(main())
