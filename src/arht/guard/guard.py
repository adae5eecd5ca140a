"""A guard: an encoder, the layers that are watched, their references, one calibration, and its verdicts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from arht.detectors import DetectionResult, Detector, Explanation
from arht.detectors.margins import RULES
from arht.errors import InputError
from arht.guard.inputs import batches, finite, ready, shown
from arht.guard.layers import Layer, Learner, names_of, predicted
from arht.guard.recipe import Watch, auto, paper, watches_of
from arht.guard.verdict import Measurement, combined, explained, joined, kind_of, result_of
from arht.posterior import Deterministic, FromCallable, Posterior
from arht.posterior.taps import find_module
from arht.stats.multiplicity import Decision
from arht.stats.nulls import Conformal

if TYPE_CHECKING:
    from arht.evaluation.audits import Audit

__all__ = ["Guard"]

BLOCK = 256
"""Inputs drawn at a time; it bounds the memory. Draws are the same bits whatever it is and whatever else is in the
block; scores but for rounding in their last digits (about 1e-15): a detector's products take a whole block."""


class Guard:
    """Which inputs of a trained model not to trust: p-values and decisions for raw inputs, model included.

    Parameters
    ----------
    encoder : Posterior or nn.Module
        A module without a posterior is taken as it is, with one draw.
    mode : "auto", "paper" or Detector
        * ``"auto"``: a fixed recipe over several layers (`arht.guard.recipe`), the same for every net and every data
          set; it sees in-distribution data only.
        * ``"paper"``: ARHT of the embedding's draws against their global mean.
        * a detector of your own, on the ``layers`` it watches.
    layers : str, Tap or list of them
        For a detector of your own; default "embedding".
    draws : int
        Weight draws. They are made once and kept: reference, calibration and queries meet the same ones.
    combine : str
        How layers are joined: "fisher", "stouffer", "cauchy", "harmonic_mean", "bonferroni".
    generator : torch.Generator, optional
        Where the weight draws come from; default: one with a fixed seed.

    Examples
    --------
    >>> import arht, torch
    >>> data = arht.data.load("digits")
    >>> net = arht.nets.LeNet(in_channels=1, image_size=16, activation="relu")
    >>> encoder = arht.posterior.MeanField(net, generator=torch.Generator().manual_seed(0))
    >>> encoder.transform = arht.data.Transform.of(data, size=16)
    >>> guard = arht.Guard(encoder, draws=4).fit(data[:800], calibration=data[800:])
    >>> guard.test(data[:3]).pvalue.shape
    (3,)
    """

    def __init__(
        self,
        encoder: Posterior | nn.Module,
        mode: str | Detector = "auto",
        *,
        layers: Any = "embedding",
        draws: int = 20,
        combine: str = "fisher",
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(encoder, nn.Module):
            raise InputError(f"Guard: encoder must be a Posterior or a module; got {type(encoder).__name__}.")
        if not isinstance(mode, Detector) and mode not in ("auto", "paper"):
            raise InputError(f"Guard: mode must be 'auto', 'paper' or a detector; got {mode!r}.")
        if combine not in RULES:
            raise InputError(f"Guard: combine must be one of {', '.join(RULES)}; got {combine!r}.")
        self.encoder = encoder if isinstance(encoder, Posterior) else Deterministic(encoder)
        if isinstance(mode, Detector):
            for watch in watches_of(layers, mode):
                layer = watch.tap.layer
                find_module("Guard", self.encoder.net, self.encoder.embedding if layer == "embedding" else layer)
        self.mode = mode
        self.combine = combine
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.bank = self.encoder.bank(draws, generator=generator)
        self._asked = layers
        self._layers: dict[str, Layer] = {}
        self._law: Conformal | None = None
        self._inputs = 0

    # fit -------------------------------------------------------------------------------------------------------

    def fit(self, data: Any, labels: Any = None, *, calibration: Any = None, progress: bool = False) -> Guard:
        """Learn the reference of every watched layer from inputs that the encoder was trained on.

        Parameters
        ----------
        data : Images or array [N, ...]
            Or a pair of inputs and labels, or batches of any of these. Stored pixels go through the encoder's own
            transform.
        labels : array [N], optional
            Classes. Without them the encoder's own predictions stand in.
        calibration : as data
            Held out from the encoder's training: `calibrate` is called with it.
        """
        who = "Guard.fit"
        watches: list[Watch] = []
        learners: list[Learner] = []
        self._layers, self._law, self._inputs = {}, None, 0
        for inputs, groups in shown(batches(who, data, labels, BLOCK), data, progress, "fit"):
            x, good = finite(ready(self.encoder, inputs))
            if not bool(good.all()):
                raise InputError(
                    f"{who}: inputs must be finite; got NaN or infinity in {int((~good).sum())} of them, the first is "
                    f"input {self._inputs + int((~good).nonzero()[0])}. Drop them."
                )
            if not watches:
                watches = self._watches(x[:1], groups is not None)
                learners = [Learner(watch) for watch in watches]
            if groups is None and any(learner.by_class for learner in learners):
                groups = predicted(self.encoder, x, self.bank)
            for learner, draws in zip(learners, self._draw(x, watches), strict=True):
                learner.add(draws, groups)
            self._inputs += len(x)
        if not learners:
            raise InputError(f"{who}: needs at least one input; got none. Check the selection or the iterable.")
        self._layers = {name: learner.layer() for name, learner in zip(names_of(watches), learners, strict=True)}
        return self if calibration is None else self.calibrate(calibration, progress=progress)

    def calibrate(self, data: Any, labels: Any = None, *, progress: bool = False) -> Guard:
        """Make p-values conformal, by inputs that the encoder never saw.

        Every second input sets each layer's own law, the others calibrate the verdict as a whole, so that its p-value
        holds whatever the dependence between layers.
        """
        who = "Guard.calibrate"
        self._needs_reference(who)
        parts: dict[str, list[Tensor]] = {name: [] for name in self._layers}
        for inputs, _ in shown(batches(who, data, labels, BLOCK), data, progress, "calibrate"):
            for name, scores in self._measured(inputs, calibrating=True)[0].scores.items():
                parts[name].append(scores)
        gathered = {name: torch.cat(part) if part else torch.zeros(0) for name, part in parts.items()}
        count = len(next(iter(gathered.values())))
        bad = torch.stack([~torch.isfinite(value) for value in gathered.values()]).any(0)
        if count < 2 or bool(bad.any()):
            raise InputError(
                f"{who}: needs at least 2 held-out inputs, each with a score in every layer; got {count}, "
                f"{int(bad.sum())} without. Drop inputs that hold NaN or infinity."
            )
        if len(self._layers) == 1:
            ((name, values),) = gathered.items()
            self._layers[name].detector._set_law(who, values)
            self._law = self._layers[name].detector._law
            return self
        for name, layer in self._layers.items():
            layer.detector._set_law(who, gathered[name][0::2])
        rest = {name: values[1::2] for name, values in gathered.items()}
        self._law = Conformal(combined(self._layers, rest, self.combine))
        return self

    # test ------------------------------------------------------------------------------------------------------

    def test(self, x: Any, *, explain: bool = False, progress: bool = False) -> DetectionResult:
        """Score, p-value and outcome of each input; `layers` of the result has each layer's own."""
        who = "Guard.test"
        self._needs_calibration(who)
        kind = kind_of(x)
        parts: list[Measurement] = []
        explanations: list[Explanation] = []
        for inputs, _ in shown(batches(who, x, None, BLOCK), x, progress, "test"):
            measurement, rows = self._measured(inputs)
            parts.append(measurement)
            if explain:
                explanations.append(explained(self._layers, measurement, rows, 5))
        if not parts:
            raise InputError(f"{who}: needs at least one input; got none. Check the selection or the iterable.")
        assert self._law is not None
        mode = "own" if isinstance(self.mode, Detector) else self.mode
        result = result_of(self._layers, Measurement.joined(parts), self._law, self.combine, mode, kind)
        return replace(result, explanation=joined(explanations, kind)) if explain else result

    def score(self, x: Any) -> Any:
        """Scores [B]: larger is more suspicious, NaN where an input could not be tested."""
        return self.test(x).score

    def decide(self, x: Any, fdr: float = 0.05, method: str = "bh") -> Decision:
        """Which of these inputs to reject at that false-discovery rate."""
        return self.test(x).decide(fdr=fdr, method=method)

    def explain(self, x: Any, nearest: int = 5) -> Explanation:
        """Share of each input's evidence by layer, and by direction within each layer."""
        self._needs_calibration("Guard.explain")
        found = [
            explained(self._layers, *self._measured(inputs), nearest)
            for inputs, _ in batches("Guard.explain", x, None, BLOCK)
        ]
        if not found:
            raise InputError("Guard.explain: needs at least one input; got none. Check the selection or the iterable.")
        return joined(found, kind_of(x))

    def audit(self, heldout: Any, *, fdr: float = 0.05, tests: int | None = None) -> Audit:
        """Do the p-values hold on further held-out inputs, and can that FDR be claimed for so many tests?"""
        from arht.evaluation.audits import audit

        self._needs_calibration("Guard.audit")
        assert self._law is not None
        return audit(self.test(heldout), calibration=self._law.scores, fdr=fdr, tests=tests)

    @property
    def watched(self) -> list[dict[str, Any]]:
        """Each watched layer: name, half, detector, number of features."""
        return [
            {
                "layer": name,
                "half": layer.watch.half,
                "detector": repr(layer.detector),
                "features": layer.detector.width,
            }
            for name, layer in self._layers.items()
        ]

    @property
    def fitted(self) -> bool:
        """Whether it has a reference."""
        return bool(self._layers)

    @property
    def calibrated(self) -> bool:
        """Whether it gives p-values."""
        return self._law is not None

    @property
    def inputs(self) -> int:
        """Number of reference inputs."""
        return self._inputs

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write model, weight draws, references and calibration to one file and return its digest; see `arht.load`."""
        from arht.guard.files import save

        self._needs_reference("Guard.save")
        return save(self, path)

    def __repr__(self) -> str:
        state = "calibrated" if self.calibrated else "fitted" if self.fitted else "not fitted"
        return f"Guard({type(self.encoder).__name__}({type(self.encoder.net).__name__}), mode={self.mode!r}, {state})"

    # inside ----------------------------------------------------------------------------------------------------

    def _watches(self, example: Tensor, labelled: bool) -> list[Watch]:
        if isinstance(self.mode, Detector):
            return watches_of(self._asked, self.mode)
        return auto(self.encoder, example, labelled) if self.mode == "auto" else paper(self.encoder)

    def _draw(self, x: Tensor, watches: Sequence[Watch]) -> list[Tensor]:
        """Draws [B, K, P] of every watch."""
        taps = list(dict.fromkeys(watch.tap for watch in watches))
        if isinstance(self.encoder, FromCallable) and len(taps) == 1:
            return [self.encoder.draw(x, bank=self.bank)] * len(watches)
        found = self.encoder.draw(x, at=taps, bank=self.bank, batch_size=BLOCK)
        by_tap = dict(zip(taps, found.values(), strict=True))
        return [by_tap[watch.tap] for watch in watches]

    def _measured(self, inputs: Tensor, *, calibrating: bool = False) -> tuple[Measurement, dict[str, Tensor]]:
        """What the layers make of a block of inputs, and the rows that each detector has measured."""
        x, good = finite(ready(self.encoder, inputs))
        drawn = self._draw(x, [layer.watch for layer in self._layers.values()])
        rows = {name: layer.rows(draws) for (name, layer), draws in zip(self._layers.items(), drawn, strict=True)}
        if not bool(good.all()):
            for values in rows.values():
                values[~good] = torch.nan
        if calibrating:
            for name, layer in self._layers.items():
                layer.detector._seen(rows[name])
        return Measurement.of(self._layers, rows), rows

    def _needs_reference(self, who: str) -> None:
        if not self._layers:
            raise InputError(f"{who}: needs a reference; got none yet. Call fit(data, calibration=heldout) first.")

    def _needs_calibration(self, who: str) -> None:
        self._needs_reference(who)
        if self._law is None:
            raise InputError(
                f"{who}: needs inputs that the encoder never saw, to calibrate on; got none yet. "
                "Call calibrate(heldout) first."
            )
