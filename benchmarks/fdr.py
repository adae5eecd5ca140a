"""Realised false-discovery rate and power of BH, BY and Storey, under independence and positive dependence.

    python -m benchmarks.fdr --replicates 20000 --out results/fdr.json
    python -m benchmarks.fdr --render results/fdr.json

Every replicate is one family of m one-sided normal tests, the alternatives shifted and spread evenly over it.
The rejections are vectorised over replicates; in each setting some are first compared with `arht`'s `decide`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.special import ndtr

from arht.stats.multiplicity import METHODS, decide

TESTS = 200
SHIFT = 3.0
ALTERNATIVES = (0, 20, 100)
NOMINAL = (0.05, 0.10, 0.20)
CHUNK = 1000
CLEAR = 3.5  # standard errors


def independent(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal((size, TESTS))


def equicorrelated(rho: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        return np.sqrt(rho) * rng.standard_normal((size, 1)) + np.sqrt(1 - rho) * independent(rng, size)

    return draw


def blocks(rng: np.random.Generator, size: int, rho: float = 0.8, width: int = 20) -> np.ndarray:
    shared = np.repeat(rng.standard_normal((size, TESTS // width)), width, axis=1)
    return np.sqrt(rho) * shared + np.sqrt(1 - rho) * independent(rng, size)


def autoregressive(rng: np.random.Generator, size: int, rho: float = 0.9) -> np.ndarray:
    z = independent(rng, size)
    for j in range(1, TESTS):
        z[:, j] = rho * z[:, j - 1] + np.sqrt(1 - rho**2) * z[:, j]
    return z


def conformal(rng: np.random.Generator, scores: np.ndarray, calibration: int) -> np.ndarray:
    """(1 + #{calibration scores >= score}) / (n + 1); the tests of a replicate share one calibration set."""
    # the calibration scores' tail probabilities
    u = np.sort(rng.random((len(scores), calibration)), axis=1)
    row = np.arange(len(scores))[:, None]  # rows apart, so that one search serves all
    position = np.searchsorted((u + row).ravel(), (ndtr(-scores) + row).ravel(), side="right")
    return (1 + position.reshape(scores.shape) - calibration * row) / (calibration + 1)


# name -> (the null scores, size of the shared calibration set or None for exact p-values)
DEPENDENCE: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], int | None]] = {
    "independent": (independent, None),
    "equicorrelated 0.2": (equicorrelated(0.2), None),
    "equicorrelated 0.5": (equicorrelated(0.5), None),
    "equicorrelated 0.8": (equicorrelated(0.8), None),
    "blocks of 20, 0.8": (blocks, None),
    "AR(0.9)": (autoregressive, None),
    "conformal, n=1000": (independent, 1000),
    "conformal, n=200": (independent, 200),
}


def rejections(p: np.ndarray, method: str, fdr: float) -> np.ndarray:
    """Step-up rejections of each row, [size, m] bool."""
    m = p.shape[1]
    k = np.arange(1, m + 1)
    factor: Any = 1.0
    if method == "by":
        factor = (1 / k).sum()
    elif method == "storey":
        factor = (1 + (p > 0.5).sum(1, keepdims=True)) / (0.5 * m)
    ordered = np.sort(p, axis=1)
    below = ordered * m * factor / k <= fdr * (1 + 1e-12)
    count = np.where(below.any(1), m - below[:, ::-1].argmax(1), 0)
    cut = np.where(count > 0, ordered[np.arange(len(p)), count - 1], -1.0)
    return p <= cut[:, None]


