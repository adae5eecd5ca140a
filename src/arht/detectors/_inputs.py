"""The detectors' border: what can be fitted on, as blocks of [B, K, P]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from arht._shapes import Tensor
from arht.detectors.classes import ClassMoments
from arht.errors import InputError
from arht.stats._checks import as_draws, as_real
from arht.stats.moments import Moments

__all__ = ["as_labels", "as_queries", "chunks_of", "is_table"]


def is_table(x: Any) -> bool:
    """One array (or nested list of numbers, or data frame), as opposed to an iterable of chunks."""
    if isinstance(x, Tensor | np.ndarray) or hasattr(x, "__array__"):
        return True
    if not isinstance(x, list | tuple) or not x:
        return False
    first = x[0]
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return isinstance(first, int | float | np.number)


def chunks_of(who: str, reference: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """(chunk, labels) pairs of whatever `fit` takes; chunks can be pairs (rows, labels) themselves."""
    if is_table(reference) or isinstance(reference, Moments | ClassMoments | dict):
        yield reference, labels
        return
    if not isinstance(reference, Iterable) or isinstance(reference, str | bytes):
        raise InputError(
            f"{who}: reference must be an array [N, P], draws [B, K, P], Moments or an iterable of such chunks; "
            f"got {type(reference).__name__}. Read files with arht.io.read_table first."
        )
    if labels is not None:
        raise InputError(
            f"{who}: labels beside an iterable of chunks must come in the chunks; got labels apart. "
            "Yield pairs (rows, labels)."
        )
    found = False
    for chunk in reference:
        found = True
        if isinstance(chunk, tuple) and len(chunk) == 2 and not is_table(chunk):
            yield chunk
        else:
            yield chunk, None
    if not found:
        raise InputError(
            f"{who}: needs at least one chunk of rows; got none. Check the iterable: a generator that was read once "
            "is empty the second time."
        )


def as_queries(who: str, draws: Any, width: int | None) -> Tensor:
    """Draws [B, K, P] in the floating type they have, a table [B, P] being one draw each; copied only if it must be.

    Not checked for NaN: queries are marked, reference rows are refused by their moments.
    """
    if isinstance(draws, np.ndarray) and draws.dtype in (np.float32, np.float64) and draws.dtype.isnative:
        import warnings

        with warnings.catch_warnings():  # read-only memory maps are read block by block and never written to
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            strided = all(step >= 0 for step in draws.strides)
            draws = torch.from_numpy(draws if strided else draws.copy())
    elif not isinstance(draws, Tensor):
        draws = as_real(who, "draws", draws)
    if width is None:
        width = int(draws.shape[-1]) if draws.ndim else 0
    if draws.ndim in (2, 3) and draws.shape[-1] != width:
        raise InputError(
            f"{who}: draws must be as wide as the reference, P={width}; got P={draws.shape[-1]}. "
            "They are not embeddings of the layer the reference was fitted on."
        )
    return as_draws(who, draws, width)


def as_labels(who: str, labels: Any, count: int, device: torch.device) -> Tensor:
    """Integer labels [count]."""
    groups = torch.as_tensor(labels).to(device)
    if groups.shape != (count,):
        raise InputError(
            f"{who}: labels must be one per reference input, [{count}]; got shape {tuple(groups.shape)}. "
            "A draw has the label of its input."
        )
    if groups.is_floating_point() or groups.is_complex():
        raise InputError(
            f"{who}: labels must be integers; got {str(groups.dtype).removeprefix('torch.')}. "
            "Encode the classes as 0, 1, 2, ..."
        )
    return groups.to(torch.int64)
