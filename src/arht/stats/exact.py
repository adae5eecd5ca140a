"""The exact ways, for queries whose series is too long: Woodbury's identity where K < P, eigenvalues otherwise.

What they compute, and in which letters, is said in `arht.stats.perturbation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arht._shapes import Float, Tensor

__all__ = ["Cloud", "dense", "low_rank"]


@dataclass(frozen=True, slots=True)
class Cloud:
    """Queries in the reference's eigenbasis, for the exact ways."""

    eigenvalues: Float[Tensor, " P"]
    """e: the reference's scatter eigenvalues / ν."""
    difference: Float[Tensor, "B P"]
    """d: the query's mean minus the reference's."""
    draws: Float[Tensor, "B K P"]
    """U: the draws about their own mean."""
    degrees: int

    @classmethod
    def of(cls, queries: Tensor, basis: Tensor, mean: Tensor, eigenvalues: Tensor, degrees: int) -> Cloud:
        """Rotate queries [B, K, P], each on its own, so that neighbours do not enter."""
        centred = queries.to(torch.float64) - mean
        rotated = torch.bmm(centred, basis.expand(len(centred), -1, -1))
        difference = rotated.mean(1)
        return cls(eigenvalues, difference, rotated - difference[:, None], degrees)

    def traces(self) -> Float[Tensor, " B"]:
        """tr S."""
        return self.draws.square().sum((1, 2)) / self.degrees + self.eigenvalues.sum()

    def __getitem__(self, index: Tensor) -> Cloud:
        return Cloud(self.eigenvalues, self.difference[index], self.draws[index], self.degrees)


def low_rank(cloud: Cloud, ridge: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`shrunk`, `shrunk2`, `form` exactly for any E, by one K × K factorisation a query (Woodbury).

    The terms of `Frame._over_draws` unexpanded. The fourth value is the rounding, relatively, that the
    subtraction in `form` magnifies.
    """
    inverse = 1 / (cloud.eigenvalues + ridge)
    h, u = ridge * inverse, cloud.eigenvalues * inverse
    y = cloud.draws * (inverse / cloud.degrees).sqrt()
    g = y @ y.mT
    factor = torch.linalg.cholesky(g + torch.eye(g.shape[1], dtype=g.dtype, device=g.device))
    n1 = torch.cholesky_solve((y * h) @ y.mT, factor)
    n12 = torch.cholesky_solve((y * (h * u)) @ y.mT, factor)
    shrunk = u.sum() + n1.diagonal(dim1=1, dim2=2).sum(-1)
    shrunk2 = u.square().sum() + 2 * n12.diagonal(dim1=1, dim2=2).sum(-1) + (n1 * n1.mT).sum((1, 2))
    x = inverse.sqrt() * cloud.difference
    half = torch.linalg.solve_triangular(factor, y @ x[:, :, None], upper=False)[:, :, 0]
    xx = torch.linalg.vecdot(x, x)
    form = xx - torch.linalg.vecdot(half, half)
    magnified = 64 * torch.finfo(torch.float64).eps * xx / form.clamp_min(1e-300)
    return shrunk, shrunk2, form, torch.where(xx > 0, magnified, 0.0)


def dense(cloud: Cloud) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
    """Exact for any query: eigenvalues of S and the squared coordinates of d along its eigenvectors."""
    s = cloud.draws.mT @ cloud.draws / cloud.degrees
    s.diagonal(dim1=1, dim2=2).add_(cloud.eigenvalues)
    values, vectors = torch.linalg.eigh(s)
    along = (vectors.mT @ cloud.difference[:, :, None])[:, :, 0]
    return values.flip(-1).clamp_min(0), along.square().flip(-1)
