"""Encoders in files: what was built, how, and every tensor; loaded without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from arht.errors import InputError
from arht.io import artefact
from arht.nets import ARCHITECTURES, Net
from arht.nets import build as build_net
from arht.posterior.base import Posterior
from arht.posterior.deterministic import Deterministic
from arht.posterior.ensemble import Ensemble
from arht.posterior.mc_dropout import MCDropout
from arht.posterior.mean_field import MeanField

__all__ = ["ENGINES", "build", "load", "save"]

ENGINES: dict[str, type[Posterior]] = {
    engine.__name__: engine for engine in (MeanField, MCDropout, Ensemble, Deterministic)
}
"""The engines by name."""


def build(config: Mapping[str, Any], net: nn.Module) -> Posterior:
    """A new encoder around the net from ``{"posterior": name, **arguments}``, as `Posterior.config` gives them."""
    arguments = dict(config)
    name = arguments.pop("posterior", None)
    if name not in ENGINES:
        raise InputError(f"build: posterior must be one of {', '.join(ENGINES)}; got {name!r}.")
    try:
        return ENGINES[name](net, **arguments)
    except TypeError as error:
        raise InputError(f"build: these arguments do not fit {name}: {error}.") from None


def save(encoder: Posterior, path: str | os.PathLike[str], *, transform: Any = None, record: Any = None) -> str:
    """Write an encoder to a safetensors file and return the file's digest.

    Parameters
    ----------
    transform : optional
        What turns raw inputs into the net's: an object with ``config()``. Default: the encoder's own.
    record : optional
        What to keep about the training (its digest, its settings): anything that JSON holds.
    """
    header = header_of(encoder, transform=transform, record=record)
    return artefact.write(path, "encoder", header, encoder.state_dict())


def header_of(encoder: Posterior, *, transform: Any = None, record: Any = None) -> dict[str, Any]:
    """What an encoder's file says beside its tensors."""
    transform = encoder.transform if transform is None else transform
    net = encoder.net
    architecture = None
    if isinstance(net, Net) and type(net).__name__ in ARCHITECTURES:
        architecture = {"architecture": type(net).__name__, **net.config()}
    return {
        "architecture": architecture,
        "module": f"{type(net).__module__}.{type(net).__qualname__}",
        "posterior": encoder.config(),
        "transform": None if transform is None else transform.config(),
        "record": encoder.record if record is None else record,
    }


def load(path: str | os.PathLike[str], *, net: nn.Module | None = None) -> Posterior:
    """The encoder in a file, in evaluation mode.

    Parameters
    ----------
    net : nn.Module, optional
        A module of the saved one's kind, where that was not one of `arht.nets`; its tensors are replaced.
    """
    kind, header, tensors = artefact.read(path)
    return of_artefact(path, kind, header, tensors, net)


def of_artefact(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    net: nn.Module | None = None,
) -> Posterior:
    """The encoder that an artefact describes."""
    if kind != "encoder":
        raise InputError(f"load: {path} must be an encoder; it is a {kind}. Use arht.load, which reads each kind.")
    if net is None and header["architecture"] is None:
        raise InputError(
            f"load: {path} was saved around a {header['module']}, which arht cannot build. "
            "Build it yourself and pass it: arht.posterior.load(path, net=module)."
        )
    # the weights are replaced: nothing that is drawn while building matters
    with torch.random.fork_rng(devices=[]):
        encoder = build(header["posterior"], build_net(header["architecture"]) if net is None else net)
    held, own = (
        {name: list(tensor.shape) for name, tensor in some.items()} for some in (tensors, encoder.state_dict())
    )
    for name in sorted(held.keys() | own.keys()):
        if held.get(name) != own.get(name):
            raise InputError(
                f"load: the tensors of {path} do not fit {type(encoder.net).__name__}: {name} is "
                f"{held.get(name, 'absent')} in the file and {own.get(name, 'absent')} in the net. "
                "Build the net as it was when it was saved."
            )
    encoder.load_state_dict(dict(tensors))
    if header["transform"] is not None:
        from arht.data import Transform

        encoder.transform = Transform(**header["transform"])
    encoder.record = header["record"]
    return encoder.eval()
