"""``arht demo``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Run the whole job on data that ships with scikit-learn: train, fit, calibrate, score, decide, audit, report."""

    out: Annotated[str, arg(metavar="FOLDER")] = "demo"
    """Where the guard, the queries and the report are written."""

    def run(self) -> int:
        """Run it."""
        from arht.demo import main

        main(self.out)
        return 0
