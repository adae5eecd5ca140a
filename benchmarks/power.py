"""Power of ARHT beside RHT at every fixed ridge, Hotelling's T² and the Euclidean distance.

    python -m benchmarks.power --out results/power.json       all cells; a restart skips finished ones
    python -m benchmarks.power --quick --out /tmp/power.json  few replicates
    python -m benchmarks.power --render results/power.json    the table in markdown

n1 = n2 = 50 Gaussian rows, P in WIDTHS. Every test here ignores rotations, so Σ is its eigenvalues τ:

    identity   1
    AR(0.6)    those of 0.6^|i-j|
    spiked     1, and max(1, P // 20) of them 25
    decaying   proportional to exp(-5 j / (P - 1)), j = 0 .. P - 1, mean 1

Each replicate draws its own mean shift from N(0, c² Σᵏ), k = 0, 1, 2. Size first: the critical value of each test is
the empirical 95 % quantile of its statistic over null replicates of the same P and Σ, which are not used again. RHT is
standardised (cube root) at RIDGES fixed ridges, log-spaced from mean(τ)/100 to 20 max(τ), the default range with the
population's eigenvalues; ARHT is the largest of the three priors' standardised statistics on its own default grid.

The rule for c: in a pilot of other replicates, the power of RHT at its best fixed ridge is TARGET (c by bisection).
ARHT takes no part in it.

Criteria: ARHT - RHT at the best fixed ridge >= -0.02, and ARHT - Hotelling > 0 where P / (n1 + n2) > 0.5 and Hotelling
exists. The best ridge is the one with the highest power on these very replicates, so it is flattered by its selection;
`split` shows it without: chosen on one half, evaluated on the other, and the reverse. Standard errors of the paired
differences include the noise of the critical values. Exit code 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import arht
from arht.stats.nulls import CubeRoot
from benchmarks.batched import (
    PRIORS,
    Basis,
    Batch,
    Chosen,
    choose,
    decompose,
    pieces,
    read,
    ridge_grid,
    seeded,
    versions,
    write,
)

N = 50
WIDTHS = (20, 60, 90, 200)
COVARIANCES = ("identity", "AR(0.6)", "spiked", "decaying")
SHIFTS = ("I", "Σ", "Σ²")  # covariance of the mean shift: power k of Σ
RIDGES = 30
SIZE = 0.05
TARGET = 0.6
PILOT = 4_000
MARGIN = -0.02
LAW = CubeRoot()


def eigenvalues(covariance: str, width: int) -> Tensor:
    ones = torch.ones(width, dtype=torch.float64)
    index = torch.arange(width, dtype=torch.float64)
    if covariance == "AR(0.6)":
        return torch.linalg.eigvalsh(0.6 ** (index[:, None] - index).abs()).flip(0)
    if covariance == "spiked":
        ones[: max(1, width // 20)] = 25
    elif covariance == "decaying":
        ones = torch.exp(-5 * index / (width - 1))
        ones /= ones.mean()
    return ones


def fixed_ridges(tau: Tensor) -> Tensor:
    low, high = float(tau.mean() / 100), float(20 * tau.max())
    return torch.logspace(math.log10(low), math.log10(high), RIDGES, dtype=torch.float64)


def draw(tau: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Both samples of `size` replicates under the null hypothesis, [B, 2 N, P]."""
    shape = (size, 2 * N, len(tau))
    return torch.randn(shape, generator=generator).to(torch.float64) * tau.sqrt()


