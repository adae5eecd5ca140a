"""Matrix products whose rows do not depend on their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Aligned"]

LANES = 16
"""Numbers of float32 in 64 bytes: the widest register, and a line of the cache."""


class Aligned(TorchFunctionMode):
    """While it is on, every product on a CPU is taken along an axis that is a multiple of 16, filled with zeros.

    Product routines choose their way through a row by where it lies in memory. A row of 6 numbers lies differently
    from its neighbours, and so may round its last bit differently; rows of 16, 32, ... all lie alike.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function itself, or the same on filled operands."""
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        return func(*args, **kwargs) if rule is None or kwargs else rule(func, *args)


def _gap(*operands: Any) -> int:
    """How many zeros each row of the operands wants; none where they are no matrices of floats on a CPU."""
    if not all(isinstance(x, Tensor) and x.ndim > 1 and x.is_floating_point() and x.is_cpu for x in operands):
        return 0
    width: int = operands[0].shape[-1]
    return -width % LANES


def _filled(x: Tensor, gap: int) -> Tensor:
    return F.pad(x, (0, gap))


def _linear(func: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None) -> Tensor:
    gap = _gap(x, weight)
    return func(_filled(x, gap), _filled(weight, gap), bias) if gap else func(x, weight, bias)


def _product(func: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    gap = _gap(a, b)
    return func(_filled(a, gap), _filled(b.mT, gap).mT) if gap else func(a, b)


def _reversed(func: Callable[..., Tensor], b: Any, a: Any) -> Tensor:
    gap = _gap(a, b)
    return func(_filled(b.mT, gap).mT, _filled(a, gap)) if gap else func(b, a)


def _sum(func: Callable[..., Tensor], c: Any, a: Any, b: Any) -> Tensor:
    gap = _gap(a, b)
    return func(c, _filled(a, gap), _filled(b.mT, gap).mT) if gap else func(c, a, b)


_RULES: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm), _product),
    **dict.fromkeys((Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__), _product),
    Tensor.__rmatmul__: _reversed,
    **dict.fromkeys((torch.addmm, torch.baddbmm, Tensor.addmm, Tensor.baddbmm), _sum),
}
