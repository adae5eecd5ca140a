"""How far above RHT at its best fixed ridges any test could be, one that knows the covariance included.

    python -m benchmarks.bound --out results/bound.json      reads results/power.json
    python -m benchmarks.bound --render results/bound.json

The settings and the scales c are those of benchmarks.power: a mean shift is drawn from N(0, c² I), N(0, c² Σ) or
N(0, c² Σ²), and a test is not told which. Let power_k be a test's power against the k-th, at size 5 %, and best_k that
of RHT at the fixed ridge that is best there. For any test and any weights w that sum to one,

    min_k (power_k - best_k)  <=  Σ_k w_k (power_k - best_k)  <=  NP(w) - Σ_k w_k best_k,

where NP(w) is the average power of the likelihood-ratio test of the mixture of the three, weighted by w, against no
shift, with Σ known: the mean difference is then all that the data say, and the lemma of Neyman and Pearson holds. The
smallest right-hand side over a grid of weights is what is shown. With Σ estimated on 98 degrees of freedom less can be
reached, by how much the bound does not say.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.batched import read, seeded, versions, write
from benchmarks.power import COVARIANCES, SHIFTS, SIZE, WIDTHS, N, eigenvalues

GRID = 10  # weights are multiples of 1 / GRID


def log_ratios(squares: Tensor, ratios: list[Tensor]) -> Tensor:
    """ln of the density under each kind of shift over that without, [B, 3].

    ``squares`` [B, P] of the mean difference along Σ's eigenvectors, in units of its variance without a shift; that
    variance times ``ratios`` is the one with a shift.
    """
    return torch.stack([0.5 * (squares @ (1 - 1 / r)) - 0.5 * r.log().sum() for r in ratios], 1)


def bound(tau: Tensor, scales: list[float], best: list[float], replicates: int, key: str, seed: int) -> dict[str, Any]:
    """The smallest bound over the weights, where it is, and the powers there."""
    generator = seeded(seed, key)
    ratios = [1 + N / 2 * c**2 * tau.pow(k - 1) for k, c in enumerate(scales)]

    def squares() -> Tensor:
        return torch.randn((replicates, len(tau)), generator=generator).to(torch.float64).square()

    null = log_ratios(squares(), ratios)
    others = [log_ratios(squares() * r, ratios) for r in ratios]
    rows = []
    for whole in product(range(GRID + 1), repeat=len(SHIFTS)):
        if sum(whole) == GRID:
            weights = torch.tensor(whole, dtype=torch.float64) / GRID
            critical = torch.logsumexp(null + weights.log(), 1).quantile(1 - SIZE)
            powers = [float((torch.logsumexp(o + weights.log(), 1) > critical).double().mean()) for o in others]
            over = sum(float(w) * (p - b) for w, p, b in zip(weights, powers, best, strict=True))
            rows.append({"over": over, "weights": weights.tolist(), "powers": [round(p, 4) for p in powers]})
    row = min(rows, key=lambda found: found["over"])
    return {**row, "over": round(row["over"], 4)}


def run(replicates: int, seed: int) -> dict[str, Any]:
    power = read(Path("results/power.json"))
    rows = []
    for width, covariance in product(WIDTHS, COVARIANCES):
        cells = [r for r in power["rows"] if (r["P"], r["covariance"]) == (width, covariance) and r["shift"] != "all"]
        cells.sort(key=lambda cell: SHIFTS.index(cell["shift"]))
        scales, best = [cell["c"] for cell in cells], [cell["best"] for cell in cells]
        head = {"P": width, "covariance": covariance}
        found = bound(eigenvalues(covariance, width), scales, best, replicates, f"P={width}/{covariance}", seed)
        reached = {
            "default": min(cell["gap"] for cell in cells),
            "matched": min(cell["matched_gap"] for cell in cells),
        }
        rows.append({**head, **found, **reached})
        print(rows[-1], file=sys.stderr, flush=True)
    settings = {"replicates": replicates, "seed": seed, "grid": GRID}
    return {"benchmark": "bound", "settings": settings, "versions": versions(), "rows": rows}


def render(record: dict[str, Any]) -> str:
    """The table, in Markdown."""
    rows = record["rows"]
    over = [100 * row["over"] for row in rows]
    out = [
        "Power less that of RHT at the best fixed ridge, in points, in the shift where that is least. *Any test*: an "
        f"upper bound, for a test that knows Σ but not the kind of shift ({record['settings']['replicates']} "
        f"replicates a kind). It is between {min(over):+.1f} and {max(over):+.1f}.",
        "",
        "| P | Σ | any test, at most | ARHT, three priors | ARHT, the matching prior |",
        "|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        cells = [f"{100 * row[key]:+.1f}" for key in ("over", "default", "matched")]
        out.append(f"| {row['P']} | {row['covariance']} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.bound", description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("results/bound.json"))
    parser.add_argument("--render", type=Path, help="print the table of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        torch.set_num_threads(1)
        write(run(args.replicates, args.seed), args.out)
    print(render(read(args.render or args.out)))


if __name__ == "__main__":
    main()
