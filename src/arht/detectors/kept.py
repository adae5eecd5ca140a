"""A few reference rows, kept to be shown beside a query: a sample that does not depend on chunks or their order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from arht._shapes import Float, Int, Tensor

__all__ = ["Kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    """The `size` rows with the smallest hash of their own content: merging two samples is keeping the smallest."""

    size: int
    rows: Float[Tensor, "k P"]
    positions: Int[Tensor, " k"]
    """In the order of fitting; -1 where it was lost to subtraction or merging from unknown counts."""
    keys: Int[Tensor, " k"]

    @classmethod
    def of(cls, rows: Float[Tensor, "N P"], size: int, start: int = 0) -> Kept:
        """From rows whose first stands at position `start`."""
        step = max(1, (8 << 20) // (8 * rows.shape[1]))
        total: Kept | None = None
        for at in range(0, len(rows), step):
            block = rows[at : at + step].to(torch.float64)
            keys = _hash(block)
            best = keys.argsort()[:size]
            part = cls(size, block[best], best + start + at, keys[best])
            total = part if total is None else total.merge(part)
        if total is None:
            return cls(size, rows.to(torch.float64), torch.zeros(0, dtype=torch.int64), torch.zeros(0).long())
        return total

    def merge(self, other: Kept, shift: int = 0) -> Kept:
        """The sample of both together; the other's positions move on by `shift`."""
        keys = torch.cat([self.keys, other.keys])
        positions = torch.cat([self.positions, other.positions + shift])
        best = torch.from_numpy(np.lexsort((positions.numpy(), keys.numpy()))[: self.size])
        return Kept(self.size, torch.cat([self.rows, other.rows])[best], positions[best], keys[best])


def _hash(rows: Tensor) -> Tensor:
    """63 bits of each row: a multilinear hash of the bits of its numbers, then mixed."""
    bits = rows.cpu().contiguous().numpy().view(np.uint64)
    weights = np.random.Generator(np.random.PCG64(0)).integers(1 << 63, size=bits.shape[1], dtype=np.uint64) * 2 + 1
    folded = ((bits ^ (bits >> np.uint64(32))) * weights).sum(1, dtype=np.uint64)
    folded ^= folded >> np.uint64(31)
    folded *= np.uint64(0x9E3779B97F4A7C15)
    return torch.from_numpy((folded >> np.uint64(1)).astype(np.int64))
