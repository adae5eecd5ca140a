"""Retina: photographs of the back of the eye, with the stage of diabetic retinopathy."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from arht.data.dataset import DataSet
from arht.data.files import File, unreadable
from arht.data.listing import Listing, pictures_below

__all__ = ["SET", "in_test"]

PAGE = "https://www.kaggle.com/competitions/diabetic-retinopathy-detection/data"
CLASSES = ("none", "mild", "moderate", "severe", "proliferative")
MUST = "a table with the columns image and level, from 0 to 4"


def in_test(patient: str) -> bool:
    """Whether the patient is in test: one in five, by the SHA-256 of the number, so that it is the same everywhere."""
    return hashlib.sha256(patient.encode()).digest()[0] % 5 == 0


def read(paths: Sequence[Path], split: str) -> Listing:
    """The photographs whose files are there, the two eyes of a patient in the same split.

    The labels of the official test part were not published with it, so the official training part is divided.
    """
    root, table = paths
    levels = _levels(table)
    files = _chosen(root, split)
    if not files:
        raise unreadable("retina", root, "a folder of pictures <patient>_left or <patient>_right", "none of these")
    labels = []
    for file in files:
        name = file.rpartition(".")[0]
        if name not in levels:
            raise unreadable("retina", table, "a table with a row for every picture", f"no row for {name}")
        labels.append(levels[name])
    return Listing(root, files, labels, CLASSES, "retina", split)


def _levels(table: Path) -> dict[str, int]:
    with table.open(newline="", encoding="utf-8", errors="replace") as opened:
        rows = list(csv.reader(opened))
    if not rows or rows[0][:2] != ["image", "level"]:
        raise unreadable("retina", table, MUST, f"{','.join(rows[0]) if rows else 'nothing'!r} in line 1")
    for number, row in enumerate(rows[1:], 2):
        if len(row) < 2 or row[1] not in ("0", "1", "2", "3", "4"):
            raise unreadable("retina", table, MUST, f"{','.join(row)!r} in line {number}")
    return {row[0]: int(row[1]) for row in rows[1:]}


def _chosen(root: Path, split: str) -> list[str]:
    if not root.is_dir():
        raise unreadable("retina", root, "a folder of pictures", "a file")
    return [file for file in pictures_below(root) if in_test(file.partition("_")[0]) == (split == "test")]


def count(paths: Sequence[Path], split: str) -> int:
    """The number of photographs, from the names of the files."""
    return len(_chosen(paths[0], split))


PICTURES = File("train", PAGE)
LABELS = File("trainLabels.csv", PAGE)

SET = DataSet(
    "retina",
    "photographs of the retina, 5 stages of diabetic retinopathy, colour, brought to 64 x 64",
    {"train": (PICTURES, LABELS), "test": (PICTURES, LABELS)},
    read,
    count,
    folders=("drd", "retina", "diabetic-retinopathy-detection"),
    size=64,
)
