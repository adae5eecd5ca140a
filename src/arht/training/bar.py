"""What a person sees of a run, on standard error: a bar where that is a terminal, a line per epoch anywhere."""

from __future__ import annotations

from types import TracebackType

from arht.training.history import Epoch

__all__ = ["Bar"]


class Bar:
    """Progress of a run; says nothing if not ``shown``."""

    def __init__(self, shown: bool, epochs: int, steps: int):
        self.epochs, self.steps, self._progress = epochs, steps, None
        if not shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns, console=self._console, transient=True, refresh_per_second=2, disable=not self._console.is_terminal
        )
        self._task = self._progress.add_task("training", total=epochs * steps)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, step: int) -> None:
        """So many steps are done."""
        if self._progress is not None and step % 10 == 0:
            self._progress.update(self._task, completed=step)

    def done(self, row: Epoch) -> None:
        """An epoch is done."""
        if self._progress is None:
            return
        parts = [f"epoch {row.epoch}/{self.epochs}", f"loss {row.loss:.4f}", f"nll {row.nll:.4f}", f"kl {row.kl:.0f}"]
        if row.accuracy is not None:
            parts.append(f"accuracy {row.accuracy:.4f}")
        if row.validation_loss is not None:
            parts.append(f"validation {row.validation_loss:.4f}")
        parts.append(f"{row.seconds:.1f} s")
        self._console.print("  ".join(parts), highlight=False, soft_wrap=True)
        self._progress.update(self._task, completed=row.step)
