"""``arht demo``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Run a worked example on data that ships with scikit-learn."""

    def run(self) -> int:
        """Run it."""
        from arht.demo import main

        main()
        return 0
