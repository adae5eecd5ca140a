"""ARHT of many queries against one reference, the ridge chosen for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from arht._shapes import Float, Tensor
from arht.errors import InputError
from arht.stats._checks import as_draws, as_ridges, restorer
from arht.stats.adaptive import Priors, as_priors
from arht.stats.exact import Cloud, dense, low_rank
from arht.stats.nulls import AsymptoticLaw, Conformal, CubeRoot, NullLaw, Permutation, as_null
from arht.stats.perturbation import TOLERANCE, Frame, Sums, Workspace
from arht.stats.reference import Reference
from arht.stats.results import Outcome, PriorResults, TestResult
from arht.stats.spectrum import Spectrum, population_moments, prior_scores, thetas_from_sums

__all__ = ["arht_scores", "arht_stream"]

_FEW_RIDGES = 8
_KEPT = 128 << 20  # bytes of frames that stay with a reference
_CHOICES = 16  # ridges that are known without a query, as many stay with it
_TOGETHER = 1 << 16  # numbers in the matrices of the queries that are answered exactly at a time


def arht_scores(
    draws: Any,
    reference: Reference | Any,
    *,
    ridges: Any = None,
    priors: Priors = (0, 1, 0),
    null: str | NullLaw = "cube_root",
    memory: int = 128 << 20,
) -> TestResult:
    """ARHT of each query's K draws against the reference: the two-sample test of `arht_test`, B times.

    Null hypothesis, for each query: its draws have the reference's mean. Every query has its own pooled
    covariance, its own ridge (the one that maximises Q for it) and its own Θ₁ and Θ₂; the numbers are those of
    ``arht_test(reference_rows, draws[i])`` with the same ridges. With one draw a query it is the test of one
    observation.

    The asymptotic p-value treats the K draws as K independent rows of the reference population. Draws of one input
    are not: they share the input. It is a working model and ranks queries; for a p-value that holds, calibrate
    the scores on held-out inputs and pass ``null=Conformal(scores)``.

    Parameters
    ----------
    draws : array-like [B, K, P] or [B, P]
        float32 or float64. A query with a NaN or an infinity is marked in `outcome`, has a NaN p-value and leaves
        all others as they are, bit for bit.
    reference : Reference, Moments or rows [n, P]
        Factor it once with `Reference.of` if it is used again.
    ridges : list of float, optional
        Default: `Reference.default_ridges` (200 of them). The paper's grid is ``[λ₀, 5 λ₀, 10 λ₀]``, and few ridges
        are faster.
    priors, null
        As in `arht_test`; here one prior, the paper's ``(0, 1, 0)``, is the default.
    memory : int
        Bytes of working space; the number of queries does not enter.

    Returns
    -------
    TestResult
        Arrays [B]; `priors` holds [B, M] where several priors were given.

    Examples
    --------
    >>> import numpy as np, arht
    >>> rng = np.random.default_rng(0)
    >>> reference = arht.Reference.of(rng.normal(size=(5000, 40)))
    >>> draws = rng.normal(size=(3, 20, 40)) + np.array([0.0, 0.0, 0.5])[:, None, None]
    >>> result = arht.arht_scores(draws, reference, ridges=[0.01, 0.05, 0.1])
    >>> int(result.score.argmax()), bool(result.pvalue[2] < 1e-6)
    (2, True)
    """
    who = "arht_scores"
    if not isinstance(reference, Reference):
        reference = Reference.of(reference)
    law = as_null(who, null)
    if isinstance(law, Permutation) or not isinstance(law, AsymptoticLaw | Conformal):
        raise InputError(
            f"{who}: null must be an asymptotic law or Conformal; got {law!r}. A permutation needs the reference's "
            "rows: use arht_test on them."
        )
    weights = as_priors(who, priors)
    queries = as_draws(who, draws, reference.width).to(reference.mean.device)
    grid = reference.default_ridges() if ridges is None else as_ridges(who, ridges).to(reference.mean.device)
    engine = _Engine(reference, grid, weights, queries.shape[1])
    parts = [engine(block) for block in queries.split(engine.block(memory))]
    found = _Found.join(parts) if parts else engine.nothing()
    return _result(found, law, reference.width, len(weights) > 1, restorer(draws))


def arht_stream(chunks: Iterable[Any], reference: Reference | Any, **options: Any) -> Iterator[TestResult]:
    """`arht_scores` of each chunk of queries in turn: memory stays that of one chunk."""
    if not isinstance(reference, Reference):
        reference = Reference.of(reference)
    for chunk in chunks:
        yield arht_scores(chunk, reference, **options)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the engine finds for a block: per query and prior, at the chosen ridge."""

    ridge: Float[Tensor, "B M"]
    rht: Float[Tensor, "B M"]
    theta1: Float[Tensor, "B M"]
    theta2: Float[Tensor, "B M"]
    correlation: Float[Tensor, "B M M"] | None
    outcome: Tensor

    @classmethod
    def join(cls, parts: list[_Found]) -> _Found:
        if len(parts) == 1:
            return parts[0]
        correlation = None
        if parts[0].correlation is not None:
            correlation = torch.cat([part.correlation for part in parts if part.correlation is not None])
        return cls(
            torch.cat([part.ridge for part in parts]),
            torch.cat([part.rht for part in parts]),
            torch.cat([part.theta1 for part in parts]),
            torch.cat([part.theta2 for part in parts]),
            correlation,
            torch.cat([part.outcome for part in parts]),
        )

    def put(self, rows: Tensor, other: _Found, which: Tensor | slice) -> None:
        """Overwrite these rows by those of the other."""
        for name in ("ridge", "rht", "theta1", "theta2", "outcome"):
            getattr(self, name)[rows] = getattr(other, name)[which]


