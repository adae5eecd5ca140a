"""The commands of the command line, one file each: a frozen dataclass of options with ``run() -> exit code``.

Importing a command imports nothing heavy: torch and the like wait for ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from arht.commands.data import Data
from arht.commands.demo import Demo
from arht.commands.embed import Embed
from arht.commands.report import Report
from arht.commands.test import Test
from arht.commands.train import Train

__all__ = ["COMMANDS", "Command"]


class Command(Protocol):
    """What every command is."""

    def run(self) -> int:
        """Do it, print, and return the exit code."""


COMMANDS: dict[str, Callable[..., Command]] = {"test": Test, "demo": Demo, "train": Train, "embed": Embed, "data": Data, "report": Report}
