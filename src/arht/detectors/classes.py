"""Moments of classes that share one covariance: they merge, and need one [P, P] matrix however many classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arht._shapes import Float, Int, Tensor
from arht.errors import InputError
from arht.stats.moments import Moments

__all__ = ["ClassMoments"]

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ClassMoments:
    """Row count n_c and mean μ_c of each class c, and the pooled within-class scatter W = Σ_c W_c, in float64.

    They merge class by class as `Moments` do: with δ = μ_c' - μ_c, the scatter gains δδᵀ n_c n_c' / (n_c + n_c').
    W has N - C degrees of freedom.
    """

    labels: Int[Tensor, " C"]
    """Ascending."""
    counts: Int[Tensor, " C"]
    means: Float[Tensor, "C P"]
    scatter: Float[Tensor, "P P"]

    @classmethod
    def of(cls, rows: Float[Tensor, "N P"], labels: Int[Tensor, " N"]) -> ClassMoments:
        """Of labelled rows; two passes over blocks of bounded size."""
        values, index = torch.unique(labels, return_inverse=True)
        width, count = rows.shape[1], len(values)
        counts = torch.bincount(index, minlength=count)
        centre = rows[:1].to(torch.float64)  # a large common offset costs no accuracy
        means = torch.zeros(count, width, dtype=torch.float64, device=rows.device)
        step = max(1, _BLOCK_BYTES // (8 * width))
        for start in range(0, len(rows), step):
            means.index_add_(0, index[start : start + step], rows[start : start + step].to(torch.float64) - centre)
        means = means / counts[:, None] + centre
        if not bool(torch.isfinite(means).all()):
            Moments.of(rows)  # says which row
        scatter = torch.zeros(width, width, dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), step):
            block = rows[start : start + step].to(torch.float64) - means[index[start : start + step]]
            scatter.addmm_(block.T, block)
        return cls(values, counts, means, scatter)

    @classmethod
    def join(cls, groups: dict[int, Moments]) -> ClassMoments:
        """From the moments of each class."""
        if not groups:
            raise InputError("ClassMoments.join: needs at least one class; got none. Group some rows first.")
        parts = [groups[label] for label in sorted(groups)]
        return cls(
            torch.tensor(sorted(groups)),
            torch.tensor([part.n for part in parts]),
            torch.stack([part.mean for part in parts]),
            Moments.within(parts)[1],
        )

    @property
    def n(self) -> int:
        """N, the number of rows."""
        return int(self.counts.sum())

    @property
    def width(self) -> int:
        """P, the number of columns."""
        return self.means.shape[1]

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Moments of both samples together; neither operand changes."""
        if self.width != other.width:
            raise InputError(
                f"ClassMoments.merge: both sides must have the same number of columns; got P={self.width} and "
                f"P={other.width}. They are not moments of one layer."
            )
        labels = torch.unique(torch.cat([self.labels, other.labels]))
        counts = torch.zeros(2, len(labels), dtype=torch.int64, device=labels.device)
        means = self.means.new_zeros(2, len(labels), self.width)
        for side, part in enumerate((self, other)):
            at = torch.searchsorted(labels, part.labels)
            counts[side, at], means[side, at] = part.counts, part.means
        total = counts.sum(0)
        delta = torch.where((counts > 0).all(0)[:, None], means[1] - means[0], 0.0)
        share = counts[1] / total
        base = torch.where((counts[0] > 0)[:, None], means[0], means[1])
        weighted = delta * (counts[0] * share)[:, None]
        return ClassMoments(
            labels, total, base + delta * share[:, None], self.scatter + other.scatter + delta.T @ weighted
        )

    def total(self) -> Moments:
        """Moments of all rows, classes aside."""
        n = self.n
        mean = (self.counts[:, None] * self.means).sum(0) / n
        between = self.means - mean
        return Moments(n, mean, self.scatter + between.T @ (between * self.counts[:, None]))

    def within(self) -> Moments:
        """Within-class scatter W as the moments of a sample of N - C + 1 rows about the mean of all.

        A sample of n rows has n - 1 degrees of freedom, so that one has the N - C of W.
        """
        n = self.n - len(self.labels) + 1
        if n < 2:
            raise InputError(
                f"ClassMoments.within: needs more rows than classes; got N={self.n} rows in C={len(self.labels)} "
                "classes. No within-class covariance can be estimated; give more rows."
            )
        return Moments(n, self.total().mean, self.scatter)
