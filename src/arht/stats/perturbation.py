"""Traces and quadratic forms of (S + λI)⁻¹ where S is a reference's share plus the scatter of K draws.

In the reference's eigenbasis V the pooled covariance of reference and query is S = diag(e) + UᵀU/ν, with U [K, P]
the query's centred draws and e the reference's share. With D = e + λ, h = λ/D, u = e/D and the whitened draws
Y = U D^{-1/2}/√ν,

    E = YᵀY  [P, P],     G = YYᵀ  [K, K],     (S + λI)⁻¹ = D^{-1/2} (I + E)⁻¹ D^{-1/2}

and what a test needs, at any ridge, is three numbers:

    shrunk  = tr S(S + λI)⁻¹,    shrunk2 = tr [S(S + λI)⁻¹]²,    form = dᵀ(S + λI)⁻¹d .

Where the reference dominates, E is small and each is a short series in it. `Frame` holds what all queries share
at one ridge, the whitening V D^{-1/2}/√ν above all, so that one matrix product brings a block of queries to Y. The
first-order terms are computed in float64, what follows, smaller by another ‖E‖, in float32; every query gets a
bound on the truncated tail and on the rounding. One whose bound is above `TOLERANCE` goes to `low_rank` (exact,
Woodbury, K < P) or `dense` (exact, eigenvalues).

The bounds rest on three facts. E is positive semidefinite, so that the series of x'(I + E)⁻¹x and of tr H(I + E)⁻¹
alternate and the first term left out bounds the rest. For a diagonal H with entries in [0, 1],
tr EᵃHEᵇH ≤ tr E^{a+b}H² (Young's inequality in E's eigenbasis), and the smaller of ε, the Frobenius norm of E, and
`_radius` serves for its largest eigenvalue. A float32 (float64) inner product of n terms is off by at most n·2⁻²⁴
(n·2⁻⁵³) of the product of the two norms: also the mean, the whitening and their difference x, each about as large
as the offset from the origin, which is why `shift` needs no further margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from arht._shapes import Float, Tensor

__all__ = ["TOLERANCE", "Cloud", "Frame", "Sums", "dense", "low_rank"]

TOLERANCE = 5e-10
"""Largest relative error bound with which the series is accepted."""
_U32 = 2.0**-24
_U64 = 2.0**-53
_CACHE = 2 << 20  # bytes of draws, and of [P, P] matrices, that are worked on at a time
_STEP = 2 << 20


@dataclass(frozen=True, slots=True)
class Sums:
    """What a block of queries comes to at one ridge."""

    shrunk: Float[Tensor, " B"]
    shrunk2: Float[Tensor, " B"]
    form: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]
    """Largest relative error that Θ₁, Θ₂ or RHT can have; inf where the series may not converge."""
    spread: Float[Tensor, " B"]
    """ε: the Frobenius norm of E, or a little more."""
    variances: Float[Tensor, "B P"]
    """Diagonal of E."""

    def put(self, rows: Tensor, other: Sums) -> None:
        """Overwrite these rows by the other's."""
        for name in ("shrunk", "shrunk2", "form", "bound", "spread", "variances"):
            getattr(self, name)[rows] = getattr(other, name)[rows]


class Workspace:
    """Scratch memory that is taken once and used again: fresh pages cost more than the arithmetic on them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """A contiguous tensor of that shape with whatever was in it; the same memory for the same name."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=dtype, device=self._device)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)


