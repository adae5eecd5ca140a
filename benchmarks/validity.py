"""Are conformal p-values valid on real data? Realised level and false-discovery rate over random splits.

    python -m benchmarks.validity --encoder encoders/mnist-0.safetensors --out results/validity.json
    python -m benchmarks.validity --render results/validity.json

Each split puts in-distribution inputs at random into a reference, a calibration set and queries, and adds OOD inputs
to the queries, a tenth of them. Given the pool, the reference and no ties, the number of in-distribution queries with
p <= level is exactly beta-binomial, and independent from split to split; so their sum over splits has an exact law,
by convolution. Exit code 1 if a realised level is outside that law's band, or an FDR above its nominal value by more
than three standard errors.

MNIST embeddings are draws of an encoder file; without one, a mean-field LeNet is trained for a few epochs. Its own test
images are the pool, Fashion-MNIST is OOD. The tables ship with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arht
from arht.detectors import ARHTDetector
from arht.errors import ResolutionWarning

LEVELS = (0.01, 0.05, 0.10)
FDRS = (0.05, 0.10, 0.20)
OUTSIDE = 0.001
CLEAR = 3.0
DRAWS = 3
IMAGES = 10_000
LAYERS = ("embedding", "pool2")

MODES: dict[str, dict[str, Any]] = {
    "global": {},
    "class": {"reference": "class"},
    "relative": {"reference": "relative"},
    "two-sided": {"tail": "two-sided"},
    "two layers, Fisher": {"reference": "class", "combine": "fisher"},
}


@dataclass(frozen=True)
class Pool:
    """In-distribution inputs with labels, OOD inputs, and the sizes of a split."""

    layers: dict[str, np.ndarray]
    labels: np.ndarray
    ood: dict[str, np.ndarray]
    fit: int
    calibration: int
    queries: int
    standardise: bool
    modes: tuple[str, ...]

    @property
    def outliers(self) -> int:
        """A tenth of all queries."""
        return self.queries // 9


def tables() -> dict[str, Pool]:
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine

    def pool(loaded: Any, inside: list[int], sizes: tuple[int, int, int], modes: tuple[str, ...]) -> Pool:
        rows, labels = loaded
        known = np.isin(labels, inside)
        given = {"table": rows[known]}, labels[known], {"table": rows[~known]}
        return Pool(*given, *sizes, standardise=True, modes=modes)

    every = ("global", "class", "relative", "two-sided")
    return {
        "breast cancer: benign, malignant OOD": pool(
            load_breast_cancer(return_X_y=True), [1], (150, 99, 90), ("global", "two-sided")
        ),
        "wine: two cultivars, the third OOD": pool(load_wine(return_X_y=True), [0, 1], (50, 49, 27), every),
        "digits 0-7, 8 and 9 OOD": pool(load_digits(return_X_y=True), list(range(8)), (600, 399, 360), every),
    }


def mnist(path: Path | None, seed: int) -> tuple[Pool, dict[str, Any]]:
    """Draws of two layers for MNIST's test images and as many of Fashion-MNIST."""
    generator = torch.Generator().manual_seed(seed)
    if path is None:
        images = arht_data("mnist", "train")
        torch.manual_seed(seed)
        from arht.data import Transform
        from arht.nets import LeNet
        from arht.posterior import MeanField
        from arht.training import fit

        transform = Transform.of(images, size=32)
        encoder = MeanField(LeNet(in_channels=1, num_classes=10, embedding_dim=84))
        fit(encoder, images, epochs=3, transform=transform, generator=generator, progress=False)
        source = "a mean-field LeNet, 3 epochs"
    else:
        encoder = arht.load(path)
        transform, source = encoder.transform, path.name
    bank = encoder.bank(DRAWS, generator=generator)
    drawn = {}
    for name in ("mnist", "fashion-mnist"):
        images = arht_data(name, "test", limit=IMAGES if name == "mnist" else 2000)
        parts = encoder.draw(transform(images.pixels), at=list(LAYERS), bank=bank)
        drawn[name] = {layer: tensor.numpy() for layer, tensor in zip(LAYERS, parts.values(), strict=True)}
        if name == "mnist":
            labels = images.labels.numpy()
    pool = Pool(drawn["mnist"], labels, drawn["fashion-mnist"], 3000, 999, 900, False, tuple(MODES))
    return pool, {"encoder": source, "draws": DRAWS, "layers": list(LAYERS)}


