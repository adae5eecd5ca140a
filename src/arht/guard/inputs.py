"""What a guard is given: pictures, arrays or batches of them, as inputs of its net."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arht.errors import InputError
from arht.posterior import Posterior

__all__ = ["batches", "finite", "ready", "shown"]


def batches(who: str, data: Any, labels: Any, size: int) -> Iterator[tuple[Any, Tensor | None]]:
    """(inputs, labels or None) in blocks of at most ``size``: from Images, an array, a pair or an iterable of those."""
    if hasattr(data, "pixels"):
        labels = data.labels if labels is None else labels
        data = data.pixels
    if isinstance(data, tuple) and len(data) == 2 and not np.isscalar(data[0]):
        data, labels = data
    if not isinstance(data, Tensor) and not hasattr(data, "__array__"):
        if not isinstance(data, Iterable) or isinstance(data, str | bytes):
            raise InputError(
                f"{who}: inputs must be Images, an array [N, ...], a pair (inputs, labels) or batches of them; got "
                f"{type(data).__name__}. Read pictures with arht.data.load."
            )
        if labels is not None:
            raise InputError(
                f"{who}: labels beside batches must come in them; got labels apart. Yield (inputs, labels)."
            )
        for batch in data:
            yield from batches(who, tuple(batch) if isinstance(batch, list) else batch, None, size)
        return
    inputs = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    if inputs.ndim < 2 or not len(inputs):
        raise InputError(f"{who}: needs at least one input, [N, ...]; got shape {list(inputs.shape)}.")
    groups = None if labels is None else torch.as_tensor(labels)
    if groups is not None and (groups.shape != inputs.shape[:1] or groups.is_floating_point()):
        raise InputError(
            f"{who}: labels must be whole numbers, one per input, [{len(inputs)}]; got {groups.dtype} "
            f"{list(groups.shape)}. Check the selection that made them."
        )
    for start in range(0, len(inputs), size):
        part = slice(start, start + size)
        yield inputs[part], None if groups is None else groups[part].to(torch.int64)


def ready(encoder: Posterior, inputs: Tensor) -> Tensor:
    """Inputs as the net takes them: stored pixels (uint8) go through the encoder's transform, floats stay."""
    if inputs.dtype != torch.uint8:
        return inputs.float() if inputs.is_floating_point() else inputs
    if encoder.transform is not None:
        transformed: Tensor = encoder.transform(inputs)
        return transformed
    return inputs.float() / 255


def finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs, those that hold NaN or infinity as zeros, and which do not, [B]."""
    good = torch.isfinite(x).flatten(1).all(1)
    if bool(good.all()):
        return x, good.cpu()
    return torch.where(good.reshape(-1, *[1] * (x.ndim - 1)), x, 0), good.cpu()


def shown(parts: Iterator[Any], data: Any, progress: bool, what: str) -> Iterator[Any]:
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
