"""RHT of many queries against one or many means that share a covariance: one factorisation, classes as shifts.

In the reference's eigenbasis V, with e its share of the pooled covariance S, D = e + λ and Y = U D^{-1/2} / √ν the
query's whitened centred draws [K, P],

    (S + λI)⁻¹ = D^{-1/2} (I + YᵀY)⁻¹ D^{-1/2} = D^{-1/2} (I - Yᵀ (I + YYᵀ)⁻¹ Y) D^{-1/2}

so that for the mean of class c, x_c = D^{-1/2} Vᵀ(x̄ - μ_c):   form_c = x_c'x_c - (Yx_c)' (I + YYᵀ)⁻¹ (Yx_c).
With one draw there is no Y and the form is one matrix product; D may differ from query to query with several.
"""

from __future__ import annotations

import torch

from arht._shapes import Float, Tensor

__all__ = ["forms", "single_forms"]

_ROWS = 2048
_BYTES = 32 << 20


def single_forms(
    queries: Float[Tensor, "B P"], mean: Float[Tensor, " P"], whitening: Float[Tensor, "P P"], shifts: Tensor | None
) -> Float[Tensor, "B C"]:
    """‖Wᵀ(x - mean) - shift_c‖² in float64, `shifts` [C, P] in whitened coordinates (``None``: one of zero)."""
    count, width = queries.shape
    classes = 1 if shifts is None else shifts.shape[0]
    out = whitening.new_empty(count, classes)
    rows, white = (whitening.new_empty(min(count, _ROWS), width) for _ in range(2))
    constant = None if shifts is None else shifts.square().sum(1)
    for start in range(0, count, _ROWS):
        block = queries[start : start + _ROWS]
        n = len(block)
        torch.mm(rows[:n].copy_(block).sub_(mean), whitening, out=white[:n])
        squares = torch.linalg.vecdot(white[:n], white[:n])[:, None]
        if shifts is None or constant is None:
            out[start : start + n] = squares
        else:
            # ‖y - a‖² by expansion: cheap, and it loses digits only where a query sits on a class mean
            out[start : start + n] = (squares - 2 * (white[:n] @ shifts.T) + constant).clamp_min_(0)
    return out


def forms(
    queries: Float[Tensor, "B K P"],
    mean: Float[Tensor, " P"],
    basis: Float[Tensor, "P P"],
    inverse: Float[Tensor, "B P"],
    shifts: Float[Tensor, "C P"],
    degrees: int,
) -> Float[Tensor, "B C"]:
    """The forms above for K draws a query; `inverse` is 1/D of each query, `shifts` Vᵀ(μ_c - mean)."""
    count, draws, width = queries.shape
    step = max(1, _BYTES // (8 * draws * (3 * width + draws + shifts.shape[0])))
    parts = [
        _block(queries[at : at + step], mean, basis, inverse[at : at + step], shifts, degrees)
        for at in range(0, count, step)
    ]
    return torch.cat(parts) if parts else basis.new_empty(0, shifts.shape[0])


def _block(queries: Tensor, mean: Tensor, basis: Tensor, inverse: Tensor, shifts: Tensor, degrees: int) -> Tensor:
    rotated = (queries.to(torch.float64) - mean) @ basis  # [b, K, P]
    centre = rotated.mean(1)
    root = inverse.sqrt()
    y = (rotated - centre[:, None]) * (root / degrees**0.5)[:, None]
    scaled = centre * inverse
    plain = (centre * scaled).sum(1)[:, None] - 2 * (scaled @ shifts.T) + inverse @ shifts.square().T  # [b, C]
    b = (y @ (centre * root)[:, :, None]) - (y * root[:, None]) @ shifts.T  # [b, K, C]
    if queries.shape[1] > queries.shape[2]:  # Yᵀ(I + YYᵀ)⁻¹Y = (I + YᵀY)⁻¹YᵀY: the smaller of the two matrices
        e = y.mT @ y
        e.diagonal(dim1=1, dim2=2).add_(1.0)
        x = (centre[:, None] - shifts) * root[:, None]  # [b, C, P]
        half = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(e)[0], x.mT, upper=False)
        return half.square().sum(1)
    g = y @ y.mT
    g.diagonal(dim1=1, dim2=2).add_(1.0)
    half = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(g)[0], b, upper=False)
    return (plain - half.square().sum(1)).clamp_min_(0)
