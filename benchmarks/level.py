"""Realised size at 5 % and 1 % of every test under every null law.

    python -m benchmarks.level --out results/level.json             all cells; a restart skips finished ones
    python -m benchmarks.level --quick --out /tmp/level.json        the smallest scale, few replicates: a minute
    python -m benchmarks.level --render results/level.json          the tables in markdown

Both samples have the same mean. Settings: n1 = n2 in SCALES and P = ratio × (n1 + n2) for ratio in RATIOS. Rows are
Gaussian; have independent entries of Student's t with 5 degrees of freedom before they are given their covariance
("t5 entries", the model in which the asymptotic laws are proven); or are multivariate t with 5 degrees of freedom
("t5 rows", elliptical: one χ² divides the whole row). All have unit variance before the covariance is applied:

    iid       identity
    AR(0.9)   0.9^|i-j|
    spiked    identity with max(1, P // 20) eigenvalues raised to 25
    factor    identity with one eigenvalue raised to P (half the variance in one direction); Gaussian rows only

Tests: Hotelling (exact F law); RHT at 0.1 and at 1 times the mean eigenvalue tr S / P of the pooled covariance; ARHT
with its default three priors and grid; ARHT with the prior (0, 1, 0) and the grid {0.01, 0.05, 0.1} × tr S / P.

Conformal: the second half of the replicates, in sets of 999, calibrates the first half. Permutation: exact by
construction, so a few cells show it, by calling `arht_test` and `rht_test` with `Permutation(199)`; there the ridge of
RHT is 1 × the mean eigenvalue of the scatter about the common mean, which no relabelling changes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import scipy.stats
import torch
from scipy.signal import lfilter
from scipy.special import fdtrc
from torch import Tensor

import arht
from arht.stats.nulls import ChiSquare, Conformal, CubeRoot, Normal, Permutation, SquareRoot
from benchmarks.batched import (
    PRIORS,
    Batch,
    choose,
    composite_pvalue,
    decompose,
    pieces,
    read,
    ridge_grid,
    seeded,
    standard_rows,
    versions,
    write,
)

LEVELS = (0.05, 0.01)
SCALES = {15: 2, 40: 1, 100: 1}  # n1 = n2 -> how many times --replicates
RATIOS = (0.1, 0.5, 1.0, 2.0)
ROWS = ("Gaussian", "t5 entries", "t5 rows")
LAWS = (Normal(), SquareRoot(), CubeRoot(), ChiSquare())
PAPER_MULTIPLES = (0.01, 0.05, 0.1)
CALIBRATION = 999
RELABELLINGS = 199
CHECKED = 2  # replicates of each cell that are compared with the library's tests
NAMES = {
    "hotelling": "Hotelling",
    "rht 0.1": "RHT, 0.1 × mean",
    "rht 1": "RHT, 1 × mean",
    "arht": "ARHT, three priors",
    "arht paper": "ARHT, (0, 1, 0), small grid",
}
TITLES = {
    "exact": "F law (Hotelling)",
    "normal": "normal",
    "square_root": "square root",
    "cube_root": "cube root",
    "chi_square": "chi-square",
    "conformal": "conformal",
    "permutation": "permutation",
}


def cosines(width: int, count: int) -> Tensor:
    """`count` orthonormal directions [P, count], the constant one first."""
    j, k = torch.arange(width, dtype=torch.float64), torch.arange(count, dtype=torch.float64)
    u = torch.cos(torch.pi * (j[:, None] + 0.5) * k / width)
    return u / u.square().sum(0).sqrt()


def raised(z: Tensor, count: int, eigenvalue: float) -> Tensor:
    u = cosines(z.shape[-1], count)
    return z + (eigenvalue**0.5 - 1) * ((z @ u) @ u.T)


def autoregressive(z: Tensor, rho: float = 0.9) -> Tensor:
    z[..., 0] /= (1 - rho**2) ** 0.5
    return torch.from_numpy(lfilter([(1 - rho**2) ** 0.5], [1, -rho], z.numpy(), axis=-1))


COVARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "iid": lambda z: z,
    "AR(0.9)": autoregressive,
    "spiked": lambda z: raised(z, max(1, z.shape[-1] // 20), 25.0),
    "factor": lambda z: raised(z, 1, float(z.shape[-1])),
}


@dataclass(frozen=True)
class Cell:
    kind: str  # "laws" or "permutation"
    n: int
    ratio: float
    rows: str
    covariance: str

    @property
    def width(self) -> int:
        return round(self.ratio * 2 * self.n)

    @property
    def key(self) -> str:
        return f"{self.kind}/n={self.n}/P={self.width}/{self.rows}/{self.covariance}"

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """Both samples of `size` replicates, [B, 2n, P]."""
        return COVARIANCES[self.covariance](standard_rows(self.rows, (size, 2 * self.n, self.width), generator))


def grid(scales: Iterable[int]) -> list[Cell]:
    """All cells, the cheap ones first."""
    cells = [Cell("permutation", 15, ratio, "t5 rows", c) for c in ("iid", "spiked") for ratio in (0.5, 2.0)]
    cells.append(Cell("permutation", 15, 2.0, "Gaussian", "factor"))
    for n in scales:
        for ratio in RATIOS:
            cells += [Cell("laws", n, ratio, rows, c) for c in ("iid", "AR(0.9)", "spiked") for rows in ROWS]
            cells.append(Cell("laws", n, ratio, "Gaussian", "factor"))
    return sorted(cells, key=lambda cell: (cell.n, cell.kind, cell.width))


def hotelling_pvalue(batch: Batch) -> Tensor:
    width, degrees = batch.spectrum.dimension, batch.spectrum.degrees
    t2 = (batch.projections / batch.spectrum.eigenvalues).sum(-1)
    f = t2 * (degrees - width + 1) / (degrees * width)
    return torch.from_numpy(fdtrc(width, degrees - width + 1, f.numpy()))


def pvalues(batch: Batch, exact: bool = False) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """P-values [B] of each test under each law, and each test's score (what a conformal law ranks).

    Unless `exact`, an ARHT p-value is only sure to lie on the right side of LEVELS.
    """
    spectrum, width = batch.spectrum, batch.spectrum.dimension
    mean = batch.mean_eigenvalue
    result: dict[str, dict[str, Tensor]] = {}
    scores: dict[str, Tensor] = {}
    if width <= spectrum.degrees:
        result["hotelling"] = {"exact": hotelling_pvalue(batch)}
    for name, multiple in (("rht 0.1", 0.1), ("rht 1", 1.0)):
        ridge = multiple * mean[:, None]
        theta1, theta2 = (theta[:, 0] for theta in spectrum.thetas(ridge))
        rht = batch.rht(ridge)[:, 0]
        result[name] = {law.name: law.single(rht, theta1, theta2, width) for law in LAWS}
        scores[name] = CubeRoot().standardise(rht, theta1, theta2, width)
    for name, ridges, priors in (
        ("arht", ridge_grid(spectrum), PRIORS),
        ("arht paper", mean[:, None] * mean.new_tensor(PAPER_MULTIPLES), PRIORS[1:2]),
    ):
        chosen = choose(spectrum, ridges, priors)
        rht = batch.rht(chosen.ridges)
        result[name] = {}
        for law in LAWS:
            standard = law.standardise(rht, chosen.theta1, chosen.theta2, width)
            if len(priors) == 1:
                p = law.single(rht, chosen.theta1, chosen.theta2, width)[:, 0]
            else:
                p = composite_pvalue(law, standard.amax(-1), chosen, width, None if exact else LEVELS)
            result[name][law.name] = p
            if law.name == "cube_root":
                scores[name] = standard.amax(-1)
    return result, scores


def library(x: Tensor, y: Tensor) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """The same p-values and scores of one replicate, from the public tests alone."""
    n, width = len(x), x.shape[1]
    result: dict[str, dict[str, float]] = {}
    scores: dict[str, float] = {}
    if width <= 2 * n - 2:
        result["hotelling"] = {"exact": float(arht.hotelling_test(x, y).pvalue)}
    rows = torch.cat([x - x.mean(0), y - y.mean(0)])
    mean = float(rows.square().sum()) / (2 * n - 2) / width
    small = [m * mean for m in PAPER_MULTIPLES]
    for law in LAWS:
        for name, test in (
            ("rht 0.1", arht.rht_test(x, y, ridge=0.1 * mean, null=law)),
            ("rht 1", arht.rht_test(x, y, ridge=mean, null=law)),
            ("arht", arht.arht_test(x, y, null=law)),
            ("arht paper", arht.arht_test(x, y, ridges=small, priors=(0, 1, 0), null=law)),
        ):
            result.setdefault(name, {})[law.name] = float(test.pvalue)
            if law.name == "cube_root":
                scores[name] = float(test.score)
    return result, scores


def check(both: Tensor, n: int, batch: Batch) -> None:
    """Every score and p-value of the first replicates equals the library's.

    To 1e-9; the p-value of three priors to 1e-7, because it depends on √(1 - ρ²) and two priors may choose ridges so
    close that ρ is 1 up to rounding.
    """
    count = min(CHECKED, len(both))
    spectrum = batch.spectrum.split(count)[0]
    first = Batch(spectrum, batch.projections[:count], batch.remainder[:count])
    ours, scores = pvalues(first, exact=True)
    for i in range(count):
        theirs, their_scores = library(both[i, :n], both[i, n:])
        for test, score in their_scores.items():
            assert abs(float(scores[test][i]) - score) <= 1e-9 * max(1.0, abs(score)), (test, scores[test][i], score)
        for test, laws in theirs.items():
            for law, p in laws.items():
                gap = abs(float(ours[test][law][i]) - p)
                assert gap <= (1e-7 if test == "arht" else 1e-9), (test, law, gap)


def simulate(cell: Cell, replicates: int, seed: int) -> list[dict[str, Any]]:
    """One row a test: of `replicates`, how many were rejected at each of LEVELS under each law."""
    generator = seeded(seed, cell.key)
    counts: dict[str, dict[str, list[int]]] = {}
    scores: dict[str, list[Tensor]] = {}
    size = max(8, 2_000_000 // (2 * cell.n * cell.width))
    for index, part in enumerate(pieces(replicates, size)):
        both = cell.sample(part, generator)
        basis, difference = decompose(both[:, : cell.n], both[:, cell.n :])
        batch = basis.project(difference)
        if index == 0:
            check(both, cell.n, batch)
        ps, parts = pvalues(batch)
        for test, laws in ps.items():
            for law, p in laws.items():
                count = counts.setdefault(test, {}).setdefault(law, [0] * len(LEVELS))
                for i, level in enumerate(LEVELS):
                    count[i] += int((p <= level).sum())
        for test, score in parts.items():
            scores.setdefault(test, []).append(score)
    head = {"n": cell.n, "P": cell.width, "ratio": cell.ratio, "rows": cell.rows, "covariance": cell.covariance}
    result = []
    for test, laws in counts.items():
        row: dict[str, Any] = {**head, "test": test, "replicates": replicates, **laws}
        if test in scores and replicates >= 2 * (CALIBRATION + 1):
            row["conformal"] = conformal(torch.cat(scores[test]))
        result.append(row)
    return result


def conformal(scores: Tensor) -> list[int]:
    """Rejections at LEVELS, queries, calibration sets: each set of 999 held-out scores serves an equal share."""
    queries, held = scores.chunk(2)
    sets = len(held) // CALIBRATION
    p = torch.cat(
        [Conformal(held[i * CALIBRATION : (i + 1) * CALIBRATION]).pvalue(q) for i, q in enumerate(queries.chunk(sets))]
    )
    return [*(int((p <= level).sum()) for level in LEVELS), len(p), sets]


def permute(cell: Cell, replicates: int, seed: int) -> list[dict[str, Any]]:
    generator = seeded(seed, cell.key)
    law = Permutation(RELABELLINGS, generator=generator)
    counts = {"rht 1": [0] * len(LEVELS), "arht": [0] * len(LEVELS)}
    for part in pieces(replicates, 500):
        for both in cell.sample(part, generator):
            x, y = both[: cell.n], both[cell.n :]
            mean = float((both - both.mean(0)).square().sum()) / (2 * cell.n - 1) / cell.width
            ps = {
                "rht 1": arht.rht_test(x, y, ridge=mean, null=law).pvalue,
                "arht": arht.arht_test(x, y, null=law).pvalue,
            }
            for test, p in ps.items():
                for i, level in enumerate(LEVELS):
                    counts[test][i] += int(float(p) <= level + 1e-12)
    head = {"n": cell.n, "P": cell.width, "ratio": cell.ratio, "rows": cell.rows, "covariance": cell.covariance}
    return [{**head, "test": test, "replicates": replicates, "permutation": c} for test, c in counts.items()]


def run(cells: list[Cell], replicates: int, seed: int, out: Path, permutations: int | None = None) -> dict[str, Any]:
    """Every cell not yet in `out`, each written as soon as it is done."""
    settings = {"replicates": replicates, "seed": seed, "calibration": CALIBRATION, "relabellings": RELABELLINGS}
    record: dict[str, Any] = {"benchmark": "level", "settings": settings, "versions": versions(), "seconds": 0.0}
    record["rows"] = []
    if out.exists():
        before = read(out)
        if before["settings"] != settings:
            raise SystemExit(f"{out} was made with {before['settings']}, not {settings}. Give another --out.")
        record["rows"], record["seconds"] = before["rows"], before["seconds"]
    done = {row["cell"] for row in record["rows"]}
    todo = [cell for cell in cells if cell.key not in done]
    for index, cell in enumerate(todo):
        began = time.perf_counter()
        if cell.kind == "permutation":
            rows = permute(cell, permutations or replicates, seed)
        else:
            rows = simulate(cell, replicates * SCALES[cell.n], seed)
        seconds = time.perf_counter() - began
        record["rows"] += [{"cell": cell.key, **row} for row in rows]
        record["seconds"] = round(record["seconds"] + seconds, 1)
        write(record, out)
        print(f"{index + 1}/{len(todo)} {cell.key}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return record


def interval(row: dict[str, Any], law: str, level: int) -> tuple[float, float, float]:
    """Rate and its 95 % interval: Clopper and Pearson's; for conformal, normal, the calibration sets' noise added."""
    count, total = row[law][level], row["replicates"]
    if law == "conformal":
        total, sets = row[law][2:]
        rate, nominal = count / total, LEVELS[level]
        half = 1.96 * (nominal * (1 - nominal) * (1 / total + 1 / (CALIBRATION * sets))) ** 0.5
        return rate, rate - half, rate + half
    low = scipy.stats.beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = scipy.stats.beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return count / total, float(low), float(high)


def entries(record: dict[str, Any], law: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if law in row]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def summary(record: dict[str, Any]) -> list[str]:
    """Per law and test: median and worst size, over all cells and at each scale."""
    out = [
        "Median size, and the smallest and largest one, in %, over the settings of a row. `Outside`: the share of the "
        "settings whose 95 % interval excludes the level; chance alone makes that about 5 %.",
        "",
        "| law | test | n1 = n2 | settings | at 5 %: median | range | outside | at 1 %: median | range | outside |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for law in TITLES:
        rows = entries(record, law)
        for test in [t for t in NAMES if any(row["test"] == t for row in rows)]:
            for n in sorted({row["n"] for row in rows}):
                chosen = [row for row in rows if row["test"] == test and row["n"] == n]
                line = [TITLES[law], NAMES[test], str(n), str(len(chosen))]
                for i, level in enumerate(LEVELS):
                    found = [interval(row, law, i) for row in chosen]
                    rates = [f[0] for f in found]
                    outside = sum(not low <= level <= high for _, low, high in found) / len(found)
                    line += [percent(median(rates)), f"{percent(min(rates))} to {percent(max(rates))}"]
                    line.append(f"{outside:.0%}")
                out.append("| " + " | ".join(line) + " |")
    return out


def table(record: dict[str, Any], law: str) -> list[str]:
    rows = entries(record, law)
    ratios = sorted({row["ratio"] for row in rows})
    cell = {(r["test"], r["covariance"], r["rows"], r["n"], r["ratio"]): r for r in rows}
    lines = sorted({key[:4] for key in cell}, key=lambda k: (list(NAMES).index(k[0]), list(COVARIANCES).index(k[1]), k))
    out = [f"## {TITLES[law]}", ""]
    out.append("| test | covariance | rows | n1 = n2 | " + " | ".join(f"P/n = {r:g}" for r in ratios) + " |")
    out.append("|---|---|---|--:|" + "--:|" * len(ratios))
    for line in lines:
        texts = []
        for ratio in ratios:
            row = cell.get((*line, ratio))
            texts.append("" if row is None else " · ".join(rate(row, law, i) for i in range(len(LEVELS))))
        out.append("| " + " | ".join([NAMES[line[0]], line[1], line[2], str(line[3]), *texts]) + " |")
    return [*out, ""]


def rate(row: dict[str, Any], law: str, level: int) -> str:
    value, low, high = interval(row, law, level)
    text = f"{100 * value:.2f} ± {50 * (high - low):.2f}"
    return text if low <= LEVELS[level] <= high else f"**{text}**"


def render(record: dict[str, Any]) -> str:
    """A computed summary, then one table a law: size at 5 % · size at 1 %, ± half the 95 % interval."""
    settings = record["settings"]
    out = [
        f"Realised size in %, from at least {settings['replicates']} replicates a setting; n = n1 + n2. Covariances: "
        "iid; AR(0.9); spiked, 5 % of the eigenvalues raised to 25; factor, half the variance in one direction. Rows: "
        "Gaussian; t5 entries, independent; t5 rows, elliptical.",
        "",
        *summary(record),
        "",
        "In the tables: size at 5 % · size at 1 %, ± half the 95 % interval; bold where it excludes the level.",
        "",
    ]
    for law in TITLES:
        if entries(record, law):
            out += table(record, law)
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.level", description="Realised size of every test and law")
    parser.add_argument("--replicates", type=int, default=10_000, help="at least; the smaller scales take more")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("results/level.json"))
    parser.add_argument("--cells", default="", help="only cells whose key contains this text")
    parser.add_argument("--quick", action="store_true", help="500 replicates, the smallest scale")
    parser.add_argument("--render", type=Path, help="print the tables of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        torch.set_num_threads(1)
        cells = [cell for cell in grid([15] if args.quick else SCALES) if args.cells in cell.key]
        run(cells, 500 if args.quick else args.replicates, args.seed, args.out, 100 if args.quick else None)
    print(render(read(args.render or args.out)))


if __name__ == "__main__":
    main()
