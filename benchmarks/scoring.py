"""Speed and memory of scoring queries against one reference, beside the dense way.

    python -m benchmarks.scoring --json                     # prints the record
    python -m benchmarks.scoring --out results/scoring.json
    python -m benchmarks.scoring --render results/scoring.json

The dense twin does for every query what the formulas say: pooled covariance, its inverse at three ridges, Θ₁, Θ₂
and RHT from it; batched numpy, the same threads, a batch size that suits it. Both score the same inputs, in
turns, and their answers are compared first; a ratio is of one pair. The queries are drawn from the reference's
own covariance, which makes the perturbation as large as an in-distribution query's can be. Memory is measured in
fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

N1 = 300_000
MULTIPLES = (0.01, 0.05, 0.1)
# P, K, queries, queries the twin handles at a time, smallest ratio asked for
CELLS = ((84, 300, 512, 16, 8.0), (84, 20, 1024, 16, 30.0), (512, 20, 64, 4, 100.0), (2048, 20, 16, 1, 200.0))
STREAM_LIMIT_MB, FIT_LIMIT_MB = 300.0, 200.0
AGREEMENT = 1e-9


def dense(
    draws: np.ndarray, mean: np.ndarray, scatter: np.ndarray, ridges: np.ndarray, block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """RHT, Θ₁ and Θ₂ [B, R] by the printed formulas (equations 1, 3 and 4), one inverse a query and ridge."""
    count, k, p = draws.shape
    nu, weight = N1 + k - 2, N1 * k / (N1 + k)
    gamma, eye = p / nu, np.eye(p)
    rht, theta1, theta2 = (np.empty((count, len(ridges))) for _ in range(3))
    for start in range(0, count, block):
        part = slice(start, start + block)
        centre = draws[part].mean(1)
        centred = draws[part] - centre[:, None]
        pooled = (scatter + np.swapaxes(centred, 1, 2) @ centred) / nu
        difference = centre - mean
        for j, ridge in enumerate(ridges):
            inverse = np.linalg.inv(pooled + ridge * eye)
            solved = (inverse @ difference[:, :, None])[:, :, 0]
            rht[part, j] = weight * (difference * solved).sum(1)
            m = np.trace(inverse, axis1=1, axis2=2) / p
            derivative = np.square(inverse).sum((1, 2)) / p
            one = 1 - ridge * m
            x = 1 - gamma * one
            theta1[part, j] = one / x
            theta2[part, j] = one / x**3 - ridge * (m - ridge * derivative) / x**4
    return rht, theta1, theta2


def inputs(p: int, k: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries, and a reference of N1 rows whose eigenvalues fall from 1 to e⁻⁵, in a random basis."""
    rng = np.random.default_rng(p * 1000 + k)
    basis = np.linalg.qr(rng.standard_normal((p, p)))[0]
    root = basis * np.exp(np.linspace(0, -2.5, p))
    draws = (rng.standard_normal((count * k, p)) @ root.T).reshape(count, k, p)
    scatter = N1 * root @ root.T
    return draws, np.zeros(p), (scatter + scatter.T) / 2, np.trace(scatter) / N1 / p * np.array(MULTIPLES)


def product_rate(seconds: float = 0.5) -> float:
    """Multiply-adds counted twice per second of a float64 product, 2048 × 2048 × 2048."""
    a = torch.rand(2048, 2048, dtype=torch.float64)
    out = a @ a
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    return best


def products(p: int, k: int, one_less: bool) -> int:
    """Floating-point operations in matrix products that one query costs us."""
    if k < p:
        return 2 * k * p * p + (2 if one_less else 3) * 2 * k * k * p  # rotation, Gram matrices
    return 2 * k * p * p + 3 * 2 * p**3  # scatter, two rotations of it, one square


def cell(p: int, k: int, count: int, block: int, wanted: float, pairs: int) -> dict[str, Any]:
    import arht

    draws, mean, scatter, ridges = inputs(p, k, count)
    reference = arht.Reference.of(arht.Moments(N1, torch.from_numpy(mean), torch.from_numpy(scatter)))
    ours = arht.arht_scores(draws, reference, ridges=ridges)
    twin = dense(draws, mean, scatter, ridges, block)
    chosen = np.abs(ours.ridge[:, None] - ridges).argmin(1)
    q = twin[1] / np.sqrt(twin[2])
    apart = float((q.max(1) - q[np.arange(count), chosen]).max() / q.max())
    rht, theta1, theta2 = (values[np.arange(count), chosen] for values in twin)
    statistic = 3 * p**0.5 * ((rht / p) ** (1 / 3) - theta1 ** (1 / 3)) * theta1 ** (2 / 3) / np.sqrt(2 * theta2)
    error = max(
        float(np.abs(ours.theta1 / theta1 - 1).max()),
        float(np.abs(ours.theta2 / theta2 - 1).max()),
        float((np.abs(ours.statistic - statistic) / np.maximum(np.abs(statistic), 1)).max()),
        apart,
    )
    if not error < AGREEMENT:
        raise SystemExit(f"benchmarks.scoring: P={p}, K={k}: the answers differ by {error:.1e}")
    rate = product_rate()
    times = np.empty((pairs, 2))
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 else (1, 0):
            time.sleep(0.25)  # the other library's threads have stopped spinning by then
            start = time.perf_counter()
            if side:
                arht.arht_scores(draws, reference, ridges=ridges)
            else:
                dense(draws, mean, scatter, ridges, block)
            times[pair, side] = (time.perf_counter() - start) / count
    ratios = times[:, 0] / times[:, 1]
    one_less = all(found[0].one_less for key, found in reference.prepared.items() if key != "choices")
    mine = float(np.median(times[:, 1]))
    return {
        "P": p,
        "K": k,
        "queries": count,
        "pairs": pairs,
        "ratio": float(np.median(ratios)),
        "quartiles": [float(v) for v in np.quantile(ratios, (0.25, 0.75))],
        "wanted": wanted,
        "share_of_product_rate": products(p, k, one_less) / mine / rate,
        "product_rate_gflops": rate / 1e9,
        "ours_us_per_query": mine * 1e6,
        "dense_us_per_query": float(np.median(times[:, 0])) * 1e6,
        "largest_difference": error,
    }


