"""Sufficient statistics of a sample as a value: they merge, subtract and stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats._checks import as_real

__all__ = ["Moments"]

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Moments:
    """Row count n, mean x̄ and scatter Σ(x - x̄)(x - x̄)ᵀ of a sample, all in float64.

    Two samples' moments merge into those of their union (Chan, Golub and LeVeque 1979), with n = nₐ + n_b and
    δ = x̄_b - x̄ₐ::

        mean    = x̄ₐ + δ · n_b / n
        scatter = Wₐ + W_b + δδᵀ · nₐ n_b / n

    so one pass, a stream of chunks and a cluster give the same value up to rounding.
    """

    n: int
    mean: Float[Tensor, " P"]
    scatter: Float[Tensor, "P P"]

    @classmethod
    def of(cls, x: Any) -> Moments:
        """Moments of rows [n, P], or of draws [B, K, P] taken as B·K rows.

        Works through blocks of bounded size, each centred on its own mean before it is squared, so float32 input
        is never copied whole and a large common offset costs no accuracy.
        """
        rows = x.detach() if isinstance(x, Tensor) and x.is_floating_point() else None
        if rows is None:
            rows = _borrow(x)
        if rows.ndim == 1:
            rows = rows[:, None]
        if rows.ndim < 2 or 0 in rows.shape:
            raise InputError(
                f"Moments.of: x must be rows [n, P] with n >= 1 and P >= 1; got shape {tuple(rows.shape)}. "
                "There is nothing to average; check the selection that produced it."
            )
        width = rows.shape[-1]
        rows = rows.reshape(-1, width)
        step = max(1, _BLOCK_BYTES // (8 * width))
        total = cls.zero(width, device=rows.device)
        mean, scatter, n = total.mean, total.scatter, 0
        for start in range(0, rows.shape[0], step):
            block = rows[start : start + step].to(torch.float64)
            centre = block.mean(0)
            if not bool(torch.isfinite(centre).all()):
                bad = (~torch.isfinite(block)).nonzero()
                row, column = (int(i) for i in bad[0]) if len(bad) else (0, 0)
                raise InputError(
                    f"Moments.of: x must be finite; got NaN or infinite values, the first in row {start + row}, "
                    f"column {column}. Drop or impute those rows."
                )
            block = block - centre
            m = block.shape[0]
            scatter.addmm_(block.T, block)
            if n:
                delta = centre - mean
                scatter.addr_(delta, delta, alpha=n * m / (n + m))
                mean = mean + delta * (m / (n + m))
            else:
                mean = centre
            n += m
        return cls(n, mean, scatter)

    @classmethod
    def zero(cls, width: int, device: torch.device | None = None) -> Moments:
        """Moments of no rows: the neutral element of `merge`."""
        return cls(
            0,
            torch.zeros(width, dtype=torch.float64, device=device),
            torch.zeros(width, width, dtype=torch.float64, device=device),
        )

    @classmethod
    def stream(cls, chunks: Iterable[Any]) -> Moments:
        """Moments of the rows of all chunks; only one chunk is in memory at a time."""
        total: Moments | None = None
        for chunk in chunks:
            part = cls.of(chunk)
            total = part if total is None else total._add(part)
        if total is None:
            raise InputError(
                "Moments.stream: needs at least one chunk of rows; got none. Check the iterable: a generator that "
                "was read once is empty the second time."
            )
        return total

    @classmethod
    def grouped(cls, x: Any, labels: Any) -> dict[int, Moments]:
        """Moments of each label's rows, in the order of the labels' values."""
        rows = as_real("Moments.grouped", "x", x)
        groups = torch.as_tensor(labels).to(rows.device)
        if rows.ndim != 2 or groups.shape != rows.shape[:1]:
            raise InputError(
                f"Moments.grouped: needs one label per row of x [n, P]; got x {tuple(rows.shape)} and labels "
                f"{tuple(groups.shape)}. Give labels [n]."
            )
        if groups.is_floating_point() or groups.is_complex():
            raise InputError(
                f"Moments.grouped: labels must be integers; got {str(groups.dtype).removeprefix('torch.')}. "
                "Encode the classes as 0, 1, 2, ..."
            )
        return {int(label): cls.of(rows[groups == label]) for label in torch.unique(groups)}

    @staticmethod
    def within(groups: Iterable[Moments]) -> tuple[int, Tensor]:
        """Pooled within-group degrees of freedom Σ(nᵍ - 1) and scatter ΣWᵍ."""
        parts = list(groups)
        if not parts:
            raise InputError("Moments.within: needs at least one group; got none. Group some rows first.")
        return sum(part.n - 1 for part in parts), torch.stack([part.scatter for part in parts]).sum(0)

    @property
    def width(self) -> int:
        """P, the number of columns."""
        return self.mean.shape[0]

    @property
    def covariance(self) -> Float[Tensor, "P P"]:
        """Scatter / (n - 1)."""
        if self.n < 2:
            raise InputError(
                f"Moments.covariance: needs n >= 2 rows; got n={self.n}. No covariance can be estimated; "
                "give more rows."
            )
        return self.scatter / (self.n - 1)

    def merge(self, other: Moments) -> Moments:
        """Moments of both samples together; neither operand changes."""
        self._check_width("merge", other)
        return Moments(self.n, self.mean, self.scatter.clone())._add(other)

    def _add(self, other: Moments) -> Moments:
        """`merge` into this value's own scatter buffer, for loops that own it."""
        self._check_width("merge", other)
        n = self.n + other.n
        if n == 0:
            return self
        delta = other.mean - self.mean
        self.scatter.add_(other.scatter)
        self.scatter.addr_(delta, delta, alpha=self.n * other.n / n)
        return Moments(n, self.mean + delta * (other.n / n), self.scatter)

    def subtract(self, other: Moments) -> Moments:
        """Moments of this sample without the rows of `other`, which must be among them."""
        self._check_width("subtract", other)
        n = self.n - other.n
        if n < 0 or (n == 0 and other.n == 0):
            raise InputError(
                f"Moments.subtract: cannot take n={other.n} rows from n={self.n}. Only rows that were merged in can "
                "be taken out."
            )
        if n == 0:
            return Moments.zero(self.width, device=self.mean.device)
        mean = self.mean + (self.mean - other.mean) * (other.n / n)
        delta = other.mean - mean
        scatter = self.scatter - other.scatter
        scatter.addr_(delta, delta, alpha=-n * other.n / self.n)
        return Moments(n, mean, scatter)

    def _check_width(self, verb: str, other: Moments) -> None:
        if self.width != other.width:
            raise InputError(
                f"Moments.{verb}: both sides must have the same number of columns; got P={self.width} and "
                f"P={other.width}. They are not moments of one layer."
            )


def _borrow(x: Any) -> Tensor:
    """A floating array without a copy where possible (a read-only memory map is read block by block later)."""
    import numpy as np

    if isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64) and x.dtype.isnative:
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(x)
    return as_real("Moments.of", "x", x)
