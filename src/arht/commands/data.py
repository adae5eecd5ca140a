"""``arht data``: which data sets there are, what of them lies here, and where to get the rest."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import to_json
from arht.errors import InputError

if TYPE_CHECKING:
    from arht.data import DataSet

__all__ = ["Data"]

WHO = "arht data"


@dataclass(frozen=True)
class Data:
    """List the data sets: how many pictures are here, or which file is missing and where to get it."""

    name: Annotated[Positional[str | None], arg(metavar="[NAME]", help_behavior_hint="")] = None
    """One data set alone."""
    fetch: bool = False
    """Download what is missing of the data set, where there is an address."""
    export: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Write the pictures as png files to FOLDER/CLASS/, a layout that arht train reads."""
    split: Annotated[str, arg(metavar="SPLIT")] = "train"
    """The split to export."""
    limit: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Export only so many pictures, evenly spaced."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """Where the data sets lie."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Look, fetch or export, print."""
        from arht.data import NAMES, data_set
        from arht.data.files import data_folder

        for flag, given in (("--fetch", self.fetch), ("--export", self.export is not None)):
            if given and self.name is None:
                raise InputError(f"{WHO}: {flag} goes with the name of a data set; got none. Write for instance mnist.")
        root = data_folder(self.data_dir)
        chosen = [data_set(name) for name in ([self.name] if self.name is not None else NAMES)]
        if self.export is not None:
            record = self._export(chosen[0].name, Path(self.export))
            sys.stdout.write(to_json(record) if self.json else f"{record['pictures']} pictures in {self.export}\n")
            return 0
        if self.fetch:
            _fetch(chosen[0], root)
        record = {"folder": str(root), "sets": [_about(one, root) for one in chosen]}
        sys.stdout.write(to_json(record) if self.json else _table(record))
        return 0

    def _export(self, name: str, folder: Path) -> dict[str, Any]:
        from PIL import Image

        from arht.data import load
        from arht.data.progress import Bar

        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{WHO}: --export must be a new or empty folder; got {folder}. Name another, or empty it.")
        images = load(name, self.split, data_dir=self.data_dir, limit=self.limit)
        with Bar("writing", len(images)) as bar:
            for i, picture in enumerate(images.pixels):
                label = None if images.labels is None else images.classes[int(images.labels[i])]
                place = folder if label is None else folder / label.replace("/", "_")
                place.mkdir(parents=True, exist_ok=True)
                array = picture[0].numpy() if len(picture) == 1 else picture.permute(1, 2, 0).numpy()
                Image.fromarray(array).save(place / f"{i:06d}.png")
                bar.update(1)
        return {"name": images.name, "split": self.split, "pictures": len(images), "export": str(folder)}


def _fetch(one: DataSet, root: Path) -> None:
    from arht.data.files import fetch

    for file in dict.fromkeys(file for files in one.files.values() for file in files):
        fetch(one.name, root, one.folders, file)


def _about(one: DataSet, root: Path) -> dict[str, Any]:
    """What is here of a data set, split by split."""
    from arht.data.files import find

    splits = {}
    for split, files in one.files.items():
        paths = [find(root, one.folders, file) for file in files]
        missing = [file for file, path in zip(files, paths, strict=True) if path is None]
        found: dict[str, Any] = {"pictures": None, "missing": [file.name for file in missing]}
        if missing:
            found["folder"] = str(root / one.folders[0])
            found["get"] = missing[0].page if missing[0].url is None or missing[0].is_archived else missing[0].url
            found["fetched"] = all(file.url is not None for file in missing)
        else:
            try:
                found["pictures"] = one.count([path for path in paths if path is not None], split)
            except (InputError, OSError, ValueError) as error:
                found["damaged"] = " ".join(str(error).split())
        splits[split] = found
    return {"name": one.name, "about": one.about, "options": list(one.options), "splits": splits}


def _merged(splits: dict[str, Any]) -> dict[str, Any]:
    """Splits that are the same under two names, in one row."""
    rows: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for split, found in splits.items():
        names.setdefault(str(found), []).append(split)
        rows[str(found)] = found
    return {", ".join(names[key]): found for key, found in rows.items()}


def _table(record: dict[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"data sets below {record['folder']}")
    for head in ("name", "split", "pictures", "what it is, or what is missing"):
        table.add_column(head, justify="right" if head == "pictures" else "left", overflow="fold")
    for one in record["sets"]:
        said = False
        for split, found in _merged(one["splits"]).items():
            if found["missing"]:
                how = "fetched when it is first used, from" if found["fetched"] else "get it from"
                text = f"needs {', '.join(found['missing'])} in {found['folder']}; {how} {found['get']}"
            else:
                text, said = found.get("damaged", "" if said else one["about"]), True
            pictures = "" if found["pictures"] is None else f"{found['pictures']:,}"
            table.add_row(one["name"], split, pictures, Text(text))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()
