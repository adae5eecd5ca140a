"""Detectors that compare a query with the reference's means and covariance: global, per class, or relative."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch

from arht._shapes import Float, Int, Tensor
from arht.detectors._inputs import as_labels, as_queries
from arht.detectors.base import Detector, Tail
from arht.detectors.classes import ClassMoments
from arht.detectors.forms import forms, single_forms
from arht.detectors.kept import Kept
from arht.detectors.measured import Measured
from arht.detectors.results import Explanation
from arht.errors import InputError
from arht.stats.moments import Moments
from arht.stats.reference import Reference

__all__ = ["EmbeddingDetector", "Side"]

Against = Literal["global", "class", "relative"]


@dataclass(frozen=True, slots=True)
class Side:
    """What a query is measured against: one factored covariance, and one mean or one per class."""

    reference: Reference
    shifts: Float[Tensor, "C P"]
    """Each mean minus the reference's, in its eigenbasis."""
    counts: Int[Tensor, " C"]
    labels: Int[Tensor, " C"] | None
    """``None`` for the global mean."""

    @classmethod
    def whole(cls, moments: Moments) -> Side:
        """The global mean and covariance."""
        reference = Reference.of(moments)
        return cls(reference, moments.mean.new_zeros(1, moments.width), torch.tensor([moments.n]), None)

    @classmethod
    def classes(cls, moments: ClassMoments) -> Side:
        """The class means and the pooled within-class covariance."""
        return cls.around(Reference.of(moments.within()), moments)

    @classmethod
    def around(cls, reference: Reference, moments: ClassMoments) -> Side:
        """The class means about a covariance that is already factored."""
        return cls(reference, (moments.means - reference.mean) @ reference.basis, moments.counts, moments.labels)

    def degrees(self, draws: int) -> int:
        """ν of the covariance pooled with a query's own K draws: n + K - 2."""
        return self.reference.n + draws - 2

    def weights(self, draws: int) -> Float[Tensor, " C"]:
        """n_c K / (n_c + K)."""
        n = self.counts.to(torch.float64)
        return n * draws / (n + draws)

    def forms(self, queries: Float[Tensor, "B K P"], ridge: Float[Tensor, " B"] | float) -> Float[Tensor, "B C"]:
        """(x̄ - μ_c)'(S + ridge I)⁻¹(x̄ - μ_c), S pooled from the reference and the query's own draws."""
        count, draws = queries.shape[:2]
        nu = self.degrees(draws)
        values = self.reference.eigenvalues / nu
        if draws == 1 and not isinstance(ridge, Tensor):
            return self.plain(queries[:, 0], (values + ridge).rsqrt())
        given = torch.as_tensor(ridge, dtype=torch.float64).expand(count)
        inverse = 1 / (values + given[:, None])
        return forms(queries, self.reference.mean, self.reference.basis, inverse, self.shifts, nu)

    def plain(self, queries: Float[Tensor, "B P"], root: Float[Tensor, " P"]) -> Float[Tensor, "B C"]:
        """‖root · Vᵀ(x - μ_c)‖², one row a query."""
        shifts = None if self.labels is None else self.shifts * root
        return single_forms(queries, self.reference.mean, self.reference.basis * root, shifts)