def peak_mb() -> float:
    """Peak of this process's own memory; `ru_maxrss` would start at that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream_memory() -> float:
    """Growth of the peak while 100,000 queries (P = 84, K = 20) stream past, in MB."""
    import arht

    rng = np.random.default_rng(0)
    reference = arht.Reference.of(rng.standard_normal((3000, 84)))
    arht.arht_scores(rng.standard_normal((2, 20, 84)), reference, ridges=MULTIPLES)
    start = peak_mb()
    chunks = (rng.standard_normal((1000, 20, 84), dtype=np.float32) for _ in range(100))
    scores = [result.score for result in arht.stats.arht_stream(chunks, reference, ridges=MULTIPLES)]
    assert sum(map(len, scores)) == 100_000
    return peak_mb() - start


def fit_memory() -> float:
    """Growth of the peak while 1,000,000 × 512 rows are fitted in chunks, in MB."""
    import arht

    rng = np.random.default_rng(0)
    start = peak_mb()
    chunks = (rng.standard_normal((10_000, 512), dtype=np.float32) for _ in range(100))
    reference = arht.Reference.of(arht.Moments.stream(chunks))
    assert reference.n == 1_000_000
    return peak_mb() - start


def in_fresh_process(name: str) -> float:
    code = f"from benchmarks import scoring; print(scoring.{name}())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(pairs: int, cells: tuple[tuple[int, int, int, int, float], ...] = CELLS) -> dict[str, Any]:
    threads = torch.get_num_threads()
    rows = []
    load = os.getloadavg()[0]
    for p, k, count, block, wanted in cells:
        row = cell(p, k, count, block, wanted, pairs)
        rows.append(row)
        print(
            f"P={p} K={k}: {row['ratio']:.1f}x ({row['quartiles'][0]:.1f} to {row['quartiles'][1]:.1f}), "
            f"{row['share_of_product_rate']:.0%} of the product rate",
            file=sys.stderr,
        )
    return {
        "benchmark": "scoring",
        "n1": N1,
        "threads": threads,
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "cells": rows,
        "stream_growth_mb": in_fresh_process("stream_memory"),
        "stream_limit_mb": STREAM_LIMIT_MB,
        "fit_growth_mb": in_fresh_process("fit_memory"),
        "fit_limit_mb": FIT_LIMIT_MB,
    }


def render(record: dict[str, Any]) -> str:
    lines = [
        f"n1 = {record['n1']:,}, three ridges, {record['threads']} threads on both sides, torch "
        f"{record['versions']['torch']}, numpy {record['versions']['numpy']}; medians of "
        f"{record['cells'][0]['pairs']} interleaved pairs. The machine has {record['cores']} cores; its load average "
        f"before the run, from other processes, was {record.get('load_before', 'not recorded')}.",
        "",
        "| P | K | times faster than dense | quartiles | asked for | share of the product rate | answers differ by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["cells"]:
        low, high = row["quartiles"]
        lines.append(
            f"| {row['P']} | {row['K']} | **{row['ratio']:.1f}** | {low:.1f} to {high:.1f} | ≥ {row['wanted']:.0f} | "
            f"{row['share_of_product_rate']:.0%} | {row['largest_difference']:.0e} |"
        )
    lines += [
        "",
        f"Peak memory grows by {record['stream_growth_mb']:.0f} MB (limit {record['stream_limit_mb']:.0f}) while "
        "100,000 queries of P = 84, K = 20 stream past, and by "
        f"{record['fit_growth_mb']:.0f} MB (limit {record['fit_limit_mb']:.0f}) while a reference is fitted to "
        "1,000,000 × 512 rows in chunks.",
    ]
    return "\n".join(lines)


def passed(record: dict[str, Any]) -> bool:
    return (
        all(row["ratio"] >= row["wanted"] for row in record["cells"])
        and record["stream_growth_mb"] < record["stream_limit_mb"]
        and record["fit_growth_mb"] < record["fit_limit_mb"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="write the record there")
    parser.add_argument("--render", type=Path, metavar="RECORD", help="print the table of an existing record")
    arguments = parser.parse_args()
    if arguments.render:
        print(render(json.loads(arguments.render.read_text())))
        return 0
    record = measure(max(arguments.pairs, 9))
    text = json.dumps(record, indent=1)
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(arguments.out)
    print(text if arguments.json else render(record))
    return 0 if passed(record) else 1


if __name__ == "__main__":
    sys.exit(main())
