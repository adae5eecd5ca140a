"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people, 105 x 105."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arht.data.dataset import DataSet
from arht.data.files import File, unreadable
from arht.data.listing import Listing, pictures_below

__all__ = ["SET"]

PAGE = "https://github.com/brendenlake/omniglot"
ADDRESS = PAGE + "/raw/master/python/"
MUST = "a folder of alphabets, each of them a folder of characters with pictures"


def read(paths: Sequence[Path], split: str, *, inverted: bool = True) -> Listing:
    """The drawings; a class is a character, named ``alphabet/character``.

    The two parts have no character in common. The files have dark strokes on white; ``inverted`` turns them to
    bright on black, as MNIST has them, and ``inverted=False`` leaves them.
    """
    (root,) = paths
    files: list[str] = []
    labels: list[int] = []
    classes: list[str] = []
    for character in _characters(root):
        found = [f"{character}/{file}" for file in pictures_below(root / character)]
        files += found
        labels += [len(classes)] * len(found)
        classes.append(character)
    if not files:
        raise unreadable("omniglot", root, MUST, "no pictures")
    return Listing(root, files, labels, tuple(classes), "omniglot", split, inverted=inverted)


def count(paths: Sequence[Path], split: str) -> int:
    """The number of drawings, from the names of the files."""
    return sum(len(list(pictures_below(paths[0] / character))) for character in _characters(paths[0]))


def _characters(root: Path) -> list[str]:
    if not root.is_dir():
        raise unreadable("omniglot", root, MUST, "a file")
    return sorted(f"{place.parent.name}/{place.name}" for place in root.glob("[!.]*/[!.]*") if place.is_dir())


BACKGROUND = (File("images_background", PAGE, ADDRESS + "images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),)
EVALUATION = (File("images_evaluation", PAGE, ADDRESS + "images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),)

SET = DataSet(
    "omniglot",
    "handwritten characters of 50 alphabets, grey, 105 x 105",
    {"background": BACKGROUND, "evaluation": EVALUATION, "train": BACKGROUND, "test": EVALUATION},
    read,
    count,
    folders=("omniglot", "omniglot-py", "."),
    options=("inverted",),
    channels=1,
)
