"""The border of the mathematics: what comes in becomes float64 tensors, what goes out its own kind again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from arht._shapes import Tensor
from arht.errors import InputError

__all__ = ["as_draws", "as_mean", "as_ridges", "as_sample", "check_pair", "restorer"]


def as_real(who: str, name: str, x: Any) -> Tensor:
    """Any array-like as a float64 tensor on its own device; refuses what is not real numbers."""
    if isinstance(x, Tensor):
        if x.is_complex():
            raise InputError(_complex(who, name, str(x.dtype).removeprefix("torch.")))
        return x.detach().to(torch.float64)
    try:
        array = np.asarray(x)
    except ValueError:
        raise InputError(
            f"{who}: {name} must be a rectangular array; got rows of different lengths. Pad or cut them to one width."
        ) from None
    if np.iscomplexobj(array):
        raise InputError(_complex(who, name, str(array.dtype)))
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise InputError(
            f"{who}: {name} must be numeric; got dtype {array.dtype.str if array.dtype.kind in 'US' else array.dtype}. "
            "Convert it to numbers first."
        )
    return torch.from_numpy(np.array(array, dtype=np.float64, order="C", copy=None if array.flags.writeable else True))


def _complex(who: str, name: str, dtype: str) -> str:
    return (
        f"{who}: {name} must be real; got dtype {dtype}. "
        "Take the real part, or stack real and imaginary parts as columns."
    )


def as_sample(who: str, name: str, x: Any) -> Tensor:
    """A sample [n, P]: real, finite, at least one row and one column. A vector is n rows of one column."""
    sample = as_real(who, name, x)
    if sample.ndim == 1:
        sample = sample[:, None]
    if sample.ndim != 2:
        raise InputError(
            f"{who}: {name} must be a table [n, P]; got {sample.ndim} axes, shape {tuple(sample.shape)}. "
            "Reshape it so that each row is one observation."
        )
    if 0 in sample.shape:
        raise InputError(
            f"{who}: {name} must have at least one row and one column; got shape {tuple(sample.shape)}. "
            "There is nothing to test; check the file or the selection that produced it."
        )
    bad = ~torch.isfinite(sample)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        raise InputError(
            f"{who}: {name} must be finite; got {int(bad.sum())} NaN or infinite values, the first in row {row}, "
            f"column {column}. Drop or impute those rows."
        )
    return sample


def check_pair(who: str, x: Tensor, y: Tensor | None) -> None:
    """Enough rows for a covariance; the same columns on both sides."""
    if y is None:
        if x.shape[0] < 2:
            raise InputError(
                f"{who}: needs at least 2 rows in x; got n1={x.shape[0]}. "
                "No covariance can be estimated; give more rows."
            )
        return
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"{who}: x and y must have the same number of columns; got P={x.shape[1]} and P={y.shape[1]}. "
            "They are not embeddings of one layer; check which files or layers were paired."
        )
    if x.shape[0] + y.shape[0] < 3:
        raise InputError(
            f"{who}: needs n1 + n2 - 2 >= 1 rows beyond the means; got n1={x.shape[0]}, n2={y.shape[0]}. "
            "No covariance can be estimated; give more rows."
        )


def as_mean(who: str, mean: Any, x: Tensor) -> Tensor:
    """The hypothesised mean (or mean difference) [P]; zeros when not given."""
    if mean is None:
        return torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    vector = as_real(who, "mean", mean).to(x.device)
    if vector.ndim == 0:
        vector = vector.expand(x.shape[1])
    if vector.shape != (x.shape[1],):
        raise InputError(
            f"{who}: mean must be one number or a vector of the data's width P={x.shape[1]}; "
            f"got shape {tuple(vector.shape)}. Give one entry per column."
        )
    if not bool(torch.isfinite(vector).all()):
        raise InputError(f"{who}: mean must be finite; got NaN or infinite entries. Give numbers.")
    return vector


def as_ridges(who: str, ridges: Any) -> Tensor:
    """Ridges [R], each positive and finite."""
    values = torch.atleast_1d(as_real(who, "ridge", ridges))
    if values.ndim != 1 or values.numel() == 0:
        raise InputError(
            f"{who}: ridges must be a list of at least one number; got shape {tuple(values.shape)}. "
            "Leave it out for the default grid."
        )
    bad = ~(torch.isfinite(values) & (values > 0))
    if bool(bad.any()):
        raise InputError(
            f"{who}: ridge must be a positive finite number; got {float(values[bad][0])}. "
            "A ridge of zero is hotelling_test; choose for instance 0.01 times the mean eigenvalue."
        )
    return values


def as_draws(who: str, draws: Any, width: int) -> Tensor:
    """Queries [B, K, P]; a table [B, P] is B queries of one draw. Not checked for NaN: those are marked later."""
    queries = draws.detach() if isinstance(draws, Tensor) and draws.is_floating_point() else None
    if queries is None:
        if isinstance(draws, np.ndarray) and draws.dtype in (np.float32, np.float64):
            with_copy = draws if draws.flags.writeable and draws.flags.c_contiguous else draws.copy()
            queries = torch.from_numpy(with_copy)
        else:
            queries = as_real(who, "draws", draws)
    if queries.ndim == 2:
        queries = queries[:, None, :]
    if queries.ndim != 3 or queries.shape[1] < 1:
        raise InputError(
            f"{who}: draws must be [B, K, P] (or [B, P] for one draw a query); got shape {tuple(queries.shape)}. "
            "Stack the draws of each query along the second axis."
        )
    if queries.shape[2] != width:
        raise InputError(
            f"{who}: draws must be as wide as the reference, P={width}; got P={queries.shape[2]}. "
            "They are not embeddings of the layer the reference was fitted on."
        )
    return queries


def restorer(*inputs: Any) -> Callable[[Tensor], Any]:
    """How to hand a result back: as a tensor if any input was one, as numpy otherwise."""
    if any(isinstance(value, Tensor) for value in inputs):
        return lambda tensor: tensor

    def to_numpy(tensor: Tensor) -> Any:
        return tensor.cpu().numpy()[()]

    return to_numpy
