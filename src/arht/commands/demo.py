"""``arht demo``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Run a worked example on data that ships with scikit-learn."""

    out: Annotated[str, arg(metavar="FOLDER")] = "demo"
    """Where its report is written."""

    def run(self) -> int:
        """Run it."""
        from arht.demo import main

        main(self.out)
        return 0
