"""Guards in files: the encoder, its weight draws, every reference and the calibration, as one artefact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from arht.detectors import Detector
from arht.detectors.files import CLASSES
from arht.errors import InputError
from arht.guard.layers import Layer
from arht.guard.recipe import Watch
from arht.io import artefact
from arht.posterior import Bank, Tap
from arht.posterior.files import header_of
from arht.posterior.files import of_artefact as encoder_of
from arht.stats.nulls import Conformal

if TYPE_CHECKING:
    from arht.guard.guard import Guard

__all__ = ["of_artefact", "save"]


def save(guard: Guard, path: str | os.PathLike[str]) -> str:
    """Write the guard and return the file's digest."""
    tensors = {f"encoder/{name}": tensor for name, tensor in guard.encoder.state_dict().items()}
    tensors |= {f"bank/{name}": tensor for name, tensor in guard.bank.state().items()}
    layers = []
    for number, (name, layer) in enumerate(guard._layers.items()):
        own, values = layer.detector._pack()
        tensors |= {f"layer/{number}/{key}": value for key, value in values.items()}
        if layer.scale is not None:
            tensors[f"scale/{number}"] = layer.scale
        watch, tap = layer.watch, layer.watch.tap
        layers.append(
            {
                "name": name,
                "tap": {"layer": tap.layer, "pooling": tap.pooling, "grid": tap.grid},
                "half": watch.half,
                "mean": watch.mean,
                "softmax": watch.softmax,
                "detector": own,
            }
        )
    if guard._law is not None:
        tensors["calibration"] = guard._law.scores
    header = {
        "encoder": header_of(guard.encoder),
        "mode": guard.mode if isinstance(guard.mode, str) else "own",
        "combine": guard.combine,
        "inputs": guard.inputs,
        "layers": layers,
    }
    return artefact.write(path, "guard", header, tensors)


def of_artefact(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    net: nn.Module | None = None,
    scorer: Any = None,
) -> Guard:
    """The guard that an artefact describes; ``net`` as in `arht.posterior.load`, ``scorer`` as in `FromScorer`."""
    from arht.guard.guard import Guard

    if kind != "guard":
        raise InputError(f"load: {path} must be a guard; it is a {kind}. Use arht.load, which reads each kind.")

    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    options = {} if scorer is None else {"scorer": scorer}
    try:
        encoder = encoder_of(path, "encoder", header["encoder"], below("encoder/"), net)
        guard = Guard.__new__(Guard)
        guard.encoder, guard.bank = encoder, Bank.of(below("bank/"))
        guard.combine, guard._inputs, guard._asked = header["combine"], header["inputs"], "embedding"
        guard._layers = {}
        for number, entry in enumerate(header["layers"]):
            own = entry["detector"]
            cls: type[Detector] = getattr(import_module(CLASSES[own["class"]]), own["class"])
            detector = cls._unpack(own, below(f"layer/{number}/"), **options)
            scale = tensors.get(f"scale/{number}")
            watch = Watch(
                Tap(**entry["tap"]),
                detector._clone(),
                entry["half"],
                entry["mean"],
                scale is not None,
                entry["softmax"],
            )
            guard._layers[entry["name"]] = Layer(watch, detector, scale)
        guard.mode = header["mode"]
        if guard.mode == "own":
            guard.mode = next(iter(guard._layers.values())).watch.detector
            guard._asked = [layer.watch.tap for layer in guard._layers.values()]
        guard._law = Conformal(tensors["calibration"]) if "calibration" in tensors else None
        if guard._law is not None and len(guard._layers) == 1:
            guard._law = next(iter(guard._layers.values())).detector._law
    except KeyError as error:
        raise InputError(f"load: {path} must hold a whole guard; it lacks {error}. Save it again.") from None
    return guard
