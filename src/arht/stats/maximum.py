"""The upper tail of the maximum of correlated normals: the null law of several statistics tried at once."""

from __future__ import annotations

import math

import numpy as np
import torch

from arht._shapes import Float, Tensor

__all__ = ["maximum_sf", "normal_sf"]

_SHIFTS = 8
_NODES = (10, 14)
_MEMORY = 64 << 20


def normal_sf(z: Tensor) -> Tensor:
    """P(Z > z), accurate far into the tail."""
    return 0.5 * torch.special.erfc(z / math.sqrt(2))


def maximum_sf(
    thresholds: Float[Tensor, "*B M"], correlation: Float[Tensor, "*B M M"], points: int = 1024
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """P(Zᵢ > tᵢ for some i), Z ~ N(0, correlation), and an estimate of its relative error.

    The event is cut into disjoint parts, "Zᵢ is above and every earlier Zⱼ is not", smallest threshold first:

        P = Σᵢ ∫_{tᵢ}^∞ φ(z) P(Zⱼ ≤ tⱼ, j < i | Zᵢ = z) dz

    so that each part keeps its own tail as a factor and a p-value of 1e-30 is as accurate, relatively, as one of
    0.3. Up to three normals the inner probability is closed (Φ, or Owen's T) and the integral is done by Gauss
    rules on panels that close in on its steep places; the stated error is the difference of a 10- and a 14-point
    rule. Beyond three, the inner probability is an integral over a cube (Genz's separation of variables) by a
    lattice rule of `points` points under 8 fixed shifts, and the stated error is three standard errors over the
    shifts. Nothing is random: the same call gives the same bits.
    """
    count = thresholds.shape[-1]
    batch = thresholds.shape[:-1]
    if count == 1:
        return normal_sf(thresholds[..., 0]), thresholds.new_zeros(batch)
    t = thresholds.reshape(-1, count)
    c = correlation.expand(*batch, count, count).reshape(-1, count, count)
    order = t.argsort(dim=-1, stable=True)
    t = t.gather(-1, order)
    c = c.gather(1, order[:, :, None].expand_as(c)).gather(2, order[:, None, :].expand_as(c))
    value, error = torch.empty_like(t[:, 0]), torch.empty_like(t[:, 0])
    rule = _by_quadrature if count <= 3 else _by_lattice
    size = 32 * sum(_NODES) if count <= 3 else _SHIFTS * points * (count + 2)
    step = max(1, _MEMORY // (8 * size))
    for start in range(0, t.shape[0], step):
        part = slice(start, start + step)
        value[part], error[part] = rule(t[part], c[part], points)
    return value.clamp(max=1.0).reshape(batch), error.reshape(batch)


def _by_quadrature(t: Float[Tensor, "B M"], c: Float[Tensor, "B M M"], points: int) -> tuple[Tensor, Tensor]:
    low = high = normal_sf(t[:, 0])
    for i in range(1, t.shape[1]):
        edges = _edges(t, c, i)
        low = low + _panels(t, c, i, edges, _NODES[0])
        high = high + _panels(t, c, i, edges, _NODES[1])
    error = torch.where(high > 0, (high - low).abs() / high, 0.0)
    return high, error + 1e-12


def _conditional(c: Tensor, i: int, j: int) -> tuple[Tensor, Tensor]:
    """Correlation of Zⱼ with Zᵢ, and the standard deviation of Zⱼ given Zᵢ (never quite zero)."""
    rho = c[:, i, j]
    return rho, ((1 - rho) * (1 + rho)).clamp_min(1e-30).sqrt()


def _edges(t: Tensor, c: Tensor, i: int) -> Float[Tensor, "B E"]:
    """Panel edges on [tᵢ, upper]: spread over the density, and dense where a bound tⱼ is crossed given Zᵢ = z."""
    start = t[:, i : i + 1]
    upper = (start.clamp_min(0).square() + 80).sqrt()
    upper = torch.where(upper > start, upper, start + 1)
    scale = 1 / start.clamp_min(1)
    edges = [start, start + scale * start.new_tensor([0.5, 1.5, 3.0, 6.0, 12.0]), upper]
    edges.append(start + (upper - start) * start.new_tensor([0.25, 0.5, 0.75]))
    for j in range(i):
        rho, sd = _conditional(c, i, j)
        steep = torch.where(rho.abs() > 1e-6, rho, 1e-6)[:, None]
        centre, width = t[:, j : j + 1] / steep, sd[:, None] / steep.abs()
        edges.append(centre + width * start.new_tensor([-9.0, -5.0, -2.5, -1.0, 0.0, 1.0, 2.5, 5.0, 9.0]))
    return torch.cat(edges, 1).clamp(start, upper).sort(1).values


def _panels(t: Tensor, c: Tensor, i: int, edges: Tensor, nodes: int) -> Float[Tensor, " B"]:
    x, w = (torch.as_tensor(v, device=t.device) for v in np.polynomial.legendre.leggauss(nodes))
    half = (edges[:, 1:] - edges[:, :-1]) / 2
    z = (edges[:, :-1] + half)[..., None] + half[..., None] * x  # [B, panels, nodes]
    bounds = []
    for j in range(i):
        rho, sd = _conditional(c, i, j)
        bounds.append((t[:, j, None, None] - rho[:, None, None] * z) / sd[:, None, None])
    if i == 1:
        inside = normal_sf(-bounds[0])
    else:
        rho0, sd0 = _conditional(c, i, 0)
        rho1, sd1 = _conditional(c, i, 1)
        partial = ((c[:, 0, 1] - rho0 * rho1) / (sd0 * sd1)).clamp(-1, 1)
        inside = _both_below(bounds[0], bounds[1], partial[:, None, None])
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return ((density * inside * w).sum(-1) * half).sum(-1)


def _both_below(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """P(Z₁ ≤ h, Z₂ ≤ k) at correlation ρ, by Owen's T function."""
    from scipy.special import owens_t

    tiny = 1e-300
    h = torch.where(h.abs() < tiny, tiny, h).clamp(-40, 40)
    k = torch.where(k.abs() < tiny, tiny, k).clamp(-40, 40)
    s = ((1 - rho) * (1 + rho)).clamp_min(1e-30).sqrt()

    def owen(a: Tensor, b: Tensor) -> Tensor:
        slope = ((b - rho * a) / (a * s)).cpu().numpy()
        return torch.from_numpy(np.asarray(owens_t(a.cpu().numpy(), slope))).to(h.device)

    opposite = ((h * k) < 0).to(h.dtype) / 2
    value = (normal_sf(-h) + normal_sf(-k)) / 2 - owen(h, k) - owen(k, h) - opposite
    return value.clamp(0, 1)


def _by_lattice(t: Float[Tensor, "B M"], c: Float[Tensor, "B M M"], points: int) -> tuple[Tensor, Tensor]:
    cube = _lattice(points, t.shape[1] - 1, t)  # [S·N, M - 1]
    marginal = normal_sf(t)  # [B, M]
    total = marginal[:, :1].expand(-1, _SHIFTS).clone()
    for i in range(1, t.shape[1]):
        inside = _all_below(t, c, i, cube, marginal[:, i])  # [B, S·N]
        total += marginal[:, i : i + 1] * inside.unflatten(1, (_SHIFTS, points)).mean(-1)
    value = total.mean(1)
    spread = 3 * total.std(1) / _SHIFTS**0.5
    return value, torch.where(value > 0, spread / value, 0.0)


def _all_below(t: Tensor, c: Tensor, i: int, cube: Tensor, marginal: Tensor) -> Float[Tensor, "B SN"]:
    """Integrand whose mean over the cube is P(Zⱼ ≤ tⱼ for all j < i | Zᵢ > tᵢ).

    Each earlier coordinate is drawn below its bound given those drawn before it, and contributes the
    probability of being there.
    """
    tiny = 1e-300
    zi = -torch.special.ndtri((marginal[:, None] * cube[:, 0]).clamp_min(tiny))
    rho = c[:, :i, i]  # correlation of the earlier ones with Zᵢ
    rest = c[:, :i, :i] - rho[:, :, None] * rho[:, None, :]
    drawn: list[Tensor] = []
    factors: list[Tensor] = []  # columns of the Cholesky factor of `rest`
    weight = torch.ones_like(zi)
    for j in range(i):
        column = rest[:, :, j].clone()
        for known in factors:
            column -= known * known[:, j : j + 1]
        sd = column[:, j].clamp_min(0).sqrt()
        singular = sd < 1e-7
        safe = torch.where(singular, 1.0, sd)
        centre = rho[:, j : j + 1] * zi
        for known, y in zip(factors, drawn, strict=True):
            centre = centre + known[:, j : j + 1] * y
        bound = (t[:, j : j + 1] - centre) / torch.where(singular, 1e-12, sd)[:, None]
        probability = normal_sf(-bound)
        weight = weight * probability
        if j + 1 < i:
            factors.append(torch.where(singular[:, None], 0.0, column / safe[:, None]))
            drawn.append(torch.special.ndtri((probability * cube[:, j + 1]).clamp(tiny, 1 - 1e-16)))
    return weight


def _lattice(points: int, dimension: int, like: Tensor) -> Float[Tensor, "SN D"]:
    """Richtmyer's lattice (multiples of √prime) folded by the tent map, under `_SHIFTS` fixed shifts."""
    primes = [2]
    while len(primes) < dimension:
        candidate = primes[-1] + 1
        while any(candidate % p == 0 for p in primes):
            candidate += 1
        primes.append(candidate)
    generator = torch.tensor(primes[:dimension], dtype=torch.float64, device=like.device).sqrt()
    index = torch.arange(1, points + 1, dtype=torch.float64, device=like.device)
    shift = torch.arange(_SHIFTS, dtype=torch.float64, device=like.device)
    offsets = (shift[:, None] * (generator * 0.5 + 0.6180339887498949) + (shift[:, None] + 0.5) / _SHIFTS) % 1
    lattice = (index[None, :, None] * generator + offsets[:, None, :]) % 1
    return (1 - (2 * lattice - 1).abs()).clamp(1e-15, 1.0).reshape(_SHIFTS * points, dimension)
