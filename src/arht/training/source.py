"""The training data in memory: inputs and targets as tensors, whatever they came as."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arht.errors import InputError

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """Inputs [N, ...], uint8 or floating, and their targets [N, ...] or None."""

    inputs: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        return len(self.inputs)

    @classmethod
    def of(cls, data: Any, what: str) -> Source:
        """From Images, a pair (inputs, targets), or inputs alone; arrays or tensors."""
        if isinstance(data, cls):
            return data
        if hasattr(data, "pixels"):
            inputs, targets = data.pixels, data.labels
        elif isinstance(data, tuple | list) and len(data) == 2:
            inputs, targets = data
        else:
            inputs, targets = data, None
        inputs, targets = _tensor(inputs, what), None if targets is None else _tensor(targets, what)
        if inputs.ndim < 2 or not len(inputs):
            raise InputError(
                f"training.fit: {what} must have at least one input, [N, ...]; got shape {list(inputs.shape)}."
            )
        if targets is not None and len(targets) != len(inputs):
            raise InputError(
                f"training.fit: {what} must have one target per input; got {len(inputs)} inputs and "
                f"{len(targets)} targets. Check the selection that made them."
            )
        if inputs.dtype != torch.uint8:
            inputs = inputs.to(torch.float32)
        if targets is not None:
            targets = targets.to(torch.float32 if targets.is_floating_point() else torch.int64)
        return cls(inputs.contiguous(), targets)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows of the index."""
        return self.inputs[index], None if self.targets is None else self.targets[index]

    def digest(self) -> str:
        """Changes when a number of the data changes."""
        parts = [self.inputs] if self.targets is None else [self.inputs, self.targets]
        code = 0
        for part in parts:
            code = zlib.crc32(np.ascontiguousarray(part.cpu().numpy()).data, code)
        return f"{len(self)}-{code:08x}"


def _tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"training.fit: {what} must be numeric arrays or tensors; got: {error}") from None
    return tensor.detach()
