"""Exact permutation p-values, all relabellings at once.

The total scatter T of the pooled rows (one sample: ΣXXᵀ about the hypothesised mean) is the same for every
relabelling (sign flip); only the mean difference d changes, and the pooled covariance with it by one rank:

    S = (T - c ddᵀ) / ν

So T is factored once, and with Aⱼ = tⱼ/ν + λ, sₖ = (c/ν) Σⱼ dⱼ² / Aⱼᵏ in its eigenbasis (Sherman and Morrison)

    RHT(λ)        = ν s₁ / (1 - s₁)
    tr (S + λI)⁻¹ = Σ 1/Aⱼ  + s₂ / (1 - s₁)
    tr (S + λI)⁻² = Σ 1/Aⱼ² + 2 s₃ / (1 - s₁) + s₂² / (1 - s₁)²

all relabellings at all ridges being three products of a [relabellings, P] and a [P, ridges] matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats.nulls import Permutation

__all__ = ["PermutedSpectrum", "permutation_pvalue"]

_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PermutedSpectrum:
    """RHT and the two trace sums of a block of relabellings at every ridge."""

    rht: Float[Tensor, "B R"]
    shrunk: Float[Tensor, "B R"]
    """tr S(S + λI)⁻¹."""
    shrunk2: Float[Tensor, "B R"]
    """tr [S(S + λI)⁻¹]²."""
    trace: Float[Tensor, " B"]
    """tr S."""


def permutation_pvalue(
    x: Float[Tensor, "n1 P"],
    y: Float[Tensor, "n2 P"] | None,
    mean: Float[Tensor, " P"],
    ridges: Float[Tensor, " R"],
    law: Permutation,
    statistic: Callable[[PermutedSpectrum], Float[Tensor, " B"]],
) -> tuple[float, float]:
    """P-value of `statistic` (larger = further from the null), and the smallest one that was possible."""
    if y is None:
        rows, degrees, weight = x - mean, x.shape[0] - 1, float(x.shape[0])
        base = torch.full((x.shape[0],), 1 / x.shape[0], dtype=torch.float64, device=x.device)
    else:
        both = torch.cat([x - mean, y])
        rows = both - both.mean(0)
        n1, n2 = x.shape[0], y.shape[0]
        degrees, weight = n1 + n2 - 2, n1 * n2 / (n1 + n2)
        base = torch.cat([x.new_full((n1,), 1 / n1), x.new_full((n2,), -1 / n2)])
    _, singular, basis = torch.linalg.svd(rows, full_matrices=False)
    projected = rows @ basis.T
    eigenvalues = singular.square() / degrees
    if not bool(eigenvalues[0] > 0):
        raise InputError(
            "permutation: all rows are equal, so every relabelling gives the same statistic. Check the input."
        )

    def values(weights: Tensor) -> Tensor:
        d2 = (weights @ projected).square() * (weight / degrees)
        return statistic(_spectra(d2, eigenvalues, ridges, degrees, x.shape[1]))

    observed = values(base[None])[0]
    if not bool(torch.isfinite(observed)):
        return math.nan, law.smallest_pvalue
    bar = observed - 1e-9 * observed.abs()
    step = max(1, _BLOCK_BYTES // (8 * (rows.shape[0] + rows.shape[1] + 6 * ridges.numel())))
    reached = total = 0
    everything, source = _relabellings(x.shape[0], 0 if y is None else y.shape[0], base, law, step)
    for weights in source:
        # an undefined statistic counts against the null's rejection, so that the p-value stays valid
        reached += int((~(values(weights) < bar)).sum())
        total += weights.shape[0]
    if everything:
        return reached / total, 1 / total
    return (1 + reached) / (1 + total), 1 / (1 + total)


def _spectra(d2: Tensor, eigenvalues: Tensor, ridges: Tensor, degrees: int, width: int) -> PermutedSpectrum:
    inverse = 1 / (eigenvalues[:, None] + ridges)  # [P, R]
    s1, s2, s3 = (d2 @ inverse.pow(k) for k in (1, 2, 3))
    left = (1 - s1).clamp_min(1e-300)
    u = eigenvalues[:, None] * inverse
    first = s2 / left
    shrunk = u.sum(0) - ridges * first
    shrunk2 = u.square().sum(0) - 2 * ridges * first + ridges.square() * (2 * s3 / left + first.square())
    return PermutedSpectrum(degrees * s1 / left, shrunk, shrunk2, eigenvalues.sum() - d2.sum(1))


def _relabellings(
    n1: int, n2: int, base: Tensor, law: Permutation, step: int
) -> tuple[bool, Iterator[Float[Tensor, "B n"]]]:
    """Blocks of weight vectors w with d = wᵀ rows, and whether they are all there are (the observed one among)."""
    n = n1 + n2
    if n2 == 0:
        exists = 2 ** (n - 1) if n < 60 else math.inf  # a flip of every sign leaves the statistic as it is
        if exists <= law.count:
            signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=n - 1)), dtype=torch.float64)
            full = torch.cat([torch.ones(len(signs), 1, dtype=torch.float64), signs], 1).to(base.device)
            return True, iter((full * base).split(step))
    elif math.comb(n, n1) <= law.count:
        index = torch.tensor(list(itertools.combinations(range(n), n1)))
        chosen = torch.zeros(len(index), n, dtype=torch.float64).scatter_(1, index, 1.0).to(base.device)
        return True, iter((chosen * (1 / n1 + 1 / n2) - 1 / n2).split(step))

    def random() -> Iterator[Tensor]:
        for start in range(0, law.count, step):
            size = min(step, law.count - start)
            uniform = torch.rand(size, n, dtype=torch.float64, generator=law.generator).to(base.device)
            yield base * (uniform < 0.5).mul(2.0).sub(1.0) if n2 == 0 else base[uniform.argsort(1)]

    return False, random()