def simulate(dependence: str, alternatives: int, replicates: int, seed: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    draw, calibration = DEPENDENCE[dependence]
    is_alternative = np.zeros(TESTS, dtype=bool)
    if alternatives:
        is_alternative[:: TESTS // alternatives] = True
    cells = [(method, fdr) for method in METHODS for fdr in NOMINAL]
    fdp: dict[Any, list[np.ndarray]] = {cell: [] for cell in cells}
    power: dict[Any, list[np.ndarray]] = {cell: [] for cell in cells}
    for start in range(0, replicates, CHUNK):
        scores = draw(rng, min(CHUNK, replicates - start)) + SHIFT * is_alternative
        p = ndtr(-scores) if calibration is None else conformal(rng, scores, calibration)
        for method, fdr in cells:
            rejected = rejections(p, method, fdr)
            if start == 0:
                for row, ours in zip(p[:20], rejected[:20], strict=True):
                    assert np.array_equal(ours, decide(row, fdr=fdr, method=method).rejected)
            total = rejected.sum(1)
            true = rejected[:, is_alternative].sum(1)
            fdp[method, fdr].append((total - true) / np.maximum(total, 1))
            power[method, fdr].append(true / max(alternatives, 1))
    rows = []
    for method, fdr in cells:
        row: dict[str, Any] = {
            "method": method,
            "dependence": dependence,
            "alternatives": alternatives,
            "nominal": fdr,
        }
        for name, parts in (("fdr", fdp[method, fdr]), ("power", power[method, fdr])):
            values = np.concatenate(parts)
            row[name] = round(float(values.mean()), 6)
            row[f"{name}_se"] = round(float(values.std(ddof=1) / np.sqrt(len(values))), 7)
        rows.append(row)
    return rows


def run(replicates: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    settings = [(d, a) for d in DEPENDENCE for a in ALTERNATIVES]
    rows = []
    for i, (dependence, alternatives) in enumerate(settings):
        rows += simulate(dependence, alternatives, replicates, [seed, i])
        print(
            f"\r{i + 1}/{len(settings)} {dependence}, {alternatives} alternatives, "
            f"{time.perf_counter() - began:.0f} s\033[K",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    return {
        "benchmark": "fdr",
        "settings": {"tests": TESTS, "shift": SHIFT, "replicates": replicates, "seed": seed},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "seconds": round(time.perf_counter() - began, 1),
        "rows": rows,
    }


def render(record: dict[str, Any]) -> str:
    """Two markdown tables in percent: realised FDR, bold where it is above its nominal level, and power."""
    rows = record["rows"]
    nominal = sorted({row["nominal"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cell = {(r["dependence"], r["alternatives"], r["method"], r["nominal"]): r for r in rows}
    settings = list(dict.fromkeys((r["dependence"], r["alternatives"]) for r in rows))
    names = {"bh": "BH", "by": "BY", "storey": "Storey"}
    head = ["dependence", "true nulls"] + [f"{names[m]} {level:.0%}" for m in methods for level in nominal]
    s = record["settings"]
    out = [
        f"Realised FDR in %, ± half the 95 % interval; m = {s['tests']} tests, {s['replicates']} replicates "
        f"a cell, alternatives shifted by {s['shift']:g} standard deviations. Bold: above the nominal level "
        f"by more than {CLEAR:g} standard errors, which chance does once in 4,000 cells.",
        "",
    ]

    def table(entry: Callable[[dict[str, Any]], str], keep: list[tuple[str, int]]) -> None:
        out.append("| " + " | ".join(head) + " |")
        out.append("|---" * 2 + "|--:" * (len(head) - 2) + "|")
        for dependence, alternatives in keep:
            entries = [entry(cell[dependence, alternatives, m, level]) for m in methods for level in nominal]
            nulls = f"{1 - alternatives / s['tests']:.0%}"
            out.append("| " + " | ".join([dependence, nulls, *entries]) + " |")

    def rate(row: dict[str, Any]) -> str:
        text = f"{100 * row['fdr']:.2f} ± {196 * row['fdr_se']:.2f}"
        return f"**{text}**" if row["fdr"] > row["nominal"] + CLEAR * row["fdr_se"] else text

    table(rate, settings)
    out += ["", "Power in %: the mean share of the alternatives that is rejected.", ""]
    table(lambda row: f"{100 * row['power']:.1f}", [x for x in settings if x[1]])
    return "\n".join(out) + "\n"


def write(record: dict[str, Any], path: Path) -> None:
    """One row a line; under another name first, so that a reader never sees half a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    part = path.with_name(path.name + ".part")
    part.write_text(head.removesuffix("\n}") + f',\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.fdr", description="Realised FDR and power")
    parser.add_argument("--replicates", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("results/fdr.json"))
    parser.add_argument("--render", type=Path, help="print the tables of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        write(run(args.replicates, args.seed), args.out)
    print(render(json.loads((args.render or args.out).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
