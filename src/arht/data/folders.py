"""A folder of pictures of one's own: a sub-folder is a class."""

from __future__ import annotations

from pathlib import Path

from arht.data.listing import Listing, pictures_below
from arht.errors import InputError

__all__ = ["list_folder"]


def list_folder(folder: Path, split: str) -> Listing:
    """The pictures in ``folder/<class>/``, classes by name; below ``folder/<split>/`` where there is such a folder.

    A folder with pictures and no sub-folders has no labels.
    """
    splits = [name for name in ("train", "test", "val", "validation") if (folder / name).is_dir()]
    if (folder / split).is_dir():
        root = folder / split
    elif splits or split != "train":
        raise InputError(
            f"load: {folder} must have a sub-folder {split}; it has {', '.join(splits) or 'none for splits'}. "
            "Name the split that is there, or lay the pictures out so."
        )
    else:
        root = folder
    classes = tuple(sorted(place.name for place in root.iterdir() if place.is_dir() and place.name[0] != "."))
    files, labels = [], []
    for label, name in enumerate(classes):
        found = [f"{name}/{file}" for file in pictures_below(root / name)]
        files += found
        labels += [label] * len(found)
    if not classes:
        files = list(pictures_below(root))
    if not files:
        raise InputError(f"load: {root} must hold pictures (png, jpg, ...), one sub-folder a class; got none.")
    return Listing(root, files, labels if classes else None, classes, folder.name or "folder", split)