class Frame:
    """What all queries of K draws share at one ridge."""

    def __init__(self, basis: Tensor, mean: Tensor, eigenvalues: Tensor, degrees: int, ridge: float) -> None:
        self.eigenvalues, self.degrees, self.ridge = eigenvalues, degrees, ridge
        self.inverse = 1 / (eigenvalues + ridge)
        self.h, self.u = ridge * self.inverse, eigenvalues * self.inverse
        self.squares = self.inverse / degrees  # squared column norms of the whitening
        self.whitening = basis * self.squares.sqrt()  # [P, P]
        self.origin = mean @ self.whitening
        self.origin_norm = float(torch.linalg.vector_norm(mean))
        self.weights = torch.stack([self.h, self.h * self.u, torch.ones_like(self.h)], 1)  # [P, 3]
        self.weights32 = self.weights[:, :2].T.float()[:, None, :].contiguous()  # [2, 1, P]
        self.base, self.base2 = self.u.sum(), self.u.square().sum()

    def first_order(self, ridges: Float[Tensor, " R"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights [P, R] and offsets [R] that turn `variances` into `shrunk` and `shrunk2` at other ridges.

        Off by at most ε_r²/(1 - ε_r) and 5 ε_r²/(1 - ε_r)², with ε_r as in `stretch`.
        """
        inverse = 1 / (self.eigenvalues[:, None] + ridges)
        h, u = ridges * inverse, self.eigenvalues[:, None] * inverse
        ratio = inverse / self.inverse[:, None]
        return ratio * h, 2 * ratio * h * u, u.sum(0), u.square().sum(0)

    def stretch(self, ridges: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """ε at other ridges is at most ε times this: the largest D / D_r."""
        e = self.eigenvalues[:, None]
        return ((e + self.ridge) / (e + ridges)).amax(0)

    def series(self, queries: Float[Tensor, "B K P"], space: Workspace, thorough: bool = True) -> Sums:
        """The three numbers by series, over G where K < P and over E otherwise.

        Over E, one order less is cheaper, and with n1 ≫ K enough; `thorough` takes it in.
        """
        if queries.shape[1] < queries.shape[2]:
            return self._over_draws(queries, space)
        return self._over_columns(queries, space, thorough)

    def _over_draws(self, queries: Tensor, space: Workspace) -> Sums:
        """With N = (I + G)⁻¹ = I - G + G² - ..., G₁ = YHYᵀ, G₁₂ = YH(I - H)Yᵀ, x = D^{-1/2}d and b = Yx:

        shrunk  = Σu  + tr NG₁
        shrunk2 = Σu² + 2 tr NG₁₂ + tr NG₁NG₁
        form    = x'x - b'Nb
        """
        k, p = queries.shape[1:]
        mean, x, variances, b, g, g1, g12 = self._whiten(queries, space)
        tr1, tr12, total = (variances @ self.weights).unbind(1)
        flat, flat1, flat12, flat_gg = (m.flatten(1) for m in (g, g1, g12, g @ g))
        g_1, g_12 = _dot(flat, flat1), _dot(flat, flat12)
        gg_1, gg_12 = _dot(flat_gg, flat1), _dot(flat_gg, flat12)
        one_one, third = _dot(flat1, flat1), _dot((g @ g1).flatten(1), flat1)
        unit = _U32 if g.dtype == torch.float32 else _U64
        spread = _dot(flat, flat).sqrt() + (p + 8) * unit * total
        largest = torch.minimum(spread, _radius(g.abs()) * (1 + 4 * k * unit) + (p + 8) * unit * total)
        shrunk = self.base + tr1 - g_1 + gg_1
        shrunk2 = self.base2 + 2 * (tr12 - g_12 + gg_12) + one_one - 2 * third
        gb = (g @ b.to(g.dtype)[:, :, None])[:, :, 0].to(torch.float64)
        xx, bb = self.degrees * torch.linalg.vecdot(x, x), torch.linalg.vecdot(b, b)
        bgb, gbgb = (b * gb).sum(1), gb.square().sum(1)
        form = xx - bb + bgb - gbgb + gbgb.square() / (bgb + gbgb).clamp_min(1e-300)  # for the rest, in [0, ρ b'G²b]
        # tails of the series; rounding of Y's entries and of Gram entries; of the products in float64; of x (`shift`)
        entry, gram, wide = (k + 8) * unit, (p + 8) * unit, 4 * (p + k + 8) * _U64
        norm = ((variances + k * mean.square()) @ (1 / self.squares)).sqrt()  # of the query itself, ‖X‖
        by_h = wide * norm * (tr1 * (self.h @ self.squares)).sqrt()
        gram1 = gram * (total * one_one.clamp_min(0).sqrt() + tr1 * spread)
        tail1 = largest * gg_1.abs() + entry * tr1 + 2 * gram1 + by_h
        tail2 = 2 * largest * gg_12.abs() + 3 * largest.square() * one_one + 2 * entry * tr12 + 8 * gram1 + 2 * by_h
        root = self.squares.sum().sqrt()
        shift = (p + k + 8) * _U64 * self.degrees**0.5 * root * (norm / k**0.5 + self.origin_norm)
        tail_form = largest * gbgb + 3 * gram * total * bb + 2 * (wide * root * norm * bb.sqrt() + shift) * xx.sqrt()
        bound = _relative(shrunk, shrunk2, form, tail1, tail2, tail_form, self.degrees)
        return Sums(shrunk, shrunk2, form, torch.where(spread < 0.5, bound, torch.inf), spread, variances)

    def _whiten(self, queries: Tensor, space: Workspace) -> tuple[Tensor, ...]:
        """Mean of the whitened draws, x/√ν, the diagonal of E, b, and G, G₁, G₁₂; a few queries at a time.

        The parts are small enough that the draws stay in cache from their rotation to their last use, but not so
        small that the rotation is slow. Wide queries (P > 8K) have cheap Gram matrices: float64 there.
        """
        count, k, p = queries.shape
        narrow = _narrow() if p <= 8 * k else torch.float64
        single = narrow == torch.float32
        like = self.origin
        mean, variances = like.new_empty(count, p), like.new_empty(count, p)
        b = like.new_empty(count, k)
        g, weighted = (like.new_empty(count, n * k, k, dtype=narrow) for n in (1, 2))
        weights = self.weights32 if single else self.weights[:, :2].T[:, None, :]
        step = max(1, _CACHE // (8 * k * p), p // k)
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            n = part.stop - start
            rows = queries[part].reshape(n * k, p)
            if rows.dtype != torch.float64:
                rows = space.take("rows", torch.float64, n * k, p).copy_(rows)
            white = space.take("white", torch.float64, n, k, p)
            torch.mm(rows, self.whitening, out=white.view(n * k, p))
            torch.mean(white, 1, out=mean[part])
            white.sub_(mean[part, None])
            b[part] = (white @ (mean[part] - self.origin)[:, :, None])[:, :, 0]
            y = space.take("y", torch.float32, n, k, p).copy_(white) if single else white
            scratch = space.take("scratch", narrow, n, 2, k, p)
            squares = torch.mul(y, y, out=scratch.view(-1)[: y.numel()].view_as(y))
            variances[part] = squares.sum(1)
            torch.bmm(y, y.mT, out=g[part])
            torch.mul(y[:, None], weights, out=scratch)
            torch.bmm(scratch.view(n, 2 * k, p), y.mT, out=weighted[part])
        return mean, mean - self.origin, variances, b * self.degrees**0.5, g, weighted[:, :k], weighted[:, k:]

    def _over_columns(self, queries: Tensor, space: Workspace, thorough: bool) -> Sums:
        """Order by order in E, with x = D^{-1/2}d and N = (I + E)⁻¹:

        shrunk  = Σu  + tr HE - tr HE²N,               HE²N ≈ HE² - HE³
        shrunk2 = Σu² + 2 tr HuE - 2 tr HuE²N + tr HENHEN
        form    = x'x - x'Ex + x'E²x - x'E³x + ...

        With ρ ≥ E's largest eigenvalue (`_radius`, or ε), E/(1 + ρ) ≼ EN ≼ E. So tr HE²N and tr HuE²N are at least
        1/(1 + ρ) times their values at N = I, and tr HENHEN, which grows with EN, lies between 1/(1 + ρ)² and 1
        times tr HEHE. From above, t/(1 + t) being concave, tr HE²N ≤ tr HE² / (1 + tr HE² / tr HE), likewise with
        Hu: Jensen's inequality over E's eigenvalues. Where these ranges are narrow enough their upper ends serve
        and E² is not needed; `thorough` forms it and goes one order further.
        """
        k, p = queries.shape[1:]
        x, norm2, variances, rows, y, cubic, radius = self._squares(queries, space, thorough)
        tr1, tr12, _ = (variances @ self.weights).unbind(1)
        row_h, row = rows[:, :, 0], rows[:, :, 1]
        h, hu = self.h, self.h * self.u
        e2_1, e2_12, ehe = row @ h, row @ hu, row_h @ h
        spread = row.sum(1).sqrt() * (1 + p * _U32)
        narrow, wide = (p + 8) * _U32, 4 * (k + 2 * p + 8) * _U64
        by_h = wide * (self.h @ self.squares) * norm2  # rounding of E in float64
        if thorough:
            cube_h, cube = rows[:, :, 2], rows[:, :, 3]
            e3_1, e3_12, e2he = cube @ h, cube @ hu, cube_h @ h
            shrunk = self.base + tr1 - e2_1 + e3_1
            shrunk2 = self.base2 + 2 * tr12 + (ehe - 2 * e2_12) + 2 * (e3_12 - e2he)
            later = narrow * (e2_1 + 2 * spread.pow(3))  # rounding of the later terms in float32
            tail1 = spread * e3_1.abs() + later
            tail2 = (2 + 5 / (1 - spread.clamp(max=0.5)).square()) * spread * e3_1.abs() + 4 * later
        else:
            least = 1 / (1 + torch.minimum(spread, radius * (1 + 4 * p * _U32)))
            most1, most12 = (1 / (1 + e2 / tr.clamp_min(1e-300)) for e2, tr in ((e2_1, tr1), (e2_12, tr12)))
            shrunk = self.base + tr1 - e2_1 * most1
            shrunk2 = self.base2 + 2 * (tr12 - e2_12 * most12) + ehe * most1.square()
            tail1 = e2_1 * (most1 - least + narrow)
            tail2 = 2 * e2_12 * (most12 - least + narrow) + ehe * (1 - least.square() + narrow)
        xx, xy, yy = (torch.linalg.vecdot(a, b) for a, b in ((x, x), (x, y), (y, y)))
        form = xx - xy + yy - cubic
        size = self.squares.sum()
        shift = (p + k + 8) * _U64 * (self.degrees * size).sqrt() * ((norm2 / k).sqrt() + self.origin_norm)
        tail_form = (spread + narrow) * cubic.abs() + 2 * narrow * spread * yy + wide * size * norm2 * xx
        tail_form = tail_form + 2 * shift * xx.sqrt()
        bound = _relative(shrunk, shrunk2, form, tail1 + by_h, tail2 + 4 * by_h, tail_form, self.degrees)
        return Sums(shrunk, shrunk2, form, torch.where(spread < 0.5, bound, torch.inf), spread, variances)

    def _squares(self, queries: Tensor, space: Workspace, thorough: bool) -> tuple[Tensor, ...]:
        """x, ‖X‖², the diagonal of E, row sums of E∘E (weighted by h, and plain), Ex, x'E³x, ρ.

        If `thorough`, row sums of E²∘E too. A few queries at a time, for the cache's sake: products of [P, K] rows
        in small parts, of [P, P] in larger.
        """
        count, k, p = queries.shape
        like, take = self.origin, space.take
        x, norm2, radius = like.new_empty(count, p), like.new_empty(count), like.new_empty(count)
        variances, y, cubic = like.new_empty(count, p), like.new_empty(count, p), like.new_empty(count)
        rows = like.new_empty(count, p, 4 if thorough else 2)
        both = torch.stack([self.h, torch.ones_like(self.h)], 1).to(_narrow())
        left, single = self.whitening.T, _narrow()
        step = max(1, _STEP // (8 * p * p))
        fine = max(1, _CACHE // (8 * k * p))
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            n = part.stop - start
            scatter, half = take("scatter", torch.float64, n, p, p), take("half", torch.float64, n, p, p)
            centre = like.new_empty(n, p)
            for at in range(0, n, fine):
                some = slice(at, min(at + fine, n))
                draws = queries[part][some]
                if draws.dtype != torch.float64:
                    draws = take("rows", torch.float64, *draws.shape).copy_(draws)
                torch.bmm(draws.mT, draws, out=scatter[some])  # before the mean: it hides the memory's latency
                torch.mean(draws, 1, out=centre[some])
            norm2[part] = scatter.diagonal(dim1=1, dim2=2).sum(1)
            scatter.baddbmm_(centre[:, :, None], centre[:, None, :], alpha=-k)
            torch.mm(scatter.view(n * p, p), self.whitening, out=half.view(n * p, p))
            torch.bmm(left.expand(n, p, p), half, out=scatter)  # E, in the scatter's memory
            variances[part] = scatter.diagonal(dim1=1, dim2=2)
            torch.mul(centre @ self.whitening - self.origin, self.degrees**0.5, out=x[part])
            y[part] = (scatter @ x[part, :, None])[:, :, 0]
            e = take("e", single, n, p, p).copy_(scatter)
            y32 = y[part].to(single)
            cubic[part] = (y32 * (e @ y32[:, :, None])[:, :, 0]).sum(1)
            squared = torch.mul(e, e, out=take("squared", single, n, p, p))
            rows[part, :, :2] = (squared.view(n * p, p) @ both).view(n, p, 2)
            if thorough:
                e2 = torch.bmm(e, e, out=squared)
                rows[part, :, 2:] = (e2.mul_(e).view(n * p, p) @ both).view(n, p, 2)
            radius[part] = _radius(e.abs_())
        return x, norm2, variances, rows, y, cubic, radius


def _narrow() -> torch.dtype:
    """The type of what follows the first order: float32, unless its products have been allowed to be less than that.

    `torch.set_float32_matmul_precision` and its newer kin can turn them into products of 8 or 11 bits.
    """
    try:
        backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        whole = all(backend.fp32_precision in ("none", "ieee") for backend in backends)
    except AttributeError:  # a torch that has the one setting alone
        whole = torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if whole else torch.float64


def _dot(a: Float[Tensor, "B N"], b: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """Inner product of each pair, added up in float64: of many terms, whose rounding would be too much in float32."""
    return (a * b).sum(1, dtype=torch.float64)


def _radius(size: Float[Tensor, "B N N"]) -> Float[Tensor, " B"]:
    """From |E|: max (|E|v)ᵢ/vᵢ with v = |E|1, at least the spectral radius of |E| (Collatz, Wielandt), thus ‖E‖.

    Off by rounding, relatively, at most 4N units. A row of zeros counts for nothing.
    """
    v = size.sum(2)
    return ((size @ v[:, :, None])[:, :, 0] / v.clamp_min(1e-30)).amax(1).to(torch.float64)


def _relative(
    shrunk: Tensor,
    shrunk2: Tensor,
    form: Tensor,
    tail1: Tensor,
    tail2: Tensor,
    tail_form: Tensor,
    degrees: int,
) -> Tensor:
    """The largest relative error that Θ₁ = U/(Px), Θ₂ = (Σu² - U²/ν)/(Px⁴) and RHT can have, x = 1 - U/ν."""
    x = (1 - shrunk / degrees).clamp_min(1e-300)
    squares = (shrunk2 - shrunk.square() / degrees).clamp_min(1e-300)
    of_x = tail1 / (degrees * x)
    of_theta1 = tail1 / shrunk.clamp_min(1e-300) + of_x
    of_theta2 = (tail2 + 2 * shrunk * tail1 / degrees) / squares + 4 * of_x
    of_form = torch.where(tail_form > 0, tail_form / form.clamp_min(1e-300), 0.0)
    return torch.maximum(torch.maximum(of_theta1, of_theta2), of_form)


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