def arht_data(name: str, split: str, **options: Any) -> Any:
    from arht.data import load

    return load(name, split, progress=False, **options)


def one_split(pool: Pool, mode: str, rng: np.random.Generator) -> tuple[list[int], list[tuple[float, float]]]:
    """#{p <= level} among the in-distribution queries; and (false share of the rejected, share of the OOD found)."""
    order = rng.permutation(len(pool.labels))
    fit, calibration, queries, _ = np.split(order, np.cumsum([pool.fit, pool.calibration, pool.queries]))
    outliers = rng.choice(len(next(iter(pool.ood.values()))), pool.outliers, replace=False)
    names = list(pool.layers) if "layers" in mode else list(pool.layers)[:1]
    inputs: dict[str, tuple[np.ndarray, ...]] = {}
    for name in names:
        rows = pool.layers[name]
        parts = (rows[fit], rows[calibration], np.concatenate([rows[queries], pool.ood[name][outliers]]))
        if pool.standardise:
            centre, scale = parts[0].mean(0), parts[0].std(0)
            parts = tuple((part - centre) / np.where(scale > 0, scale, 1.0) for part in parts)
        inputs[name] = parts
    detector = ARHTDetector(ridge_unit="mean_eigenvalue", keep=0, **MODES[mode])
    fitted, held, asked = (
        {name: inputs[name][i] for name in names} if len(names) > 1 else inputs[names[0]][i] for i in range(3)
    )
    result = detector.fit(fitted, pool.labels[fit]).calibrate(held).test(asked)
    inside = result.pvalue[: pool.queries]
    counts = [int((inside <= level * (1 + 1e-12)).sum()) for level in LEVELS]
    shares = []
    for fdr in FDRS:
        rejected = result.decide(fdr=fdr).rejected
        false, found = int(rejected[: pool.queries].sum()), int(rejected[pool.queries :].sum())
        shares.append((false / max(false + found, 1), found / pool.outliers))
    return counts, shares


def band(level: float, queries: int, n: int, splits: int, two_sided: bool, outside: float) -> tuple[int, int, float]:
    """Exact bounds of the sum over splits of #{p <= level}, and its mean as a share."""
    from scipy.stats import betabinom

    sides = 2 if two_sided else 1
    k = sides * math.floor(level * (n + 1) / sides * (1 + 1e-12))
    if k == 0:
        return 0, 0, 0.0
    one = betabinom(queries, k, n + 1 - k).pmf(np.arange(queries + 1))
    size = splits * queries + 1
    total = np.fft.irfft(np.fft.rfft(one, 2 * size) ** splits, 2 * size)[:size].clip(0).cumsum()
    low, high = (int(np.searchsorted(total, q)) for q in (outside / 2, 1 - outside / 2))
    return low, high, k / (n + 1)


