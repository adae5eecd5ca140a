"""A guard: an encoder, the layers that are watched, their references, one calibration, and its verdicts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from arht.detectors import ClassMoments, DetectionResult, Detector, Explanation
from arht.detectors.layers import Layers
from arht.detectors.margins import RULES
from arht.errors import InputError
from arht.guard.inputs import batches, ready
from arht.guard.recipe import Watch, auto, paper, watches_of
from arht.posterior import Deterministic, Posterior
from arht.stats.moments import Moments
from arht.stats.multiplicity import Decision
from arht.stats.nulls import Conformal
from arht.stats.results import Outcome, TestResult

if TYPE_CHECKING:
    from arht.evaluation.audits import Audit

__all__ = ["Guard"]

BLOCK = 256
"""Inputs drawn at a time; it bounds the memory and changes no result."""


@dataclass
class _Layer:
    """A watched layer, fitted."""

    watch: Watch
    detector: Detector
    scale: Tensor | None
    """What every feature is divided by, [P] in float64."""


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
        self.mode = mode
        self.combine = combine
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.bank = self.encoder.bank(draws, generator=generator)
        self._asked = layers
        self._layers: dict[str, _Layer] = {}
        self._law: Conformal | None = None
        self._inputs = 0

    # fit -------------------------------------------------------------------------------------------------------

    def fit(self, data: Any, labels: Any = None, *, calibration: Any = None, progress: bool = False) -> Guard:
        """Learn the reference of every watched layer from inputs that the encoder was trained on.

        Parameters
        ----------
        data : Images, array [N, ...], pair (inputs, labels), or batches of them
            Stored pixels go through the encoder's own transform.
        labels : array [N], optional
            Classes. Without them the encoder's own predictions stand in.
        calibration : as data
            Held out from the encoder's training: `calibrate` is called with it.
        """
        who = "Guard.fit"
        watches: list[Watch] | None = None
        found: dict[str, Any] = {}
        self._layers, self._law, self._inputs = {}, None, 0
        for inputs, groups in _shown(batches(who, data, labels, BLOCK), data, progress, "fit"):
            x = ready(self.encoder, inputs)
            watches = self._watches(x[:1], groups is not None) if watches is None else watches
            drawn = self._draw(x, watches)
            if groups is None and any(_classes(watch.detector) for watch in watches):
                groups = self._predicted(x)
            for name, watch, draws in zip(_names(watches), watches, drawn, strict=True):
                if watch.detector.needs_fit:
                    part = _moments(draws, groups, watch.detector)
                    found[name] = found[name].merge(part) if name in found else part
            self._inputs += len(x)
        if watches is None:
            raise InputError(f"{who}: needs at least one input; got none.")
        for name, watch in zip(_names(watches), watches, strict=True):
            detector, scale = watch.detector._clone(), None
            if name in found:
                scale = _scale(found[name]) if watch.standardised else None
                detector._take(found[name] if scale is None else _scaled(found[name], scale), None)
                detector._inputs = self._inputs
            self._layers[name] = _Layer(watch, detector, scale)
        return self if calibration is None else self.calibrate(calibration, progress=progress)

    def calibrate(self, data: Any, labels: Any = None, *, progress: bool = False) -> Guard:
        """Make p-values conformal, by inputs that the encoder never saw.

        Every second input sets each layer's own law, the others calibrate the verdict as a whole, so that its p-value
        holds whatever the dependence between layers.
        """
        who = "Guard.calibrate"
        self._needs_reference(who)
        parts: dict[str, list[Tensor]] = {name: [] for name in self._layers}
        for inputs, _ in _shown(batches(who, data, labels, BLOCK), data, progress, "calibrate"):
            for name, scores in self._scores(inputs).items():
                parts[name].append(scores)
        gathered = {name: torch.cat(part) for name, part in parts.items()}
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
        self._law = Conformal(self._combined({name: values[1::2] for name, values in gathered.items()}))
        return self

    # test ------------------------------------------------------------------------------------------------------

    def test(self, x: Any, *, explain: bool = False, progress: bool = False) -> DetectionResult:
        """Score, p-value and outcome of each input; `layers` of the result has each layer's own."""
        who = "Guard.test"
        self._needs_calibration(who)
        kind = _kind(x)
        parts: list[tuple[dict[str, Any], Tensor, Tensor]] = []
        explanations: list[Explanation] = []
        for inputs, _ in _shown(batches(who, x, None, BLOCK), x, progress, "test"):
            rows = self._rows(inputs)
            measured = {n: self._layers[n].detector._measure(rows[n]) for n in self._layers}
            outcome = torch.zeros(len(inputs), dtype=torch.int8)
            for one in measured.values():
                outcome = torch.where(outcome == Outcome.OK, one.outcome, outcome)
            scores = {name: one.score for name, one in measured.items()}
            parts.append((measured, self._final(scores), outcome))
            if explain:
                explanations.append(self._explain(rows, 5))
        return self._result(parts, kind, _joined(explanations, kind) if explain else None)

    def score(self, x: Any) -> Any:
        """Scores [B]: larger is more suspicious, NaN where an input could not be tested."""
        return self.test(x).score

    def decide(self, x: Any, fdr: float = 0.05, method: str = "bh") -> Decision:
        """Which of these inputs to reject at that false-discovery rate."""
        return self.test(x).decide(fdr=fdr, method=method)

    def explain(self, x: Any, nearest: int = 5) -> Explanation:
        """Share of each input's evidence by layer, and by direction within each layer."""
        self._needs_calibration("Guard.explain")
        found = [self._explain(self._rows(i), nearest) for i, _ in batches("Guard.explain", x, None, BLOCK)]
        return _joined(found, _kind(x))

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
        found = self.encoder.draw(x, at=taps, bank=self.bank, batch_size=BLOCK)
        by_tap = dict(zip(taps, found.values(), strict=True))
        return [by_tap[watch.tap] for watch in watches]

    def _predicted(self, x: Tensor) -> Tensor:
        return self.encoder.predict(x, bank=self.bank).argmax(1)

    def _rows(self, inputs: Tensor) -> dict[str, Tensor]:
        """What each detector measures."""
        watches = [layer.watch for layer in self._layers.values()]
        rows = {}
        for (name, layer), draws in zip(
            self._layers.items(), self._draw(ready(self.encoder, inputs), watches), strict=True
        ):
            values = draws.to(torch.float64)
            if layer.watch.softmax:
                values = values.softmax(-1)
            if layer.watch.mean:
                values = values.mean(1, keepdim=True)
            rows[name] = values if layer.scale is None else values / layer.scale
        return rows

    def _scores(self, inputs: Tensor) -> dict[str, Tensor]:
        rows = self._rows(inputs)
        return {name: layer.detector._measure(rows[name]).score for name, layer in self._layers.items()}

    def _log_p(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """ln p of each layer by its own law."""
        out = {}
        for name, layer in self._layers.items():
            assert layer.detector._margin is not None
            out[name] = layer.detector._margin.log_pvalue(scores[name])
        return out

    def _combined(self, scores: dict[str, Tensor]) -> Tensor:
        combined: Tensor = Layers({name: layer.detector for name, layer in self._layers.items()}).combined(
            self._log_p(scores), self.combine
        )
        return combined

    def _final(self, scores: dict[str, Tensor]) -> Tensor:
        return self._combined(scores) if len(scores) > 1 else next(iter(scores.values()))

    def _explain(self, rows: dict[str, Tensor], nearest: int) -> Explanation:
        parts, scores = {}, {}
        for name, layer in self._layers.items():
            measured = layer.detector._measure(rows[name])
            scores[name] = measured.score
            if layer.detector.explains:
                parts[name] = layer.detector._explain(rows[name], measured, nearest)
        log_p = self._log_p(scores)
        total = torch.stack(list(log_p.values())).sum(0)
        even = torch.full_like(total, 1 / len(log_p))
        return Explanation(layers={n: torch.where(total == 0, even, v / total) for n, v in log_p.items()}, parts=parts)

    def _result(self, parts: Any, kind: Any, explanation: Explanation | None) -> DetectionResult:
        law = self._law
        assert law is not None
        score, outcome = torch.cat([part[1] for part in parts]), torch.cat([part[2] for part in parts])
        score = torch.where(outcome == Outcome.OK, score, torch.nan)

        def whole(name: str, field: str) -> Tensor | None:
            values = [getattr(part[0][name], field) for part in parts]
            return None if values[0] is None else torch.cat(values)

        layers: dict[str, TestResult] = {}
        nearest: Tensor | None = None
        for name, layer in self._layers.items():
            own = layer.detector._law
            assert own is not None
            values = whole(name, "score")
            near = whole(name, "nearest_class")
            ridge = whole(name, "ridge")
            nearest = near if near is not None else nearest
            layers[name] = DetectionResult(
                method=layer.detector.method,
                statistic=kind(whole(name, "statistic")),
                score=kind(values),
                pvalue=kind(own.pvalue(values)),
                pvalue_error=0.0,
                ridge=None if ridge is None else kind(ridge),
                theta1=None,
                theta2=None,
                guarantee=own.guarantee,
                null=repr(own),
                smallest_pvalue=own.smallest_pvalue,
                outcome=kind(whole(name, "outcome")),
                nearest_class=None if near is None else kind(near),
            )
        last = layers[next(reversed(layers))]
        mode = "own" if isinstance(self.mode, Detector) else self.mode
        return DetectionResult(
            method=f"guard ({mode})",
            statistic=kind(score),
            score=kind(score),
            pvalue=kind(torch.where(outcome == Outcome.OK, law.pvalue(score), torch.nan)),
            pvalue_error=0.0,
            ridge=last.ridge if len(layers) == 1 else None,
            theta1=None,
            theta2=None,
            guarantee=law.guarantee,
            null=repr(law),
            smallest_pvalue=law.smallest_pvalue,
            outcome=kind(outcome),
            nearest_class=None if nearest is None else kind(nearest),
            layers=layers,
            explanation=explanation,
        )

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


def _classes(detector: Detector) -> bool:
    return getattr(detector, "reference", "global") != "global"


def _moments(draws: Tensor, labels: Tensor | None, detector: Detector) -> ClassMoments | Moments:
    rows = draws.reshape(-1, draws.shape[2])
    if not _classes(detector):
        return Moments.of(rows)
    assert labels is not None
    return ClassMoments.of(rows, labels.to(rows.device).repeat_interleave(draws.shape[1]))


def _scale(moments: ClassMoments | Moments) -> Tensor:
    """Standard deviation of every feature over all rows; 1 where a feature never varies."""
    total = moments.total() if isinstance(moments, ClassMoments) else moments
    deviation = (total.scatter.diagonal() / max(total.n - 1, 1)).clamp_min(0).sqrt()
    return torch.where(deviation > 1e-12 * total.mean.abs(), deviation, torch.ones_like(deviation))


def _scaled(moments: ClassMoments | Moments, scale: Tensor) -> ClassMoments | Moments:
    scatter = moments.scatter / (scale[:, None] * scale)
    if isinstance(moments, ClassMoments):
        return ClassMoments(moments.labels, moments.counts, moments.means / scale, scatter)
    return Moments(moments.n, moments.mean / scale, scatter)


def _names(watches: Sequence[Watch]) -> list[str]:
    names = [w.tap.layer or ("probabilities" if w.softmax else "output") for w in watches]
    names = [n if w.tap.pooling == "mean" else f"{n}:{w.tap.pooling}" for n, w in zip(names, watches, strict=True)]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def _kind(x: Any) -> Any:
    """Results as tensors for tensors, as arrays otherwise."""
    if isinstance(x, Tensor):
        return lambda value: value
    return lambda value: value.numpy() if isinstance(value, Tensor) else value


def _joined(parts: list[Explanation], kind: Any) -> Explanation:
    first = parts[0]
    layers = {n: kind(torch.cat([p.layers[n] for p in parts])) for n in first.layers or {}}  # type: ignore[index]
    inner: dict[str, Explanation] = {}
    for name in first.parts or {}:
        own = [p.parts[name] for p in parts]  # type: ignore[index]
        inner[name] = Explanation(
            directions=kind(torch.cat([p.directions for p in own])),
            basis=kind(own[0].basis),
            nearest=None if own[0].nearest is None else kind(torch.cat([p.nearest for p in own])),
            distances=None if own[0].distances is None else kind(torch.cat([p.distances for p in own])),
        )
    return Explanation(layers=layers, parts=inner)


def _shown(parts: Iterator[Any], data: Any, progress: bool, what: str) -> Iterator[Any]:
    """The same batches, with a bar at a terminal where that is asked for."""
    from arht.data.progress import Bar

    try:
        total = len(data.pixels if hasattr(data, "pixels") else data[0] if isinstance(data, tuple) else data)
    except TypeError:
        total = None
    with Bar(what, total, shown=progress) as bar:
        for part in parts:
            yield part
            bar.update(len(part[0]))
