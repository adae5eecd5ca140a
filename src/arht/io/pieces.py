"""A long result in pieces on disk: what was written before an interruption is still there after it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arht.errors import InputError

__all__ = ["Pieces"]

STATE = "state.json"


class Pieces:
    """Record batches of arrow in a folder beside the result, one file a piece, each there whole or not at all.

    The folder holds what the run was made of; a run made of anything else does not go on in it.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any], *, anew: bool = False) -> None:
        self.folder = folder
        self.made_of = json.loads(json.dumps(made_of))
        self.count = self.rows = 0
        if anew:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            if (folder / STATE).exists():
                self._take_up()
            else:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                self._put(STATE, json.dumps(self.made_of).encode())
        except OSError as error:
            raise InputError(
                f"scores: needs a folder that can be written to; got {folder}: {error.strerror}. "
                "Make it, or name a file elsewhere."
            ) from None

    def _take_up(self) -> None:
        try:
            found = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if found != self.made_of:
            raise InputError(
                f"scores: {self.folder} must be of this run, with this detector and these queries; it is of another. "
                "Add --restart to begin anew, or name another file."
            )
        for path in self.folder.glob(".*"):  # cut off while it was written
            path.unlink()
        while self._path(self.count).exists():
            try:
                self.rows += sum(len(batch) for batch in self._batches(self.count))
            except Exception:  # damaged by whatever ended the run: this piece and all after it are made again
                break
            self.count += 1
        later = self.count
        while self._path(later).exists():
            self._path(later).unlink()
            later += 1

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.arrow"

    def _put(self, name: str, data: Any) -> None:
        hidden = self.folder / f".{name}"
        with hidden.open("wb") as opened:
            opened.write(data)
        os.replace(hidden, self.folder / name)

    def append(self, batches: list[Any]) -> None:
        """One more piece."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        try:
            self._put(self._path(self.count).name, sink.getvalue())
        except OSError as error:
            raise InputError(
                f"scores: needs room for the scores; got {self.folder}: {error.strerror}. "
                "Make room and run the same command again: it goes on where it stopped."
            ) from None
        self.count += 1
        self.rows += sum(len(batch) for batch in batches)

    def batches(self) -> Iterator[Any]:
        """All of them, in order."""
        for number in range(self.count):
            yield from self._batches(number)

    def _batches(self, number: int) -> Iterator[Any]:
        import pyarrow as pa

        with pa.OSFile(str(self._path(number)), "rb") as opened, pa.ipc.open_stream(opened) as reader:
            yield from reader

    def remove(self) -> None:
        """All of it, once the result is there."""
        shutil.rmtree(self.folder, ignore_errors=True)
