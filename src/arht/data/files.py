"""Find the official files of a data set below one folder, or fetch them from their official address."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arht.data.progress import Bar
from arht.errors import InputError

__all__ = ["File", "data_folder", "fetch", "find", "unreadable"]

TIMEOUT = 10
"""Seconds without an answer after which an address counts as out of reach."""


@dataclass(frozen=True)
class File:
    """One official file, or folder of files, and where it comes from.

    ``name`` is its official name, ``url`` and ``md5`` what is fetched when it is absent: the file itself or an archive
    that holds it. Without ``url`` it cannot be fetched, and ``page`` says where a person gets it.
    """

    name: str
    page: str
    url: str | None = None
    md5: str | None = None

    @property
    def is_archived(self) -> bool:
        """Whether the address gives an archive that holds the file."""
        return self.url is not None and not self.url.endswith(self.name)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder below which data sets lie: the argument, else ARHT_DATA, else ~/.cache/arht-data."""
    given = data_dir if data_dir is not None else os.environ.get("ARHT_DATA") or "~/.cache/arht-data"
    return Path(given).expanduser()


def find(root: Path, folders: Sequence[str], file: File) -> Path | None:
    """The file in the first of these folders that has it; a gzipped file may lie there unpacked."""
    names = [file.name, file.name.removesuffix(".gz")]
    places = (root / folder / name for folder in folders for name in names)
    return next((place for place in places if place.exists()), None)


def fetch(who: str, root: Path, folders: Sequence[str], file: File, *, download: bool = True) -> Path:
    """The path of the file; downloaded and its checksum compared if it is absent and that can be done."""
    found = find(root, folders, file)
    if found is not None:
        return found
    why = "" if file.url else " and has no address to fetch it from"
    if file.url and (not download or os.environ.get("ARHT_OFFLINE")):
        why = " and downloads are switched off"
    elif file.url:
        try:
            _download(root / folders[0], file)
        except Exception as error:  # pooch, requests and the archive modules each raise their own
            reason = "no connection" if isinstance(error, OSError) and "connection" in str(error).lower() else ""
            why = f" and could not be fetched ({reason or _short(error)})"
        found = find(root, folders, file)
        if found is not None:
            return found
    raise InputError(
        f"load: {who} needs {file.name} in {root / folders[0]}; it is not there{why}. "
        f"Get it from {file.url if file.url and not file.is_archived else file.page}, or name another folder "
        "with data_dir or ARHT_DATA."
    )


def unreadable(who: str, path: Path, must: str, got: object) -> InputError:
    """The one line for a file that is there and is not what it must be."""
    return InputError(
        f"load: {who} needs {path} to be {must}; got {_short(got)}. It is cut short or damaged, or another file of "
        "that name; delete it and get it again."
    )


def _short(reason: object) -> str:
    text = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    return text if len(text) <= 120 else text[:120] + "..."


def _download(folder: Path, file: File) -> None:
    import pooch  # type: ignore[import-untyped]

    assert file.url is not None
    folder.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel("ERROR")
    name = file.url.rpartition("/")[2]
    with Bar(f"fetching {name}") as bar:
        fetched = pooch.retrieve(
            file.url,
            known_hash=f"md5:{file.md5}",
            fname=name,
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=_Bytes(bar)),
        )
    if file.is_archived:
        _unpack(Path(fetched), folder)


def _unpack(archive: Path, folder: Path) -> None:
    """All of the archive or nothing: unpacked beside, then moved. A leading folder of the set's name is left out."""
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(beside)
        else:
            with tarfile.open(archive) as opened_tar:
                opened_tar.extractall(beside, filter="data")
        top = Path(beside)
        if (top / folder.name).is_dir():
            top = top / folder.name
        for member in top.iterdir():
            if not (folder / member.name).exists():
                shutil.move(member, folder / member.name)
    archive.unlink()


class _Bytes:
    """What pooch asks of a progress bar."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.total = 0

    def update(self, count: int) -> None:
        self.bar.update(count)

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass
