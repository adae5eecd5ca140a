"""Checkpoints: everything that the next step of a run depends on, in one file that is replaced in one go."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arht.errors import InputError

__all__ = ["KIND", "group", "optimiser_state", "optimiser_tensors", "origin", "read", "ungroup", "write"]

KIND = "checkpoint"


def write(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write, under a temporary name first: a run that is killed leaves this checkpoint or the one before."""
    from arht.io import artefact

    held = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    artefact.write(path, KIND, dict(header), held)


def read(path: Path, expected: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a checkpoint of the same run: data, settings and parameters must be as ``expected``."""
    from arht.io import artefact

    kind, header, tensors = artefact.read(path)
    if kind != KIND:
        raise InputError(f"training.fit: {path} must be a checkpoint; got a file of kind {kind!r}. Use another folder.")
    for name, value in expected.items():
        found = header["run"].get(name)
        if found != value:
            raise InputError(
                f"training.fit: the checkpoint {path} must be of the same run; its {name} is {found}, not {value}. "
                "Use the old setting, another folder, or resume=False to start over."
            )
    return dict(header), dict(tensors)


def origin(encoder: nn.Module, objective: nn.Module, transform: Any, augment: Any) -> dict[str, Any]:
    """What a run is made of, beside data and settings, as JSON has it: net, posterior, objective, what feeds them."""
    plain = {k: v for k, v in vars(objective).items() if isinstance(v, int | float | str) and k != "training"}
    made = (
        _entries("net", getattr(encoder, "net", None))
        | _entries("posterior", encoder)
        | {"posterior.rho_mean": getattr(encoder, "rho_mean", None)}
        | {f"objective.{key}": value for key, value in plain.items()}
        | _entries("transform", transform)
        | {"augment": None if augment is None else _words(augment)}
    )
    plain_made: dict[str, Any] = json.loads(json.dumps(made, default=_words))
    return plain_made


def _entries(name: str, thing: Any) -> dict[str, Any]:
    """Class and config() of a thing; of one without config(), what its repr says, modules as a digest of theirs."""
    if thing is None:
        return {name: None}
    if hasattr(thing, "config"):
        return {name: type(thing).__name__} | {f"{name}.{key}": value for key, value in thing.config().items()}
    words = _words(thing)
    if isinstance(thing, nn.Module):  # many lines
        words = f"{type(thing).__name__}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    return {name: words}


def _words(thing: Any) -> str:
    """Its repr, without the place in memory, which is another in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def group(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under ``name/...``."""
    return {f"{name}/{key}": value for key, value in tensors.items()}


def ungroup(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What ``group`` put together."""
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimiser as ``index/key`` -> tensor."""
    state = optimiser.state_dict()["state"]
    return {f"{index}/{key}": torch.as_tensor(value) for index, own in state.items() for key, value in own.items()}


def optimiser_state(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of ``optimiser_tensors`` back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
