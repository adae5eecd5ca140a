"""Shape annotations: jaxtyping's where it is installed and asked for (in tests), plain tensors otherwise.

`Float[Tensor, "B K P"]` reads as documentation everywhere; the test suite sets ``ARHT_CHECK_SHAPES=1`` and
installs jaxtyping's import hook, so that each annotated call is then checked. A user's process never imports
jaxtyping.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING or os.environ.get("ARHT_CHECK_SHAPES"):
    from jaxtyping import Bool, Float, Int
else:

    class _Plain:
        def __class_getitem__(cls, item: tuple[type[Any], str]) -> type[Any]:
            return item[0]

    Bool = Float = Int = _Plain

__all__ = ["Bool", "Float", "Int", "Tensor"]
