"""`arht.load`: whatever arht wrote, read back; the file says what it is."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from arht.errors import InputError

__all__ = ["READERS", "load"]

READERS = {
    "detector": "arht.detectors.files",
    "encoder": "arht.posterior.files",
    "guard": "arht.guard.files",
}
"""Kind of artefact -> the module whose ``of_artefact(path, kind, header, tensors, **options)`` makes the object."""


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """The detector, encoder or guard in a file. Nothing in it is ever unpickled.

    Options go to the kind's own reader: ``net=module`` for an encoder around a net of your own, ``scorer=...`` for
    a detector around a scorer of your own.
    """
    from arht.io import artefact

    kind, header, tensors = artefact.read(path)
    if kind not in READERS:
        raise InputError(
            f"load: {path} must hold one of: {', '.join(READERS)}; it holds {kind!r}. It is a file of another purpose."
        )
    reader = import_module(READERS[kind])
    try:
        return reader.of_artefact(path, kind, header, tensors, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise InputError(f"load: these options do not fit a {kind}: {', '.join(options)}. Leave them out.") from None
