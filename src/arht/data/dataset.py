"""What every data set is: its files, and how they become pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arht.data.files import File
from arht.data.images import Images
from arht.data.listing import Listing

__all__ = ["DataSet"]


@dataclass(frozen=True)
class DataSet:
    """One data set. Each module of this package that reads one defines its own, named ``SET``.

    ``folders`` are the places below the data folder where its files are looked for, the first being where they are
    put. ``files`` are what each split needs, empty where the set ships with a library. ``read(paths, split)`` gives
    the pictures, or a listing of picture files, which `arht.data.load` then decodes; ``count(paths, split)`` says how
    many there are without reading them all. ``options`` are the further keywords that ``read`` takes. ``size`` is the
    side of the pictures, asked for where they come in several shapes.
    """

    name: str
    about: str
    files: Mapping[str, tuple[File, ...]]
    read: Callable[..., Images | Listing]
    count: Callable[[Sequence[Path], str], int]
    folders: tuple[str, ...] = (".",)
    options: tuple[str, ...] = ()
    size: int | None = None
    channels: int | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.files)
