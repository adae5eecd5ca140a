"""The commands of the command line, one file each: a frozen dataclass of options with ``run() -> exit code``.

Importing a command imports nothing heavy: torch and the like wait for ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from arht.commands.audit import Audit
from arht.commands.data import Data
from arht.commands.demo import Demo
from arht.commands.embed import Embed
from arht.commands.fit import Fit
from arht.commands.merge import Merge
from arht.commands.report import Report
from arht.commands.score import Score
from arht.commands.test import Test
from arht.commands.train import Train

__all__ = ["COMMANDS", "Command"]


class Command(Protocol):
    """What every command is."""

    def run(self) -> int:
        """Do it, print, and return the exit code."""


COMMANDS: dict[str, Callable[..., Command]] = {
    "demo": Demo,
    "test": Test,
    "train": Train,
    "embed": Embed,
    "data": Data,
    "fit": Fit,
    "score": Score,
    "merge": Merge,
    "audit": Audit,
    "report": Report,
}
