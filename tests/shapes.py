"""The checker behind the annotated shapes: beartype, for the shapes alone.

A test that makes a wrong call must meet the library's own error and not the checker's, so annotations without a
shape in them are not enforced.
"""

import typing
from pathlib import Path

import beartype
import jaxtyping

SOURCE = Path(__file__).parent.parent / "src"


def annotated_modules():
    """Dotted names of the modules that annotate shapes."""
    return [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in sorted(SOURCE.rglob("*.py"))
        if "from arht._shapes import" in path.read_text(encoding="utf-8")
    ]


def check(function):
    """Wrap the function so that the shapes in its annotations are checked."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    return beartype.beartype(function) if function.__annotations__ else function


def _has_shape(hint):
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(_has_shape(part) for part in typing.get_args(hint))