def shifts(tau: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A mean shift of each kind at c = 1, [3, B, P]."""
    z = torch.randn((len(SHIFTS), size, len(tau)), generator=generator).to(torch.float64)
    return z * torch.stack([tau.pow(k / 2) for k in range(len(SHIFTS))])[:, None]


def statistics(batch: Batch, chosen: Chosen, ridges: Tensor, thetas: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Every test's statistic (larger = further from the null): [B], of RHT [B, R], of the single priors [B, 3]."""
    width = batch.spectrum.dimension
    single = LAW.standardise(batch.rht(chosen.ridges), chosen.theta1, chosen.theta2, width)
    fixed = LAW.standardise(batch.rht(ridges.expand(len(batch), -1)), *thetas, width)
    result = {"arht": single.amax(-1), "priors": single, "rht": fixed}
    lower = 0.5 * torch.special.erfc(-single / 2**0.5)  # 1 - p of each prior
    result["cauchy"] = torch.tan((lower.clamp(1e-12, 1 - 1e-12) - 0.5) * math.pi).mean(-1)
    if width <= batch.spectrum.degrees:
        result["hotelling"] = (batch.projections / batch.spectrum.eigenvalues).sum(-1)
    result["euclid"] = batch.projections.sum(-1) + batch.remainder
    return result


def thetas_of(basis: Basis, ridges: Tensor) -> tuple[Tensor, Tensor]:
    parts = [part.thetas(ridges.expand(len(part.eigenvalues), -1)) for part in basis.spectrum.split(64)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def check(both: Tensor, ours: dict[str, Tensor], ridges: Tensor) -> None:
    """The statistics of the first replicates equal the library's."""
    for i in range(2):
        x, y = both[i, :N], both[i, N:]
        composite = arht.arht_test(x, y)
        pairs = [(ours["arht"][i], composite.score), *zip(ours["priors"][i], composite.priors.statistic, strict=True)]
        pairs += [(ours["rht"][i, r], arht.rht_test(x, y, ridge=float(ridges[r])).score) for r in (0, RIDGES // 2)]
        if "hotelling" in ours:
            pairs.append((ours["hotelling"][i], arht.hotelling_test(x, y).statistic))
        for a, b in pairs:
            assert abs(float(a) - float(b)) <= 1e-9 * max(1.0, abs(float(b))), (i, float(a), float(b))


def simulate(
    tau: Tensor, replicates: int, generator: torch.Generator, scales: list[float] | None = None
) -> list[dict[str, Tensor]]:
    """Statistics of `replicates` null replicates; with `scales`, under each kind of shift instead, same noise."""
    ridges = fixed_ridges(tau)
    parts: list[list[dict[str, Tensor]]] = []
    for index, size in enumerate(pieces(replicates, 200)):
        both = draw(tau, size, generator)
        basis, difference = decompose(both[:, :N], both[:, N:])
        chosen = choose(basis.spectrum, ridge_grid(basis.spectrum), PRIORS)
        thetas = thetas_of(basis, ridges)
        moved = [difference]
        if scales is not None:
            moved = [difference + c * delta for c, delta in zip(scales, shifts(tau, size, generator), strict=True)]
        found = [statistics(basis.project(d), chosen, ridges, thetas) for d in moved]
        if index == 0 and scales is None:
            check(both, found[0], ridges)
        parts.append(found)
    return [{key: torch.cat([part[k][key] for part in parts]) for key in parts[0][k]} for k in range(len(parts[0]))]


def pilot(tau: Tensor, replicates: int, generator: torch.Generator) -> list[float]:
    """c of each kind of shift: RHT at its best fixed ridge has power TARGET."""
    ridges = fixed_ridges(tau)
    rows: list[list[Tensor]] = []
    for size in pieces(replicates, 200):
        both = draw(tau, size, generator)
        basis, difference = decompose(both[:, :N], both[:, N:])
        null = basis.project(difference).rht(ridges.expand(size, -1))
        row = [*thetas_of(basis, ridges), null]
        for delta in shifts(tau, size, generator):  # RHT of d + c δ is a parabola in c
            plus, alone = (basis.project(d).rht(ridges.expand(size, -1)) for d in (difference + delta, delta))
            row += [plus - null - alone, alone]
        rows.append(row)
    theta1, theta2, null, *curves = (torch.cat(column) for column in zip(*rows, strict=True))
    half = replicates // 2

    def standard(rht: Tensor) -> Tensor:
        return LAW.standardise(rht, theta1, theta2, len(tau))

    critical = standard(null)[:half].quantile(1 - SIZE, dim=0)
    result = []
    for cross, square in zip(curves[::2], curves[1::2], strict=True):
        low, high = 0.0, 1.0

        def power(c: float, cross: Tensor = cross, square: Tensor = square) -> float:
            return float((standard(null + c * cross + c * c * square)[half:] > critical).double().mean(0).max())

        while power(high) < TARGET:
            high *= 2
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if power(middle) < TARGET else (low, middle)
        result.append(float(f"{high:.4g}"))
    return result


def exceedances(null: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rejections of `other` at the null's critical values, and each null replicate's influence on their share.

    Influence: (exceeds - SIZE) × d power / d size, the slope taken between sizes SIZE ± 0.01.
    """
    rejected, influence = {}, {}
    for key, value in other.items():
        base = null[key]
        critical, low, high = (base.quantile(q, dim=0) for q in (1 - SIZE, 1 - SIZE - 0.01, 1 - SIZE + 0.01))
        rejected[key] = (value > critical).double()
        slope = ((value > low).double().mean(0) - (value > high).double().mean(0)) / 0.02
        influence[key] = ((base > critical).double() - SIZE) * slope
    return rejected, influence


def difference(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> tuple[float, float]:
    """Difference of two powers and its standard error: paired replicates, paired critical values."""
    gap = a - b
    variance = gap.var() / len(gap) + (fa - fb).var() / len(fa)
    return float(gap.mean()), float(variance.sqrt())


def compare(null: dict[str, Tensor], other: dict[str, Tensor], head: dict[str, Any]) -> dict[str, Any]:
    """One cell's powers, differences and criteria."""
    rejected, influence = exceedances(null, other)
    rht = rejected["rht"]
    best = int(rht.mean(0).argmax())
    first, second = rht.chunk(2)
    split = (second[:, first.mean(0).argmax()].mean() + first[:, second.mean(0).argmax()].mean()) / 2
    gap, error = difference(rejected["arht"], rht[:, best], influence["arht"], influence["rht"][:, best])
    matched = SHIFTS.index(head["shift"])
    single, error_matched = difference(
        rejected["priors"][:, matched], rht[:, best], influence["priors"][:, matched], influence["rht"][:, best]
    )
    row: dict[str, Any] = {
        **head,
        "arht": rounded(rejected["arht"].mean()),
        "priors": [rounded(p) for p in rejected["priors"].mean(0)],
        "best": rounded(rht[:, best].mean()),
        "best_index": best,
        "split": rounded(split),
        "gap": rounded(gap),
        "gap_se": rounded(error),
        "matched_gap": rounded(single),
        "matched_gap_se": rounded(error_matched),
        "cauchy": rounded(rejected["cauchy"].mean()),
        "euclid": rounded(rejected["euclid"].mean()),
        "rht": [rounded(p, 3) for p in rht.mean(0)],
        "pass": gap >= MARGIN,
    }
    if "hotelling" in rejected:
        over, error = difference(rejected["arht"], rejected["hotelling"], influence["arht"], influence["hotelling"])
        row |= {
            "hotelling": rounded(rejected["hotelling"].mean()),
            "over_hotelling": rounded(over),
            "over_hotelling_se": rounded(error),
        }
        if must_beat_hotelling(row):
            row["pass"] = row["pass"] and over > 0
    return row


def jointly(null: dict[str, Tensor], others: list[dict[str, Tensor]], head: dict[str, Any]) -> dict[str, Any]:
    """ARHT beside the one ridge that is best for the three kinds of shift taken together: powers averaged over them."""
    pairs = [exceedances(null, other) for other in others]
    rejected = {key: torch.stack([p[0][key] for p in pairs]).mean(0) for key in ("arht", "cauchy", "rht")}
    influence = {key: torch.stack([p[1][key] for p in pairs]).mean(0) for key in ("arht", "rht")}
    best = int(rejected["rht"].mean(0).argmax())
    gap, error = difference(rejected["arht"], rejected["rht"][:, best], influence["arht"], influence["rht"][:, best])
    return {
        **head,
        "shift": "all",
        "arht": rounded(rejected["arht"].mean()),
        "cauchy": rounded(rejected["cauchy"].mean()),
        "best": rounded(rejected["rht"][:, best].mean()),
        "best_index": best,
        "gap": rounded(gap),
        "gap_se": rounded(error),
    }


def rounded(value: Tensor | float, digits: int = 4) -> float:
    return round(float(value), digits)


def run(
    widths: tuple[int, ...], null: int, replicates: int, seed: int, out: Path, pilots: int = PILOT
) -> dict[str, Any]:
    """Every setting not yet in `out`, each written as soon as it is done."""
    settings = {"n1": N, "n2": N, "null": null, "replicates": replicates, "pilot": pilots, "seed": seed}
    settings |= {"size": SIZE, "target": TARGET, "margin": MARGIN, "ridges": RIDGES}
    record: dict[str, Any] = {"benchmark": "power", "settings": settings, "versions": versions(), "seconds": 0.0}
    record["rows"] = []
    if out.exists():
        before = read(out)
        if before["settings"] != settings:
            raise SystemExit(f"{out} was made with {before['settings']}, not {settings}. Give another --out.")
        record["rows"], record["seconds"] = before["rows"], before["seconds"]
    done = {(row["P"], row["covariance"]) for row in record["rows"]}
    for width in widths:
        for covariance in COVARIANCES:
            if (width, covariance) in done:
                continue
            began = time.perf_counter()
            tau = eigenvalues(covariance, width)
            key = f"P={width}/{covariance}"
            scales = pilot(tau, pilots, seeded(seed, key + "/pilot"))
            under = simulate(tau, null, seeded(seed, key + "/null"))[0]
            others = simulate(tau, replicates, seeded(seed, key + "/shift"), scales)
            head = {"P": width, "covariance": covariance}
            rows = [
                compare(under, other, {**head, "shift": shift, "c": c})
                for shift, c, other in zip(SHIFTS, scales, others, strict=True)
            ]
            rows.append(jointly(under, others, head))
            for row in rows:
                row["best_ridge"] = rounded(fixed_ridges(tau)[row.pop("best_index")] / tau.mean(), 5)
            record["rows"] += rows
            seconds = time.perf_counter() - began
            record["seconds"] = round(record["seconds"] + seconds, 1)
            write(record, out)
            gaps = ", ".join(f"{r['gap']:+.3f}" for r in rows)
            print(f"{key}: ARHT - best RHT {gaps}; {seconds:.0f} s", file=sys.stderr, flush=True)
    order = {c: i for i, c in enumerate(COVARIANCES)}
    record["rows"].sort(key=lambda row: (row["P"], order[row["covariance"]]))
    write(record, out)
    return record


def failed(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if not row.get("pass", True)]


def render(record: dict[str, Any]) -> str:
    """Two markdown tables, each shift by itself and the three together, below what the criteria make of them."""
    s = record["settings"]
    rows = [row for row in record["rows"] if row["shift"] != "all"]
    joint = [row for row in record["rows"] if row["shift"] == "all"]
    optimism = [row["best"] - row["split"] for row in rows]
    cauchy = [row["cauchy"] - row["arht"] for row in rows]
    beaten = [row for row in rows if must_beat_hotelling(row)]
    out = [
        f"Power in % at a size of {s['size']:.0%}, n1 = n2 = {s['n1']}; {s['replicates']} replicates a cell, critical "
        f"values from {s['null']} null replicates. The mean shift's covariance is c² times I, Σ or Σ²; c: RHT at its "
        f"best fixed ridge has power {s['target']:g} in a pilot. Differences in points, ± one standard error.",
        "",
        "Criteria:",
        "",
        f"- ARHT - RHT at the best of {s['ridges']} fixed ridges, {verdict(rows, 'gap', s['margin'])}",
        f"- ARHT - Hotelling where P/n > 0.5, {verdict(beaten, 'over_hotelling', 0.0)}",
        "",
        "For comparison, not criteria:",
        "",
        f"- ARHT with the one prior that matches the shift - best RHT, {verdict(rows, 'matched_gap', s['margin'])}",
        f"- ARHT - RHT at the one ridge best for the three shifts together, {verdict(joint, 'gap', s['margin'])}",
        "- Three priors combined by Cauchy's rule instead of the maximum: "
        f"{100 * sum(cauchy) / max(len(cauchy), 1):+.1f} points on average, "
        f"{100 * min(cauchy):+.1f} to {100 * max(cauchy):+.1f}.",
        "- The best ridge is chosen on the replicates that judge it. Chosen on the other half, its power is lower by "
        f"{100 * sum(optimism) / max(len(optimism), 1):.2f} points on average, {100 * max(optimism):.2f} at most.",
        "",
        "| P | Σ | shift | ARHT | prior I | prior Σ | prior Σ² | best RHT | its ridge / mean | Hotelling | Euclidean "
        "| ARHT - best RHT | ARHT - Hotelling | |",
        "|--:|---|---|" + "--:|" * 10 + "---|",
    ]
    for row in rows:
        line = [str(row["P"]), row["covariance"], row["shift"], points(row["arht"]), *map(points, row["priors"])]
        line += [points(row["best"]), f"{row['best_ridge']:.3g}", points(row.get("hotelling")), points(row["euclid"])]
        line.append(gap_text(row["gap"], row["gap_se"]))
        line.append(gap_text(row.get("over_hotelling"), row.get("over_hotelling_se")))
        out.append("| " + " | ".join([*line, "PASS" if row["pass"] else "**FAIL**"]) + " |")
    out += [
        "",
        "The three shifts together: average power, against the one fixed ridge with the highest average.",
        "",
        "| P | Σ | ARHT | ARHT, Cauchy | best RHT | its ridge / mean | ARHT - best RHT |",
        "|--:|---|" + "--:|" * 5,
    ]
    for row in joint:
        line = [str(row["P"]), row["covariance"], points(row["arht"]), points(row["cauchy"]), points(row["best"])]
        line += [f"{row['best_ridge']:.3g}", gap_text(row["gap"], row["gap_se"])]
        out.append("| " + " | ".join(line) + " |")
    return "\n".join(out) + "\n"


def verdict(rows: list[dict[str, Any]], key: str, bound: float) -> str:
    """How many cells hold the bound, how many miss it by more than two standard errors, and the range."""
    if not rows:
        return "no cells."
    values = [row[key] for row in rows]
    held = sum(value >= bound if bound else value > 0 for value in values)
    clear = sum(row[key] + 2 * row[f"{key}_se"] < bound for row in rows)
    return (
        f"{'at least ' if bound else 'above '}{100 * bound:.0f}: holds in {held} of {len(rows)} cells, fails by more "
        f"than two standard errors in {clear}; from {100 * min(values):+.1f} to {100 * max(values):+.1f}."
    )


def points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def gap_text(gap: float | None, error: float | None) -> str:
    return "" if gap is None or error is None else f"{100 * gap:+.1f} ± {100 * error:.1f}"


def must_beat_hotelling(row: dict[str, Any]) -> bool:
    return "hotelling" in row and row["P"] / (2 * N) > 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.power", description="Power of ARHT beside its rivals")
    parser.add_argument("--null", type=int, default=20_000)
    parser.add_argument("--replicates", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("results/power.json"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the replicates, P = 20 and 60")
    parser.add_argument("--render", type=Path, help="print the table of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        torch.set_num_threads(1)
        scale = 10 if args.quick else 1
        run(WIDTHS[:2] if args.quick else WIDTHS, args.null // scale, args.replicates // scale, args.seed, args.out)
    record = read(args.render or args.out)
    print(render(record))
    sys.exit(1 if failed(record) else 0)


if __name__ == "__main__":
    main()
