"""Which layers of a net are watched, and how: one fixed rule for every net, which sees no data but a shape.

The rule of ``mode="auto"``. Let the net run once and note, in the order in which they ran, its convolutions, its
poolings and its linear layers with one output vector an input.

* Shallow half, each by the smallest RHT over the classes: the first two convolutions before their activation, as
  channel means, log standard deviations and Fisher-transformed channel correlations; and the first two poolings, as
  channel means and log standard deviations. Low contrast is a short distance in raw units and a long one in
  logarithms, so these see other image statistics that the deep layers, trained to ignore them, do not.
* Deep half, each by the smallest RHT over the classes minus the global RHT: the last convolution before the head, all
  of its values (an average over a grid where they are more than 4,096), and the last three linear layers, logits
  included. What is large for every input cancels; what is left is how well the input fits its nearest class.

A net without convolutions is watched in its first two and last three vectors; one of tokens in the means over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from arht.detectors import ARHTDetector, Detector, RHTDetector
from arht.errors import InputError
from arht.posterior import Posterior, Tap
from arht.posterior.taps import tensor_of

__all__ = ["Watch", "auto", "paper", "watches_of"]

RIDGE = 0.01
"""Times the mean eigenvalue of the covariance of standardised features."""
MOST_VALUES = 4096
MOST_CHANNELS = 64


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
    """

    tap: Tap
    detector: Detector
    half: str = ""
    mean: bool = True
    standardised: bool = True


def paper(encoder: Posterior) -> list[Watch]:
    """The paper's: ARHT of the draws of the embedding against their global mean."""
    return [Watch(Tap(encoder.embedding), ARHTDetector(), mean=False, standardised=False)]


def watches_of(layers: Any, detector: Detector) -> list[Watch]:
    """A detector of the user's own on the layers it watches, draws as they are."""
    from arht.posterior.taps import as_taps

    return [Watch(tap, detector._clone(), mean=False, standardised=False) for tap in as_taps(layers)]


def auto(encoder: Posterior, example: Tensor) -> list[Watch]:
    """The rule above, for inputs like the example [1, ...]."""
    seen = _outputs(encoder, example)
    vectors = [name for name, module, shape in seen if len(shape) == 2 and isinstance(module, nn.Linear)]
    maps = [(n, s) for n, m, s in seen if len(s) == 4 and isinstance(m, nn.modules.conv._ConvNd) and s[2] * s[3] > 1]
    pools = [n for n, m, s in seen if len(s) == 4 and "Pool" in type(m).__name__ and s[2] * s[3] > 1]
    tokens = [name for name, module, shape in seen if len(shape) == 3 and isinstance(module, nn.LayerNorm)]
    shallow = [Tap(n, "moments" if s[1] <= MOST_CHANNELS else "spread") for n, s in maps[:2]]
    shallow += [Tap(n, "spread") for n in pools[:2]]
    deep = [_flat(*maps[-1])] if maps else []
    deep += [Tap(name) for name in vectors[-3:]]
    if not maps:
        early = [name for name in (tokens or vectors)[:2] if Tap(name) not in deep]
        shallow = [Tap(name) for name in early]
        deep = [Tap(name) for name in tokens[-1:] if name not in early] + deep
    if not shallow + deep:
        deep = [Tap(encoder.embedding)]
    return [Watch(tap, _rht("class"), "shallow") for tap in shallow] + [
        Watch(tap, _rht("relative"), "deep") for tap in deep
    ]


def _rht(reference: Any) -> RHTDetector:
    return RHTDetector(RIDGE, ridge_unit="mean_eigenvalue", reference=reference)


def _flat(name: str, shape: tuple[int, ...]) -> Tap:
    _, channels, height, width = shape
    if channels * height * width <= MOST_VALUES:
        return Tap(name, "flatten")
    return Tap(name, "grid", 4) if channels * 16 <= MOST_VALUES and min(height, width) >= 4 else Tap(name, "mean")


def _outputs(encoder: Posterior, example: Tensor) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
    """Path, module and shape of the output of every leaf module, in the order in which they first run."""
    found: dict[str, tuple[str, nn.Module, tuple[int, ...]]] = {}

    def keep(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            try:
                value = tensor_of(output, path)
            except InputError:
                return
            found.setdefault(path, (path, module, tuple(value.shape)))

        return hook

    leaves = [(path, module) for path, module in encoder.net.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(keep(path)) for path, module in leaves]
    flags = [module for module in encoder.net.modules() if module.training]
    try:
        encoder.net.eval()
        with torch.inference_mode():
            encoder.net(example)
    finally:
        for handle in handles:
            handle.remove()
        for module in flags:
            module.training = True
    return list(found.values())