class _Engine:
    """One reference, one grid, one K: everything that queries share."""

    def __init__(
        self, reference: Reference, ridges: Float[Tensor, " R"], priors: list[list[float]], draws: int
    ) -> None:
        self.reference, self.ridges, self.draws = reference, ridges, draws
        self.priors = [_without_last_zeros(prior) for prior in priors]
        self.degrees = reference.n + draws - 2
        if self.degrees < 1:
            raise InputError(
                f"arht_scores: needs n1 + K - 2 >= 1; got n1={reference.n}, K={draws}. "
                "No covariance can be estimated; give more rows."
            )
        self.width = reference.width
        self.weight = reference.n * draws / (reference.n + draws)
        self.eigenvalues = reference.eigenvalues / self.degrees
        self.order = max(map(len, self.priors))
        self.joint = len(priors) > 1
        # Θ from sums loses no digits while ν ≥ 2P; moments of order two and more need the eigenvalues themselves
        self.use_series = self.degrees >= 2 * self.width and self.order <= 3 and not self.joint and draws > 1
        self.space = Workspace(self.ridges.device)
        self.key = draws, tuple(ridges.tolist())
        self.guess = 0
        if self.use_series:
            choices = reference.prepared.setdefault("choices", {})
            asked = *self.key, *self.priors[0]
            known = choices.get(asked)
            self.guess = self._choice_without_query() if known is None else known
            if known is None and len(choices) >= _CHOICES:
                choices.clear()
            choices[asked] = self.guess

    def block(self, memory: int) -> int:
        """Queries at a time for that many bytes; more than keep the processor busy are no gain."""
        k, p = self.draws, self.width
        each = 32 * k * p + 24 * (p + k * k) if k < p else 8 * k * p + 40 * p * p
        if not self.use_series:
            each += 24 * p * p
        return max(1, min(1024, memory // each))

    def nothing(self) -> _Found:
        """The answer to no queries."""
        return self._blank(0)

    def __call__(self, queries: Float[Tensor, "B K P"]) -> _Found:
        first = self._series(queries, self.guess) if self.use_series else None
        # a NaN or an infinity reaches every sum of its query, and no other's
        sums = queries.sum((1, 2)) if first is None else first.form
        finite = torch.isfinite(sums)
        if not bool(finite.all()):
            finite = torch.isfinite(queries).flatten(1).all(1)
            queries = torch.where(finite[:, None, None], queries, 0.0)
            first = self._series(queries, self.guess) if self.use_series else None
        found = self._by_eigenvalues(self._cloud(queries)) if first is None else self._by_series(queries, first)
        undefined = ~(torch.isfinite(found.rht) & (found.theta2 > 0) & (found.theta1 > 0)).all(1)
        found.outcome[undefined] = int(Outcome.DEGENERATE)
        found.outcome[~finite] = int(Outcome.NOT_FINITE)
        return found

    def _cloud(self, queries: Tensor) -> Cloud:
        return Cloud.of(queries, self.reference.basis, self.reference.mean, self.eigenvalues, self.degrees)

    def _blank(self, count: int) -> _Found:
        m, like = len(self.priors), self.ridges
        ridge, rht, theta1, theta2 = like.new_full((4, count, m), torch.nan)
        return _Found(
            ridge,
            rht,
            theta1,
            theta2,
            like.new_full((count, m, m), torch.nan) if self.joint else None,
            torch.zeros(count, dtype=torch.int8, device=like.device),
        )

    # one prior, ν ≥ 2P, K > 1: by series at the ridge that is best for nearly all, then for the others ------------

    def _by_series(self, queries: Tensor, first: Sums) -> _Found:
        """Every query is answered by the frame of its own best ridge, whatever its neighbours' ridges are."""
        found = self._blank(queries.shape[0])
        wanted = self._try(first, self.guess, found)
        todo = found.rht[:, 0].isnan()
        for index in sorted(set(wanted[todo & (wanted >= 0)].tolist())):
            self._try(self._series(queries, index), index, found)
        rest = found.rht[:, 0].isnan().nonzero()[:, 0]
        # always as many together, some of them twice: a product's last digits depend on their number
        together = max(1, min(32, _TOGETHER // (self.width * min(self.width, self.draws))))
        for part in rest.split(together):
            if len(part):
                padded = part[torch.arange(together, device=part.device) % len(part)]
                found.put(part, self._exactly(self._cloud(queries[padded])), slice(len(part)))
        return found

    def _series(self, queries: Tensor, index: int) -> Sums:
        """At one ridge; with one order more for the queries that need it."""
        frame = self._frame(index)[0]
        sums = frame.series(queries, self.space, thorough=not frame.one_less)
        if frame.one_less:
            rest = ((sums.bound > TOLERANCE) & torch.isfinite(sums.bound)).nonzero()[:, 0]
            if len(rest):  # of the whole block: a product's last digits depend on its number of rows
                sums.put(rest, frame.series(queries, self.space))
        return sums

    def _frame(self, index: int) -> tuple[Frame, tuple[Tensor, ...], Tensor]:
        """What is shared at one ridge, kept with the reference for the next call."""
        key = (*self.key, index)
        kept = self.reference.prepared
        found: tuple[Frame, tuple[Tensor, ...], Tensor] | None = kept.get(key)
        if found is None:
            reference = self.reference
            frame = Frame(
                reference.basis, reference.mean, self.eigenvalues, self.degrees, float(self.ridges[index]), self.draws
            )
            weight1, weight2, *bases = frame.first_order(self.ridges)
            weights = torch.cat([weight1, weight2, 1 / frame.inverse[:, None]], 1)  # of the trace, last
            found = frame, (weights, *bases), frame.stretch(self.ridges)
            limit = max(2, min(16, _KEPT // (8 * self.width**2)))
            frames = [old for old in list(kept) if old != "choices"]
            for old in frames[: max(0, len(frames) + 1 - limit)]:
                kept.pop(old, None)
            kept[key] = found
        return found

    def _try(self, sums: Sums, index: int, found: _Found) -> Tensor:
        """Fill in the queries whose best ridge this is, beyond doubt; tell the best ridge of others (-1: in doubt)."""
        _, (weights, base1, base2), stretch = self._frame(index)
        first = sums.variances @ weights
        count = len(self.ridges)
        shrunk, shrunk2 = base1 + first[:, :count], base2 + first[:, count : 2 * count]
        trace = self.eigenvalues.sum() + first[:, -1]
        q = self._q(shrunk, shrunk2, trace)[0]
        margin = self._margin(shrunk, shrunk2, trace, sums.spread[:, None] * stretch)
        best = q.argmax(1)
        low = (q * (1 - margin)).gather(1, best[:, None])[:, 0]
        beyond_doubt = low > (q * (1 + margin)).scatter(1, best[:, None], -torch.inf).amax(1)
        good = beyond_doubt & (best == index) & (sums.bound <= TOLERANCE)
        theta1, theta2 = thetas_from_sums(sums.shrunk, sums.shrunk2, self.width, self.degrees)
        values = (self.ridges[best], self.weight * sums.form, theta1, theta2)
        for target, value in zip((found.ridge, found.rht, found.theta1, found.theta2), values, strict=True):
            target[:, 0] = torch.where(good, value, target[:, 0])
        return torch.where(beyond_doubt & (best != index), best, -1)

    def _choice_without_query(self) -> int:
        """The ridge that Q prefers for the reference alone: a good guess for queries that it dominates."""
        inverse = 1 / (self.eigenvalues[:, None] + self.ridges)
        u = self.eigenvalues[:, None] * inverse
        trace = self.eigenvalues.sum()[None]
        return int(self._q(u.sum(0)[None], u.square().sum(0)[None], trace)[0].argmax())

    def _q(self, shrunk: Tensor, shrunk2: Tensor, trace: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q [B, R] of the one prior, Θ₁ and Θ₂."""
        theta1, theta2 = thetas_from_sums(shrunk, shrunk2, self.width, self.degrees)
        stieltjes = (self.width - shrunk) / (self.width * self.ridges)
        mean = (trace / self.width)[:, None]
        q = prior_scores(self.priors, self.ridges, stieltjes, theta1, theta2, mean, self.width / self.degrees)
        return q[:, 0], theta1, theta2

    def _margin(self, shrunk: Tensor, shrunk2: Tensor, trace: Tensor, epsilon: Tensor) -> Float[Tensor, "B R"]:
        """How far, relatively, Q from first-order sums can be from Q; inf where nothing can be said."""
        nu, p = self.degrees, self.width
        safe = epsilon.clamp(max=0.5)
        off1 = safe.square() / (1 - safe) + 1e-5 * safe  # and the variances' own rounding
        off2 = 5 * off1 / (1 - safe)
        x = 1 - shrunk / nu
        of_x = off1 / (nu * x)
        theta1 = shrunk / (p * x)
        of_theta1 = off1 / shrunk + of_x
        squares = (shrunk2 - shrunk.square() / nu).clamp_min(1e-300)
        of_root = 0.5 * ((off2 + 2 * shrunk * off1 / nu) / squares + 4 * of_x)
        terms = [off1 / (p - shrunk).clamp_min(1e-300), of_theta1]
        if self.order > 2:
            rho2 = ((trace / p)[:, None] - self.ridges * theta1) / x
            terms.append(self.ridges * theta1 * of_theta1 / (x * rho2.clamp_min(1e-300)) + of_x)
        used = [term for term, weight in zip(terms, self.priors[0], strict=False) if weight > 0]
        worst = torch.stack(used).amax(0) + of_root
        # of a quotient: (1 + a)/(1 - b) - 1 ≤ 2(a + b) while a + b is small; beyond, nothing is certain
        return torch.where((worst < 0.25) & (epsilon < 0.5), 2 * worst, torch.inf)

    # exactly -----------------------------------------------------------------------------------------------------

    def _exactly(self, cloud: Cloud) -> _Found:
        """Without the series: K × K factorisations at every ridge where these are few, eigenvalues otherwise."""
        if self.draws >= self.width or self.ridges.numel() > _FEW_RIDGES:
            return self._by_eigenvalues(cloud)
        each = [torch.stack(low_rank(cloud, float(ridge))) for ridge in self.ridges]
        shrunk, shrunk2, form, magnified = torch.stack(each, -1)  # [B, R] each
        q, theta1, theta2 = self._q(shrunk, shrunk2, cloud.traces())
        best = q.argmax(1, keepdim=True)
        outcome = torch.zeros(len(best), dtype=torch.int8, device=q.device)
        rht, theta1, theta2 = (value.gather(1, best) for value in (self.weight * form, theta1, theta2))
        found = _Found(self.ridges[best], rht, theta1, theta2, None, outcome)
        worse = (~(magnified.gather(1, best)[:, 0] <= TOLERANCE)).nonzero()[:, 0]
        if len(worse):
            found.put(worse, self._by_eigenvalues(cloud), worse)
        return found

    def _by_eigenvalues(self, cloud: Cloud) -> _Found:
        """Any prior, any shape: eigenvalues of every pooled covariance (of the reference's own where K = 1)."""
        count = cloud.difference.shape[0]
        keep = min(self.width, self.degrees)
        if self.draws == 1:
            values, squares = self.eigenvalues[None], cloud.difference.square()
        else:
            values, squares = dense(cloud)
        spectrum = Spectrum(values[:, :keep], self.width, self.degrees)
        best = torch.cat([self._best(part) for part in spectrum.split((32 << 20) // (8 * keep * self.ridges.numel()))])
        ridge = self.ridges[best]  # [B or 1, M]
        theta1, theta2 = spectrum.thetas(ridge)
        correlation = spectrum.correlation(ridge) if self.joint else None
        rht = self.weight * torch.stack([(squares / (values + r[:, None])).sum(-1) for r in ridge.unbind(1)], 1)
        found = self._blank(count)
        found.ridge[:], found.rht[:], found.theta1[:], found.theta2[:] = ridge, rht, theta1, theta2
        if found.correlation is not None and correlation is not None:
            found.correlation[:] = correlation
        return found

    def _best(self, spectrum: Spectrum) -> Tensor:
        grid = self.ridges.expand(spectrum.eigenvalues.shape[0], -1)
        moments = population_moments(spectrum.power_sums(max(self.order - 2, 1)), spectrum.ratio)
        theta1, theta2 = spectrum.thetas(grid)
        q = prior_scores(self.priors, grid, spectrum.stieltjes(grid), theta1, theta2, moments, spectrum.ratio)
        return q.argmax(-1)


def _without_last_zeros(prior: list[float]) -> list[float]:
    """The same prior: what has no weight is not computed."""
    return prior[: max(i for i, weight in enumerate(prior, 1) if weight > 0)]


def _result(found: _Found, law: NullLaw, width: int, joint: bool, back: Any) -> TestResult:
    scale = law if isinstance(law, AsymptoticLaw) else CubeRoot()
    standard = scale.standardise(found.rht, found.theta1, found.theta2, width)
    ok = found.outcome == Outcome.OK
    score, winner = standard.max(-1)
    index = winner[:, None]
    score = torch.where(ok, score, torch.nan)
    error = 0.0
    if isinstance(law, Conformal):
        pvalue = law.pvalue(score)
    elif not joint:
        assert isinstance(law, AsymptoticLaw)
        pvalue = law.single(found.rht, found.theta1, found.theta2, width)[:, 0]
    else:
        assert isinstance(law, AsymptoticLaw)
        assert found.correlation is not None
        pvalue = torch.full_like(score, torch.nan)
        if bool(ok.any()):
            pvalue[ok], relative = law.composite(
                score[ok], found.theta1[ok], found.theta2[ok], width, found.correlation[ok]
            )
            error = float(relative.max())
    pvalue = torch.where(ok, pvalue, torch.nan)
    priors = None
    if joint:
        priors = PriorResults(
            ridge=back(found.ridge),
            statistic=back(standard),
            pvalue=back(scale.single(found.rht, found.theta1, found.theta2, width)),
            theta1=back(found.theta1),
            theta2=back(found.theta2),
            correlation=back(found.correlation),
        )
    return TestResult(
        method="arht",
        statistic=back(score),
        score=back(score),
        pvalue=back(pvalue),
        pvalue_error=error,
        ridge=back(found.ridge.gather(1, index)[:, 0]),
        theta1=back(found.theta1.gather(1, index)[:, 0]),
        theta2=back(found.theta2.gather(1, index)[:, 0]),
        guarantee=law.guarantee,
        null=repr(law),
        smallest_pvalue=law.smallest_pvalue,
        outcome=back(found.outcome),
        priors=priors,
    )
