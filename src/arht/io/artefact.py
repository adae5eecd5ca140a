"""Files of ours: safetensors with one JSON header. Nothing in them is ever unpickled.

The header stands in the file's metadata under ``arht``: schema, kind, the version that wrote it, a SHA-256 digest
over kind, header and tensors, and what the kind itself has to say.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arht.errors import InputError

__all__ = ["SCHEMA", "digest", "read", "write"]

SCHEMA = 1
"""Version of the format. A reader refuses files of a later one."""


def write(path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Write the artefact and return its digest. The file appears whole: it is written under another name first.

    Parameters
    ----------
    kind : str
        "encoder", "detector", "guard", ...
    header : mapping
        Anything that JSON holds.
    """
    from safetensors.torch import save

    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(f"save: needs an existing folder; got {file.parent}, which does not exist. Make it first.")
    if file.is_dir():
        raise InputError(f"save: needs the name of a file; got {file}, which is a folder. Name a file in it.")
    # a copy of each: tied tensors share memory, which the format does not allow
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    about = dict(header)
    found = digest(kind, about, plain)
    outer = {
        "schema": SCHEMA,
        "kind": kind,
        "version": import_module("arht").__version__,
        "digest": found,
        "header": about,
    }
    data = save(plain, metadata={"arht": json.dumps(outer, allow_nan=False)})
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(
            f"save: needs a file that can be written; got {file}: {error.strerror}. "
            "Check its folder, its permissions and the free space."
        ) from None
    return found


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Kind, header and tensors of an artefact; `InputError` with one line for anything else."""
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    start = _start(file)
    # a safetensors file starts with the length of its header in 8 bytes, which can begin as a pickle does
    ours = start[4:] == b"\0\0\0\0{"
    if start.startswith((b"\x80", b"PK\x03\x04")) and not ours:
        raise InputError(
            f"load: {file} must be a safetensors file; got a pickle or an archive of one. "
            "Loading a pickle can run code, so it is refused; save with arht."
        )
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get("arht")
            tensors = {} if text is None else {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"load: {file} must be a whole safetensors file; got: {reason[:160]}. "
            "It is cut short, damaged or of another kind; save it again."
        ) from None
    if text is None:
        raise InputError(
            f"load: {file} must be written by arht; got a safetensors file without its header. "
            "Load the tensors into a module and wrap it in a posterior."
        )
    try:
        outer = json.loads(text)
        schema, kind, header, wanted = outer["schema"], outer["kind"], outer["header"], outer["digest"]
        newer = schema > SCHEMA
    except (ValueError, KeyError, TypeError):
        _damaged(file)
    if newer:
        raise InputError(
            f"load: {file} has schema {schema}, written by arht {outer.get('version')}; this arht reads schemas up to "
            f"{SCHEMA}. Update arht."
        )
    if digest(kind, header, tensors) != wanted:
        _damaged(file)
    return kind, header, tensors


def digest(kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over kind, header and tensors, in hexadecimal; the order of the tensors does not matter."""
    found = hashlib.sha256(json.dumps([kind, header], sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _start(file: Path) -> bytes:
    """The first bytes of the file, if there is one and it holds any."""
    if not file.exists():
        raise InputError(
            f"load: needs an existing file; got {file}, which does not exist. Check the path and the working folder."
        )
    if file.is_dir():
        raise InputError(f"load: needs a file; got {file}, which is a folder. Name a file in it.")
    try:
        with file.open("rb") as opened:
            start = opened.read(9)
    except OSError as error:
        raise InputError(
            f"load: needs a file that can be opened; got {file}: {error.strerror}. Check its name and its permissions."
        ) from None
    if not start:
        raise InputError(f"load: the file must not be empty; got {file} with 0 bytes. Check what wrote it.")
    return start


def _damaged(file: Path) -> Any:
    raise InputError(
        f"load: {file} must be as it was written; its content does not match its digest. "
        "It is damaged or was changed; save it again."
    )