class EmbeddingDetector(Detector):
    """Base of the detectors on embeddings.

    Parameters
    ----------
    reference : {"global", "class", "relative"}
        * ``"global"``: the distance to the mean of all, as in the paper. For embeddings without classes, and where
          unfamiliar inputs are known to lie outside the training cloud.
        * ``"class"``: the smallest over the classes' means, with the pooled within-class covariance. For embeddings
          of a classifier: its classes lie apart, and their common mean is a place where no input is.
        * ``"relative"``: per class minus global, which cancels what is large for every input. For the deep layers
          of a classifier and OOD inputs near to the training data.

        The last two need integer labels in `fit`.
    keep : int
        How many reference inputs to keep (mean embeddings, chosen by a hash of their content), to show the nearest
        beside a query. They are stored in the detector's file; 0 keeps none.
    tail, combine
        As in `Detector`.
    """

    explains = True

    def __init__(
        self, *, reference: Against = "global", tail: Tail = "upper", combine: str = "fisher", keep: int = 256
    ) -> None:
        super().__init__(tail=tail, combine=combine)
        self.reference: Against = reference
        self.keep = keep
        self._check_choice("reference", reference, ("global", "class", "relative"))
        if not isinstance(keep, int) or keep < 0:
            raise InputError(f"{type(self).__name__}: keep must be a whole number >= 0; got {keep!r}.")
        self._forget()

    # reference -------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._moments: Moments | ClassMoments | None = None
        self._kept: Kept | None = None
        self._law = self._margin = None
        self._thaw()

    def _thaw(self) -> None:
        """Forget what was derived from the moments."""
        self._whole: Side | None = None
        self._within: Side | None = None
        self._constants: dict[Any, Any] = {}

    @property
    def width(self) -> int | None:  # noqa: D102
        return None if self._moments is None else self._moments.width

    @property
    def moments(self) -> Moments:
        """The reference's moments, classes aside."""
        if self._moments is None:
            raise InputError(f"{self._who('moments')}: needs a reference; got none yet. Call fit(reference) first.")
        return self._moments.total() if isinstance(self._moments, ClassMoments) else self._moments

    def _take(self, chunk: Any, labels: Any) -> int:
        who = self._who("fit")
        part: Moments | ClassMoments
        if isinstance(chunk, Moments | ClassMoments):
            if isinstance(chunk, Moments) and self.reference != "global":
                raise InputError(
                    f"{who}: reference={self.reference!r} needs the moments of each class; got those of all. "
                    "Pass ClassMoments.join({label: Moments, ...}), or rows with labels."
                )
            part, count, kept = chunk, chunk.n, None
            if self.reference == "global" and isinstance(part, ClassMoments):
                part = part.total()
        else:
            rows = as_queries(who, chunk, None)
            if 0 in rows.shape:
                raise InputError(
                    f"{who}: reference must hold at least one row and one column; got shape {tuple(np.shape(chunk))}. "
                    "There is nothing to learn from; check the selection that produced it."
                )
            count, draws, width = rows.shape
            self._check_width(who, width)
            if self.reference == "global":
                part = Moments.of(rows.reshape(-1, width))
            elif labels is None:
                raise InputError(
                    f"{who}: reference={self.reference!r} needs labels, one integer per input; got none. "
                    "Pass fit(reference, labels), or choose reference='global'."
                )
            else:
                groups = as_labels(who, labels, count, rows.device)
                part = ClassMoments.of(rows.reshape(-1, width), groups.repeat_interleave(draws))
            kept = Kept.of(rows.to(torch.float64).mean(1) if draws > 1 else rows[:, 0], self.keep, self._inputs)
        self._check_width(who, part.width)
        self._join(part, kept)
        return count

    def _check_width(self, who: str, width: int) -> None:
        if self._moments is not None and width != self._moments.width:
            raise InputError(
                f"{who}: every chunk must have the same number of columns; got P={width} after "
                f"P={self._moments.width}. They are not embeddings of one layer."
            )

    def _join(self, part: Moments | ClassMoments, kept: Kept | None, shift: int = 0) -> None:
        if self._moments is None:
            self._moments = part
        else:
            self._moments = self._moments.merge(part)  # type: ignore[arg-type]
        if kept is not None:
            self._kept = (
                Kept.of(kept.rows[:0], self.keep).merge(kept, shift)
                if self._kept is None
                else self._kept.merge(kept, shift)
            )
        self._thaw()

    def _absorb(self, other: Self) -> None:
        assert other._moments is not None
        self._join(other._moments, other._kept, self._inputs)

    @property
    def _global(self) -> Side:
        if self._whole is None:
            self._whole = Side.whole(self.moments)
            self._accept(self._whole)
        return self._whole

    @property
    def _classes(self) -> Side:
        if self._within is None:
            assert isinstance(self._moments, ClassMoments)
            self._within = Side.classes(self._moments)
            self._accept(self._within)
        return self._within

    def _accept(self, side: Side) -> None:
        """Raise if the statistic does not exist on this reference."""

    # queries ---------------------------------------------------------------------------------------------------

    def _measure(self, queries: Tensor) -> Measured:
        if self.reference == "global":
            return self._measure_global(queries)
        near = self._values(self._classes, queries)
        labels = self._classes.labels
        assert labels is not None
        smallest, winner = near.min(1)
        if self.reference == "relative":
            smallest = smallest - self._values(self._global, queries)[:, 0]
        nearest = torch.where(torch.isfinite(smallest), labels[winner], -1)
        return Measured.of(queries, smallest, nearest_class=nearest, **self._extras(queries))

    def _measure_global(self, queries: Tensor) -> Measured:
        return Measured.of(queries, self._values(self._global, queries)[:, 0], **self._extras(queries))

    @abstractmethod
    def _values(self, side: Side, queries: Float[Tensor, "B K P"]) -> Float[Tensor, "B C"]:
        """The statistic against each mean of that side."""

    def _extras(self, queries: Tensor) -> dict[str, Any]:
        """Further fields of `Measured`."""
        return {}

    @abstractmethod
    def _metric(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Float[Tensor, "B P"], int | None]:
        """1 / (eigenvalue + ridge) for each query, and ν where the query's own scatter counts (``None`` if not)."""

    @abstractmethod
    def _slope(self, side: Side, queries: Tensor) -> Float[Tensor, "B C"]:
        """By how much `_values` rises with each form; of laws that are not linear, the form's own weight."""

    def _parts(self, side: Side, queries: Tensor, measured: Measured) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d and A d [B, P] of the nearest mean in the side's basis, the centred mean draw, and A's diagonal part."""
        inverse, nu = self._metric(side, queries, measured)
        rotated = (queries.to(torch.float64) - side.reference.mean) @ side.reference.basis
        centre = rotated.mean(1)
        d = centre
        if (near := self._nearest_of(side, measured)) is not None:
            d = centre - side.shifts[near]
        solved = d * inverse
        if nu is not None and queries.shape[1] > 1:
            root = inverse.sqrt()
            y = (rotated - centre[:, None]) * (root / nu**0.5)[:, None]
            g = y @ y.mT + torch.eye(queries.shape[1], dtype=torch.float64)
            ok = torch.isfinite(g).flatten(1).all(1)
            g[~ok] = torch.eye(queries.shape[1], dtype=torch.float64)
            solved = solved - root * (y.mT @ torch.linalg.solve(g, y @ (root * d)[:, :, None]))[..., 0]
        return d, solved, centre, inverse

    def _nearest_of(self, side: Side, measured: Measured) -> Tensor | None:
        """Which of the side's means is nearest, [B]; ``None`` where there is one mean."""
        if side.labels is None or measured.nearest_class is None:
            return None
        return torch.searchsorted(side.labels, measured.nearest_class.clamp_min(0)).clamp_max(len(side.labels) - 1)

    def _explain(self, queries: Tensor, measured: Measured, nearest: int) -> Explanation:
        side = self._global if self.reference == "global" else self._classes
        d, solved, centre, inverse = self._parts(side, queries, measured)
        parts = d * solved
        whole = parts.sum(1, keepdim=True)
        if self.reference == "relative":  # the global form by direction of the class's basis: two bases make no table
            turned = side.reference.basis.T @ self._global.reference.basis
            d, solved, _, _ = self._parts(self._global, queries, measured)
            near = self._nearest_of(side, measured)
            assert near is not None
            slope = self._slope(side, queries).expand(len(queries), -1).gather(1, near[:, None])
            minus = (d @ turned.T) * (solved @ turned.T) * self._slope(self._global, queries)
            whole = slope * whole + minus.sum(1, keepdim=True)
            parts = slope * parts - minus
        shares = parts / whole
        positions = distances = None
        kept = self._kept
        if kept is not None and len(kept.rows) and nearest > 0:
            rows = (kept.rows - side.reference.mean) @ side.reference.basis  # [k, P]
            far = (centre.square() * inverse).sum(1)[:, None] - 2 * (centre * inverse) @ rows.T
            far = (far + inverse @ rows.square().T).clamp_min(0).sqrt()
            distances, index = far.topk(min(nearest, len(rows)), largest=False)
            positions = kept.positions[index]
        return Explanation(directions=shares, basis=side.reference.basis, nearest=positions, distances=distances)

    # files -----------------------------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {}
        moments = self._moments
        assert moments is not None
        header: dict[str, Any] = {"moments": "classes" if isinstance(moments, ClassMoments) else "all", "sides": []}
        if isinstance(moments, ClassMoments):
            tensors |= {"labels": moments.labels, "counts": moments.counts, "means": moments.means}
        else:
            header["n"] = moments.n
            tensors["mean"] = moments.mean
        tensors["scatter"] = moments.scatter
        # the factors too: another machine's eigensolver may differ in the last bit
        sides = {"global": self._global} if self.reference in ("global", "relative") else {}
        if self.reference != "global":
            sides["class"] = self._classes
        for name, side in sides.items():
            header["sides"].append([name, side.reference.n])
            tensors |= {f"{name}.mean": side.reference.mean, f"{name}.basis": side.reference.basis}
            tensors[f"{name}.eigenvalues"] = side.reference.eigenvalues
        if self._kept is not None:
            tensors |= {
                "kept.rows": self._kept.rows,
                "kept.positions": self._kept.positions,
                "kept.keys": self._kept.keys,
            }
        return header, tensors

    def _restore(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if header["moments"] == "classes":
            self._moments = ClassMoments(tensors["labels"], tensors["counts"], tensors["means"], tensors["scatter"])
        else:
            self._moments = Moments(header["n"], tensors["mean"], tensors["scatter"])
        for name, n in header["sides"]:
            parts = (tensors[f"{name}.{part}"] for part in ("mean", "basis", "eigenvalues"))
            reference = Reference(n, *parts)
            if name == "class":
                assert isinstance(self._moments, ClassMoments)
                self._within = Side.around(reference, self._moments)
            else:
                zero = reference.mean.new_zeros(1, reference.width)
                self._whole = Side(reference, zero, torch.tensor([n]), None)
        if "kept.rows" in tensors:
            self._kept = Kept(self.keep, tensors["kept.rows"], tensors["kept.positions"], tensors["kept.keys"])
