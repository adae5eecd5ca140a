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
bound on the truncated tail and on the rounding. One whose bound is above `TOLERANCE` is answered by `exact`.

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

__all__ = ["TOLERANCE", "Frame", "Sums", "Workspace"]

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

    def __init__(
        self, basis: Tensor, mean: Tensor, eigenvalues: Tensor, degrees: int, ridge: float, draws: int
    ) -> None:
        self.eigenvalues, self.degrees, self.ridge = eigenvalues, degrees, ridge
        self.inverse = 1 / (eigenvalues + ridge)
        self.h, self.u = ridge * self.inverse, eigenvalues * self.inverse
        self.squares = self.inverse / degrees  # squared column norms of the whitening
        self.whitening = basis * self.squares.sqrt()  # [P, P]
        self.origin = mean @ self.whitening
        self.origin_norm = float(torch.linalg.vector_norm(mean))
        self.weights = torch.stack([self.h, self.h * self.u, torch.ones_like(self.h), 1 / self.squares], 1)  # [P, 4]
        self.base, self.base2 = self.u.sum(), self.u.square().sum()
        self.highest, self.size = self.h.amax(), self.squares.sum()
        self.h_size = self.h @ self.squares
        self.one_less = self._mostly_one_less(draws)

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

        One order less is cheaper, and with n1 ≫ K enough; `thorough` takes it in.
        """
        if queries.shape[1] < queries.shape[2]:
            return self._over_draws(queries, space, thorough)
        return self._over_columns(queries, space, thorough)

    def _mostly_one_less(self, draws: int) -> bool:
        """Whether `series` can do with one order less for most queries that are like the reference.

        Over E always worth a try. Over G, what one order less leaves open is known beforehand, on average: for draws
        with the reference's covariance diag(E²) is Ku ((K + 1)u + Σu) / ν².
        """
        if draws >= len(self.u):
            return True
        square = draws * self.u * ((draws + 1) * self.u + self.base) / self.degrees**2
        e2_1 = square @ self.h
        unknown = e2_1 * self.highest - e2_1.square() / square.sum()
        return bool(unknown <= 0.5 * TOLERANCE * (self.base2 - self.base.square() / self.degrees))

    def _over_draws(self, queries: Tensor, space: Workspace, thorough: bool) -> Sums:
        """With N = (I + G)⁻¹ = I - G + G² - ..., G₁ = YHYᵀ, G₁₂ = YH(I - H)Yᵀ, x = D^{-1/2}d and b = Yx:

        shrunk  = Σu  + tr NG₁
        shrunk2 = Σu² + 2 tr NG₁₂ + tr NG₁NG₁
        form    = x'x - b'Nb

        One order less, the traces are read as in `_over_columns`: tr NG₁ = tr HE - tr HE²N, and so on. Of
        tr HuE² = tr HE² - tr H²E² the last, small beside the first where λ is, is not computed either: it is at
        least (tr HE²)² / tr E² (Jensen's inequality, with the weights diag E²) and tr HEHE, and at most max h · tr HE².
        The middle of the range serves.
        """
        k, p = queries.shape[1:]
        variances, sums = self._draw_sums(queries, space, thorough)
        tr1, tr12, total, norm2 = (variances @ self.weights).unbind(1)
        xx, bb, bgb, gbgb, g_g, g_1, one_one, mean2 = sums[:, :8].unbind(1)
        unit = _U32 if self._narrow(k) == torch.float32 else _U64
        entry, gram, wide = (k + 8) * unit, (p + 8) * unit, 4 * (p + k + 8) * _U64
        norm = (norm2 + k * mean2).sqrt()  # of the query itself, ‖X‖
        lost = wide * norm  # rounding of Y by the rotation, below this times a column norm of the whitening
        by_h = lost * (tr1 * self.h_size).sqrt() + lost.square() * self.h_size
        spread = g_g.sqrt() * (1 + k * k * unit) + gram * total
        spread = spread + lost * (total * self.size).sqrt() + lost.square() * self.size
        gram1 = gram * (total * one_one.sqrt() + tr1 * spread) + k * k * unit * spread * one_one.sqrt()
        # rounding of Y's entries, of Gram entries and their products, of the products in float64
        tail1, tail2 = entry * tr1 + 2 * gram1 + by_h, 2 * entry * tr12 + 10 * gram1 + 2 * by_h
        if thorough:
            radius, g_12, gg_1, gg_12, third = sums[:, 8:].unbind(1)
            largest = torch.minimum(spread, radius * (1 + 4 * k * unit) + gram * total)
            shrunk = self.base + tr1 - g_1 + gg_1
            shrunk2 = self.base2 + 2 * (tr12 - g_12 + gg_12) + one_one - 2 * third
            tail1 = tail1 + largest * gg_1.abs()
            tail2 = tail2 + 2 * largest * gg_12.abs() + 3 * largest.square() * one_one
        else:
            largest, least, most = spread, 1 / (1 + spread), 1 / (1 + g_1 / tr1.clamp_min(1e-300))
            low = least * (1 - self.highest) * g_1  # the range of tr HuE²N
            high = g_1 - torch.maximum(one_one, g_1 * (g_1 / g_g.clamp_min(1e-300)).clamp(max=1))
            shrunk = self.base + tr1 - g_1 * most
            shrunk2 = self.base2 + 2 * tr12 - (low + high) + one_one * (1 + least.square()) / 2
            tail1 = tail1 + g_1 * (most - least)
            tail2 = tail2 + (high - low) + one_one * (1 - least.square()) / 2
        rest = (gbgb / (bgb + gbgb).clamp_min(1e-300)).clamp(max=largest)  # where b is rounding alone, bgb may be < 0
        form = xx - bb + bgb - gbgb + gbgb * rest  # in [0, ρ b'G²b], as what it stands for is
        root = self.size.sqrt()
        shift = (p + k + 8) * _U64 * self.degrees**0.5 * root * (norm / k**0.5 + self.origin_norm)
        tail_form = largest * gbgb + 3 * gram * total * bb + 2 * (lost * root * bb.sqrt() + shift) * xx.sqrt()
        bound = _relative(shrunk, shrunk2, form, tail1, tail2, tail_form, self.degrees)
        return Sums(shrunk, shrunk2, form, torch.where(spread < 0.5, bound, torch.inf), spread, variances)

    def _narrow(self, draws: int) -> torch.dtype:
        """The type of Gram matrices: wide queries (P > 8K) have cheap ones, in float64."""
        return _narrow() if len(self.u) <= 8 * draws else torch.float64

    def _draw_sums(self, queries: Tensor, space: Workspace, thorough: bool) -> tuple[Tensor, Tensor]:
        """The diagonal of E, and what `_over_draws` needs of x, b, G, G₁ and G₁₂.

        That is x'x, b'b, b'Gb, b'G²b, tr G², tr GG₁, tr G₁², the squared length of the query's mean, and if thorough
        ρ, tr GG₁₂, tr G²G₁, tr G²G₁₂, tr GG₁G₁. A few queries at a time: so few that the draws stay in cache from
        their rotation to their last use, but not so few that it is slow.
        """
        count, k, p = queries.shape
        like, narrow, grams = self.origin, self._narrow(k), 2 if thorough else 1
        variances, sums = like.new_empty(count, p), like.new_empty(count, 13 if thorough else 8)
        weights = self.weights.T[:grams, None, None].to(narrow)  # [1 or 2, 1, 1, P]
        take = space.take
        step = max(1, _CACHE // (8 * k * p), p // k)
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            n = part.stop - start
            rows = queries[part].reshape(n * k, p)
            if rows.dtype != torch.float64:
                rows = take("rows", torch.float64, n * k, p).copy_(rows)
            white = take("white", torch.float64, n, k, p)
            torch.mm(rows, self.whitening, out=white.view(n * k, p))
            mean = torch.mean(white, 1)
            x = (mean - self.origin).mul_(self.degrees**0.5)
            y = take("y", narrow, n, k, p).copy_(white.sub_(mean[:, None]))
            b = white.mul_(x[:, None]).sum(2)
            weighted = take("weighted", narrow, grams, n, k, p)
            variances[part] = torch.mul(y, y, out=weighted[0]).sum(1)
            g = torch.bmm(y, y.mT, out=take("g", narrow, n, k, k))
            torch.mul(y, weights, out=weighted)
            g1, *more = (torch.bmm(z, y.mT, out=take(f"g{i}", narrow, n, k, k)) for i, z in enumerate(weighted, 1))
            gb = torch.bmm(g, b.to(narrow)[:, :, None])[:, :, 0].to(torch.float64)
            found = [_dot(x, x), _dot(b, b), _dot(b, gb), _dot(gb, gb)]
            found += [_dot(g, g), _dot(g, g1), _dot(g1, g1), mean.square() @ self.weights[:, 3]]
            for g12 in more:
                gg = g @ g
                found += [_radius(g.abs()), _dot(g, g12), _dot(gg, g1), _dot(gg, g12), _dot(g @ g1, g1)]
            torch.stack([value.to(torch.float64) for value in found], 1, out=sums[part])
        return variances, sums

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
        tr1, tr12 = (variances @ self.weights[:, :2]).unbind(1)
        row_h, row = rows[:, :, 0], rows[:, :, 1]
        h, hu = self.h, self.h * self.u
        e2_1, e2_12, ehe = row @ h, row @ hu, row_h @ h
        spread = row.sum(1).sqrt() * (1 + p * _U32)
        narrow, wide = (p + 8) * _U32, 4 * (k + 2 * p + 8) * _U64
        by_h = wide * self.h_size * norm2  # rounding of E in float64
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
        size = self.size
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


def _dot(a: Float[Tensor, "B ..."], b: Float[Tensor, "B ..."]) -> Float[Tensor, " B"]:
    """Inner product of each pair: of N numbers in float32 off by at most N·2⁻²⁴ of the product of the two norms."""
    return (a * b).flatten(1).sum(1)


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
