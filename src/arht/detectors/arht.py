"""ARHT as a detector: the ridge chosen for each query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from arht._shapes import Float, Tensor
from arht.detectors.base import Tail
from arht.detectors.embedding import Against, EmbeddingDetector, Side
from arht.detectors.measured import Measured
from arht.errors import InputError
from arht.stats._checks import as_ridges
from arht.stats.adaptive import Priors, as_priors
from arht.stats.nulls import AsymptoticLaw, CubeRoot, Normal, as_null
from arht.stats.results import TestResult
from arht.stats.scoring import arht_scores

__all__ = ["ARHTDetector"]


class ARHTDetector(EmbeddingDetector):
    """The adaptable regularised Hotelling T² of each query's draws against the reference, as in the paper.

    The statistic is `arht_scores`', standardised RHT at the query's own best ridge. Per class, the ridge, Θ₁ and Θ₂
    are the query's with the within-class covariance, and the smallest standardised RHT counts; relative, it is the
    difference of the two on the scale of the paper's equation 4, which is linear in RHT, since a difference of
    quadratic forms is a log-likelihood ratio and one of their cube roots is not.

    Parameters
    ----------
    ridge : float or None
        λ₀ of the paper. ``None`` takes the 200 ridges of `Reference.default_ridges`, `multiples` aside.
    multiples : sequence of float
        The grid is λ₀ times these.
    prior : weights
        Of I, Σ, Σ² in the covariance of the mean difference that the ridge is chosen for; the paper's (0, 1, 0). With
        reference="global", several are allowed.
    ridge_unit : {"absolute", "mean_eigenvalue"}
        ``"absolute"``: λ₀ is added to the covariance as it is, as in the paper; its effect depends on the units of
        the embedding. ``"mean_eigenvalue"``: λ₀ is in units of the reference covariance's mean eigenvalue, so that
        rescaling the embedding changes nothing.
    null : str or law
        The asymptotic law of p-values before calibration, by name.
    reference, tail, combine, keep
        As in `EmbeddingDetector`.

    Examples
    --------
    >>> import numpy as np, arht
    >>> rng = np.random.default_rng(0)
    >>> detector = arht.ARHTDetector().fit(rng.normal(size=(2000, 16))).calibrate(rng.normal(size=(999, 16)))
    >>> result = detector.test(np.stack([np.zeros(16), np.full(16, 2.0)]))
    >>> result.guarantee, float(result.pvalue[1]), result.decide(fdr=0.05).rejected.tolist()
    ('conformal', 0.001, [False, True])
    """

    method = "arht"

    def __init__(
        self,
        ridge: float | None = 0.01,
        multiples: Sequence[float] = (1, 5, 10),
        prior: Priors = (0, 1, 0),
        *,
        ridge_unit: Literal["absolute", "mean_eigenvalue"] = "absolute",
        null: str = "cube_root",
        reference: Against = "global",
        tail: Tail = "upper",
        combine: str = "fisher",
        keep: int = 256,
    ) -> None:
        super().__init__(reference=reference, tail=tail, combine=combine, keep=keep)
        who = type(self).__name__
        self.ridge, self.multiples, self.prior, self.ridge_unit, self.null = ridge, multiples, prior, ridge_unit, null
        self._check_choice("ridge_unit", ridge_unit, ("absolute", "mean_eigenvalue"))
        if ridge is not None:
            as_ridges(who, ridge)
            as_ridges(who, multiples)
        law = as_null(who, null)
        if not isinstance(law, AsymptoticLaw):
            raise InputError(
                f"{who}: null must be an asymptotic law; got {null!r}. For p-values that hold at any size, "
                "call calibrate(heldout)."
            )
        self._asymptotic = law
        self._priors = as_priors(who, prior)
        if len(self._priors) > 1 and reference != "global":
            raise InputError(
                f"{who}: reference={reference!r} takes one prior; got {len(self._priors)}. Several are for 'global'."
            )

    def _ridges(self, side: Side) -> Float[Tensor, " R"]:
        if self.ridge is None:
            return side.reference.default_ridges()
        grid = self.ridge * torch.as_tensor(self.multiples, dtype=torch.float64)
        if self.ridge_unit == "mean_eigenvalue":
            grid = grid * (side.reference.eigenvalues.mean() / (side.reference.n - 1))
        return grid

    def _scored(self, side: Side, queries: Tensor, law: AsymptoticLaw) -> TestResult:
        return arht_scores(queries, side.reference, ridges=self._ridges(side), priors=self._priors, null=law)

    def _constant(self, side: Side) -> tuple[float, Tensor, Tensor]:
        """Ridge, Θ₁ and Θ₂ of a query of one draw: its covariance is the reference's, whatever the query."""
        key = "global" if side.labels is None else "class"
        if key not in self._constants:
            found = self._scored(side, side.reference.mean[None, None], self._asymptotic)
            self._constants[key] = float(found.ridge[0]), found.theta1[0], found.theta2[0]
        ridge, theta1, theta2 = self._constants[key]
        return ridge, theta1, theta2

    def _measure_global(self, queries: Tensor) -> Measured:
        side = self._global
        if queries.shape[1] == 1 and len(self._priors) == 1:
            ridge, theta1, theta2 = self._constant(side)
            rht = side.weights(1) * side.forms(queries, ridge)
            law, width = self._asymptotic, queries.shape[2]
            statistic = law.standardise(rht, theta1, theta2, width)[:, 0]
            found = Measured.of(queries, statistic, guarantee=law.guarantee, null=repr(law))
            if self._law is None:
                found.pvalue = law.single(rht, theta1, theta2, width)[:, 0]
            values = torch.stack([theta1.new_tensor(ridge), theta1, theta2])[:, None].expand(3, len(queries))
            found.ridge, found.theta1, found.theta2 = values.clone()
            return found
        r = self._scored(side, queries, self._asymptotic)
        fields = {name: getattr(r, name) for name in ("pvalue", "guarantee", "null", "pvalue_error", "ridge", "priors")}
        return Measured(r.statistic, r.score, r.outcome, theta1=r.theta1, theta2=r.theta2, **fields)

    def _values(self, side: Side, queries: Tensor) -> Float[Tensor, "B C"]:
        draws, width = queries.shape[1:]
        law: AsymptoticLaw = Normal() if self.reference == "relative" else CubeRoot()
        if draws == 1:
            ridge, theta1, theta2 = self._constant(side)
            rht = side.weights(1) * side.forms(queries, ridge)
            return law.standardise(rht, theta1, theta2, width)
        found = self._scored(side, queries, law)
        if side.labels is None:
            return found.statistic[:, None]
        rht = side.weights(draws) * side.forms(queries, found.ridge)
        return law.standardise(rht, found.theta1[:, None], found.theta2[:, None], width)

    def _metric(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Tensor, int | None]:
        nu = side.degrees(queries.shape[1])
        ridge = measured.ridge
        if ridge is None:
            ridge = self._scored(side, queries, self._asymptotic).ridge
        return 1 / (side.reference.eigenvalues / nu + ridge[:, None]), nu

    def _slope(self, side: Side, queries: Tensor) -> Tensor:
        weights = side.weights(queries.shape[1])
        if self.reference != "relative":
            return weights[None]
        if queries.shape[1] == 1:
            theta2 = self._constant(side)[2][None]
        else:
            theta2 = self._scored(side, queries, Normal()).theta2
        return weights * (queries.shape[2] ** -0.5 / (2 * theta2).sqrt())[:, None]  # of Normal.standardise
