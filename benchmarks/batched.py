"""Many replicates of a two-sample test at once, for the tables of level and power.

Only the drawing of the data and its projection are here: eigenvalues of the pooled covariance and the mean
difference along its eigenvectors, B replicates in one call. Ridges, Θ₁, Θ₂, Q, laws and p-values are `arht`'s own
functions, and each benchmark first compares some replicates with `arht`'s tests.
"""

from __future__ import annotations

import json
import os
import platform
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from arht.stats.nulls import AsymptoticLaw, ChiSquare
from arht.stats.spectrum import Spectrum, default_ridges, population_moments, prior_scores

PRIORS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
BLOCK = 1 << 18  # numbers in one work array, so that it stays in the cache


@dataclass(frozen=True)
class Batch:
    """B replicates, each reduced to its spectrum [B, M] and its squared projected mean difference [B, M]."""

    spectrum: Spectrum
    projections: Tensor  # c (vᵢᵀd)²
    remainder: Tensor  # c |d|² outside the span of S, [B]

    def __len__(self) -> int:
        return len(self.remainder)

    def rht(self, ridges: Tensor) -> Tensor:
        """RHT at ridges [B, R]."""
        parts = []
        rows = max(1, BLOCK // (ridges.shape[-1] * self.projections.shape[-1]))
        for e, p, r, ridge in zip(
            self.spectrum.eigenvalues.split(rows),
            self.projections.split(rows),
            self.remainder.split(rows),
            ridges.split(rows),
            strict=True,
        ):
            inverse = 1 / (e[:, None] + ridge[..., None])
            parts.append((inverse @ p[..., None])[..., 0] + r[:, None] / ridge)
        return torch.cat(parts)

    @property
    def mean_eigenvalue(self) -> Tensor:
        """tr S / P of each replicate."""
        return self.spectrum.eigenvalues.sum(-1) / self.spectrum.dimension


@dataclass(frozen=True)
class Basis:
    """The pooled covariances of B replicates in their own bases: any mean difference can be projected on them."""

    spectrum: Spectrum
    weight: float  # c
    axes: Tensor  # [B, P, M]: eigenvectors, the largest eigenvalue first

    def project(self, difference: Tensor) -> Batch:
        """The replicates with the mean differences [B, P]."""
        along = self.weight * (difference[:, None] @ self.axes)[:, 0].square()
        outside = self.weight * difference.square().sum(-1) - along.sum(-1)
        if self.spectrum.dimension <= self.spectrum.degrees:
            outside = torch.zeros_like(outside)
        return Batch(self.spectrum, along, outside.clamp_min(0))


def decompose(x: Tensor, y: Tensor) -> tuple[Basis, Tensor]:
    """Samples [B, n1, P] and [B, n2, P]: the bases of their pooled covariances, and their mean differences."""
    n1, n2, width = x.shape[1], y.shape[1], x.shape[2]
    degrees = n1 + n2 - 2
    centre, other = x.mean(1, keepdim=True), y.mean(1, keepdim=True)
    rows = torch.cat([x - centre, y - other], 1) / degrees**0.5
    if width <= degrees:
        eigenvalues, axes = torch.linalg.eigh(rows.mT @ rows)
        eigenvalues, axes = eigenvalues.flip(-1).clamp_min(0), axes.flip(-1)
    else:  # the same nonzero eigenvalues from the smaller side
        eigenvalues, left = torch.linalg.eigh(rows @ rows.mT)
        eigenvalues, left = eigenvalues[:, -degrees:].flip(-1), left[..., -degrees:].flip(-1)
        axes = rows.mT @ left / eigenvalues.sqrt()[:, None]
    spectrum = Spectrum(eigenvalues, width, degrees)
    return Basis(spectrum, n1 * n2 / (n1 + n2), axes), (centre - other)[:, 0]


def ridge_grid(spectrum: Spectrum) -> Tensor:
    """The default grid of each replicate, [B, 200]."""
    e = spectrum.eigenvalues
    means = e.sum(-1) / spectrum.dimension
    return torch.stack([default_ridges(high, mean) for high, mean in zip(e.amax(-1), means, strict=True)])


@dataclass(frozen=True)
class Chosen:
    """What `arht_test` knows once each prior has chosen its ridge, [B, M] (correlation [B, M, M])."""

    ridges: Tensor
    theta1: Tensor
    theta2: Tensor
    correlation: Tensor


def choose(spectrum: Spectrum, ridges: Tensor, priors: Sequence[Sequence[float]]) -> Chosen:
    """The ridge of each prior on each replicate's own grid [B, R]."""
    rows = max(1, BLOCK // (ridges.shape[-1] * spectrum.eigenvalues.shape[-1]))
    parts = []
    for part, grid in zip(spectrum.split(rows), ridges.split(rows), strict=True):
        theta1, theta2 = part.thetas(grid)
        moments = population_moments(part.power_sums(1), part.ratio)
        best = prior_scores(priors, grid, part.stieltjes(grid), theta1, theta2, moments, part.ratio).argmax(-1)
        chosen = grid.gather(1, best)
        parts.append((chosen, theta1.gather(1, best), theta2.gather(1, best), part.correlation(chosen)))
    return Chosen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def composite_pvalue(
    law: AsymptoticLaw, largest: Tensor, chosen: Chosen, width: int, levels: Sequence[float] | None = None
) -> Tensor:
    """P-value of the largest of M standardised statistics, [B].

    With `levels`, only where a decision at one of them needs it: the p-value lies between the largest and the sum
    of the M single tails, and where no level lies between these, the lower bound is returned instead.
    """
    if chosen.theta1.shape[-1] == 1 and not isinstance(law, ChiSquare):
        levels = None
    if levels is None:
        return law.composite(largest, chosen.theta1, chosen.theta2, width, chosen.correlation)[0]
    if isinstance(law, ChiSquare):  # RHT whose standardised value is `largest`
        same = width * chosen.theta1 + largest[:, None] * (2 * width * chosen.theta2).sqrt()
        tails = law.single(same, chosen.theta1, chosen.theta2, width)
    else:
        tails = 0.5 * torch.special.erfc(largest[:, None] / 2**0.5).expand_as(chosen.theta1)
    low, high = tails.amax(-1), tails.sum(-1)
    result = low.clone()
    open_ = torch.zeros_like(low, dtype=torch.bool)
    for level in levels:
        open_ |= (low <= level * (1 + 1e-6)) & (high >= level * (1 - 1e-6))
    if bool(open_.any()):
        result[open_] = law.composite(
            largest[open_], chosen.theta1[open_], chosen.theta2[open_], width, chosen.correlation[open_]
        )[0]
    return result


def standard_rows(kind: str, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Rows [B, n, P] of mean zero and unit covariance.

    Gaussian; ``t5 entries``, independent; ``t5 rows``, where one χ² divides the whole row (elliptical).
    """
    z = torch.randn(shape, generator=generator).to(torch.float64)
    if kind == "Gaussian":
        return z
    wide = shape if kind == "t5 entries" else (*shape[:2], 1)
    uniform = (1 - torch.rand((2, *wide), generator=generator)).prod(0)
    chi = torch.randn(wide, generator=generator).square() - 2 * uniform.log()
    return z * (3 / chi.to(torch.float64)).sqrt()  # 3 = 5 × the variance 3/5


def pieces(total: int, size: int) -> Iterator[int]:
    """Sizes of the parts of `total`."""
    while total > 0:
        yield min(size, total)
        total -= size


def seeded(seed: int, key: str) -> torch.Generator:
    """A generator of the cell's own, so that a cell gives the same numbers whichever were run before it."""
    return torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(key.encode()))


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write(record: dict[str, Any], path: Path) -> None:
    """One row a line; under another name first, so that a reader never sees half a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    part = path.with_name(path.name + ".part")
    part.write_text(head.removesuffix("\n}") + f',\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    os.replace(part, path)
