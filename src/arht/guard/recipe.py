"""Which layers of a net are watched, and how: one fixed rule for every net, which sees no data but a shape.

The rule of ``mode="auto"``. Let the net run once and note the order in which its convolutions and poolings run.

* Shallow half, each by the smallest RHT over the classes: the first two convolutions before their activation, as
  channel means, log standard deviations and Fisher-transformed channel correlations; and the first two poolings, as
  channel means and log standard deviations. Low contrast is a short distance in raw units and a long one in
  logarithms, so these see other image statistics, which the deep layers are trained to ignore.
* Deep half: the last feature map (all values; an average over a grid where they are more than 4,096) and the logits,
  each by the smallest RHT over the classes minus the global RHT, which cancels what is large for every input and leaves
  how well it fits its nearest class; and the entropy of the predictive distribution. The embedding before the logits
  would say the same twice.

Where an input departs from the training data in only one half, the other half's p-values are near one and cost the
sum little. A net without convolutions is watched in its first two vectors, or means over tokens, in place of the
shallow half; one without classes by RHT against the global mean, in its embedding in place of logits and entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from arht.detectors import ARHTDetector, Detector, Entropy, RHTDetector
from arht.errors import InputError
from arht.posterior import Posterior, Tap
from arht.posterior.taps import tensor_of

__all__ = ["Watch", "auto", "paper", "watches_of"]

RIDGE = 0.01
"""Times the mean eigenvalue of the covariance of standardised features."""
OUTPUT = ""
MOST_VALUES = 4096
MOST_CHANNELS = 64

Seen = tuple[str, nn.Module, tuple[int, ...]]


@dataclass(frozen=True)
class Watch:
    """One watched layer.

    Parameters
    ----------
    tap : Tap
        The layer, and what its output is reduced to.
    detector : Detector
        An unfitted detector on the layer's features.
    half : str
        "shallow", "deep" or what else; the weight of the evidence is by half.
    mean : bool
        Compare the mean of an input's draws, one row; otherwise the detector gets all draws.
    standardised : bool
        Divide every feature by its standard deviation over the reference.
    softmax : bool
        Turn logits into probabilities first, draw by draw.
    """

    tap: Tap
    detector: Detector
    half: str = ""
    mean: bool = True
    standardised: bool = True
    softmax: bool = False


def paper(encoder: Posterior) -> list[Watch]:
    """The paper's: ARHT of the draws of the embedding against their global mean."""
    return [Watch(Tap(encoder.embedding), ARHTDetector(), mean=False, standardised=False)]


def watches_of(layers: Any, detector: Detector) -> list[Watch]:
    """A detector of the user's own on the layers it watches, draws as they are."""
    from arht.posterior.taps import as_taps

    return [Watch(tap, detector._clone(), mean=False, standardised=False) for tap in as_taps(layers)]


def auto(encoder: Posterior, example: Tensor, labelled: bool) -> list[Watch]:
    """The rule above, for inputs like the example [1, ...]; ``labelled``: whether the reference brings its classes."""
    seen = _outputs(encoder, example)
    output = seen.pop()[2]
    embedding, classifier = _ends(encoder, seen, output)
    maps = [(n, m, s) for n, m, s in seen if len(s) == 4 and s[2] * s[3] > 1]
    convolutions = [(n, s[1]) for n, m, s in maps if isinstance(m, nn.modules.conv._ConvNd)]
    pools = [n for n, m, _ in maps if "Pool" in type(m).__name__]
    shallow = [Tap(n, "moments" if channels <= MOST_CHANNELS else "spread") for n, channels in convolutions[:2]]
    shallow += [Tap(n, "spread") for n in pools[:2]]
    deep = [_flat(n, s) for n, _, s in maps[-1:]]
    if not classifier and maps and math.prod(maps[-1][2]) == math.prod(_shape(seen, embedding) or output):
        deep = []  # the embedding is this map, flattened
    if not maps:
        tokens = [n for n, m, s in seen if len(s) == 3 and isinstance(m, nn.LayerNorm)]
        vectors = [n for n, m, s in seen if len(s) == 2 and isinstance(m, nn.Linear) and s != output]
        shallow = [Tap(n) for n in (tokens or vectors)[:2]]
    deep += [Tap(OUTPUT) if classifier else Tap(embedding)]
    near, relative = ("class", "relative") if classifier or labelled else ("global", "global")
    watches = [Watch(tap, _rht(near), "shallow") for tap in shallow]
    watches += [Watch(tap, _rht(relative), "deep") for tap in deep]
    if classifier:
        watches.append(Watch(Tap(OUTPUT), Entropy(), "deep", mean=False, standardised=False, softmax=True))
    return watches


def _rht(reference: Any) -> RHTDetector:
    return RHTDetector(RIDGE, ridge_unit="mean_eigenvalue", reference=reference)


def _flat(name: str, shape: tuple[int, ...]) -> Tap:
    _, channels, height, width = shape
    if channels * height * width <= MOST_VALUES:
        return Tap(name, "flatten")
    return Tap(name, "grid", 4) if channels * 16 <= MOST_VALUES and min(height, width) >= 4 else Tap(name, "mean")


def _shape(seen: list[Seen], path: str) -> tuple[int, ...]:
    return next((shape for name, _, shape in seen if name == path), ())


def _ends(encoder: Posterior, seen: list[Seen], output: tuple[int, ...]) -> tuple[str, bool]:
    """Path of the embedding, and whether the net's output is the logits of classes.

    An embedding that is said to be the net's own output, and comes from a linear layer, is taken for logits, and what
    that layer is given for the embedding: so nets that say nothing about themselves are read as classifiers.
    """
    embedding = encoder.embedding
    record = encoder.record if isinstance(encoder.record, dict) else {}
    wanted = (record.get("options") or {}).get("objective", "classification") == "classification"
    logits = wanted and len(output) == 2 and output[1] > 1
    if embedding != OUTPUT:
        last = seen[-1][0] if seen else OUTPUT
        return embedding, logits and embedding != last
    if logits and len(seen) > 1 and isinstance(seen[-1][1], nn.Linear):
        return seen[-2][0], True
    return embedding, False


def _outputs(encoder: Posterior, example: Tensor) -> list[Seen]:
    """Path, module and shape of the output of every leaf module, in the order in which they end; the net's own last."""
    found: dict[str, Seen] = {}

    def keep(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            try:
                value = tensor_of(output, path)
            except InputError:
                return
            found.pop(path, None)
            found[path] = (path, module, tuple(value.shape))

        return hook

    watched = [(path, m) for path, m in encoder.net.named_modules() if path == OUTPUT or not list(m.children())]
    handles = [module.register_forward_hook(keep(path)) for path, module in watched]
    flags = [module for module in encoder.net.modules() if module.training]
    try:
        encoder.net.eval()
        with torch.inference_mode():
            encoder.net(example.to(encoder._device))
    except (RuntimeError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"Guard: {type(encoder.net).__name__} must be able to run inputs [B, ...] of shape {tuple(example.shape)}; "
            f"it says: {reason[:200]}. Check their channels, size and dtype."
        ) from None
    finally:
        for handle in handles:
            handle.remove()
        for module in flags:
            module.training = True
    if OUTPUT not in found:
        raise InputError(f"Guard: the output of {type(encoder.net).__name__} must be a tensor. Watch a layer of it.")
    return list(found.values())
