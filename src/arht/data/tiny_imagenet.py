"""Tiny ImageNet: photographs of 200 kinds of things, 64 x 64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.dataset import DataSet
from arht.data.files import File, unreadable
from arht.data.listing import Listing, pictures_below

__all__ = ["SET"]

PAGE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


def read(paths: Sequence[Path], split: str) -> Listing:
    """The photographs; a class is a WordNet identifier, in alphabetical order.

    The labels of the official test part were never published: here "test" and "val" are both the validation part.
    """
    root, names = paths
    classes = tuple(sorted(names.read_text(encoding="utf-8", errors="replace").split()))
    if not classes or len(set(classes)) < len(classes):
        raise unreadable("tiny-imagenet", names, "the identifiers of the classes, one a line", f"{len(classes)} words")
    files, labels = (_train if split == "train" else _annotated)(root, classes)
    if not files:
        raise unreadable("tiny-imagenet", root, "a folder with the pictures of these classes", "no pictures")
    return Listing(root, files, labels, classes, "tiny-imagenet", split)


def _train(root: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        if not (root / name / "images").is_dir():
            raise unreadable("tiny-imagenet", root / name / "images", "a folder of pictures", "no such folder")
        found = [f"{name}/images/{file}" for file in pictures_below(root / name / "images")]
        files += found
        labels += [label] * len(found)
    return files, labels


def _annotated(root: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    table, places = root / "val_annotations.txt", {name: label for label, name in enumerate(classes)}
    must = "lines of a picture and its class, separated by tabs"
    try:
        rows = [line.split("\t") for line in table.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    except OSError as error:
        raise unreadable("tiny-imagenet", table, must, error.strerror) from None
    for number, row in enumerate(rows, 1):
        if len(row) < 2 or row[1] not in places:
            raise unreadable("tiny-imagenet", table, must, f"{' '.join(row)!r} in line {number}")
    return [f"images/{row[0]}" for row in rows], [places[row[1]] for row in rows]


def count(paths: Sequence[Path], split: str) -> int:
    """The number of photographs, from the names of the files."""
    if split != "train":
        return sum(1 for _ in pictures_below(paths[0] / "images"))
    return sum(1 for place in paths[0].glob("*/images") for _ in pictures_below(place))


NAMES = File("wnids.txt", PAGE, PAGE, MD5)
VALIDATION = (File("val", PAGE, PAGE, MD5), NAMES)

SET = DataSet(
    "tiny-imagenet",
    "photographs of 200 classes, colour, 64 x 64",
    {"train": (File("train", PAGE, PAGE, MD5), NAMES), "test": VALIDATION, "val": VALIDATION},
    read,
    count,
    folders=("tiny-imagenet-200", "tiny-imagenet"),
)
