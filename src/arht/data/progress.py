"""A bar for work that takes long, shown only to a person at a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["Bar"]


class Bar:
    """``with Bar("reading", total) as bar: bar.update(1)``; silent where standard error is no terminal."""

    def __init__(self, what: str, total: int | None = None, *, shown: bool = True) -> None:
        self._progress = None
        self._task = None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(what, total=total)

    def update(self, steps: int) -> None:
        """So many steps more are done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, steps)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