def run(path: Path | None, splits: int, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    pool, about = mnist(path, seed)
    pools = {"MNIST embeddings, Fashion-MNIST OOD": pool, **tables()}
    rows = []
    for i, (name, pool) in enumerate(pools.items()):
        for mode in pool.modes:
            rng = np.random.default_rng([seed, i, list(MODES).index(mode)])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResolutionWarning)
                found = [one_split(pool, mode, rng) for _ in range(splits)]
            counts = np.array([counts for counts, _ in found])  # [splits, levels]
            shares = np.array([shares for _, shares in found])  # [splits, fdrs, 2]
            # of several layers, every second calibration input calibrates the combination
            n = pool.calibration // 2 if "layers" in mode else pool.calibration
            row: dict[str, Any] = {
                "data": name,
                "mode": mode,
                "reference": pool.fit,
                "calibration": n,
                "queries": pool.queries,
                "ood": pool.outliers,
                "levels": [],
                "fdr": [],
            }
            for level, total in zip(LEVELS, counts.sum(0), strict=True):
                low, high, mean = band(level, pool.queries, n, splits, mode == "two-sided", OUTSIDE)
                trials = splits * pool.queries
                row["levels"].append(
                    {
                        "level": level,
                        "realised": round(total / trials, 6),
                        "expected": round(mean, 6),
                        "low": round(low / trials, 6),
                        "high": round(high / trials, 6),
                        "holds": bool(low <= total <= high),
                    }
                )
            for j, fdr in enumerate(FDRS):
                false, found_share = shares[:, j, 0], shares[:, j, 1]
                se = float(false.std(ddof=1) / np.sqrt(splits))
                row["fdr"].append(
                    {
                        "nominal": fdr,
                        "realised": round(float(false.mean()), 6),
                        "se": round(se, 6),
                        "power": round(float(found_share.mean()), 6),
                        "holds": bool(false.mean() <= fdr + CLEAR * se),
                    }
                )
            rows.append(row)
            print(f"{name}, {mode}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return {
        "benchmark": "validity",
        "settings": {"splits": splits, "seed": seed, "outside": OUTSIDE, "clear": CLEAR, **about},
        "versions": {
            "python": platform.python_version(),
            "arht": arht.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "seconds": round(time.perf_counter() - began, 1),
        "rows": rows,
    }


def failures(record: dict[str, Any]) -> list[str]:
    """Cells that do not hold."""
    return [
        f"{row['data']}, {row['mode']}: {part} {cell.get('level', cell.get('nominal'))}: {cell['realised']}"
        for row in record["rows"]
        for part in ("levels", "fdr")
        for cell in row[part]
        if not cell["holds"]
    ]


def render(record: dict[str, Any]) -> str:
    """Two markdown tables in percent: realised levels with their exact bands, and realised FDR with power."""
    s = record["settings"]
    out = [
        f"Realised level in %, over {s['splits']} random splits; in brackets the exact {100 * (1 - s['outside']):g} % "
        "band of a valid p-value. Bold: outside.",
        "",
        "| data | mode | reference, calibration, queries | " + " | ".join(f"{x:.0%}" for x in LEVELS) + " |",
        "|---|---|---|" + "--:|" * len(LEVELS),
    ]
    for row in record["rows"]:
        sizes = f"{row['reference']}, {row['calibration']}, {row['queries']}"
        cells = []
        for cell in row["levels"]:
            text = f"{100 * cell['realised']:.2f} [{100 * cell['low']:.2f}, {100 * cell['high']:.2f}]"
            cells.append(text if cell["holds"] else f"**{text}**")
        out.append(f"| {row['data']} | {row['mode']} | {sizes} | " + " | ".join(cells) + " |")
    out += [
        "",
        "Realised FDR of BH in %, ± its standard error, with a tenth of the queries OOD; after the slash the share of "
        f"the OOD queries that is rejected. Bold: above the nominal rate by more than {s['clear']:g} standard errors.",
        "",
        "| data | mode | " + " | ".join(f"{x:.0%}" for x in FDRS) + " |",
        "|---|---|" + "--:|" * len(FDRS),
    ]
    for row in record["rows"]:
        cells = []
        for cell in row["fdr"]:
            text = f"{100 * cell['realised']:.2f} ± {100 * cell['se']:.2f} / {100 * cell['power']:.0f}"
            cells.append(text if cell["holds"] else f"**{text}**")
        out.append(f"| {row['data']} | {row['mode']} | " + " | ".join(cells) + " |")
    out += ["", f"MNIST embeddings: {s['encoder']}, layers {', '.join(s['layers'])}, {s['draws']} draws an image."]
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
    parser = argparse.ArgumentParser(prog="benchmarks.validity", description="Validity of conformal p-values")
    parser.add_argument("--encoder", type=Path, help="an encoder of MNIST (default: train one)")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, default=Path("results/validity.json"))
    parser.add_argument("--render", type=Path, help="print the tables of this record and run nothing")
    args = parser.parse_args()
    if args.render is None:
        write(run(args.encoder, args.splits, args.seed), args.out)
    record = json.loads((args.render or args.out).read_text(encoding="utf-8"))
    print(render(record))
    for line in failures(record):
        print(f"does not hold: {line}", file=sys.stderr)
    sys.exit(1 if failures(record) else 0)


if __name__ == "__main__":
    main()
