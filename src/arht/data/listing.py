"""Picture files and their labels, and decoding them, many at a time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from arht.data.images import Images, side_lengths, spaced
from arht.data.progress import Bar
from arht.errors import ArhtWarning, InputError

__all__ = ["SUFFIXES", "Listing", "decode", "pictures_below"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Suffixes, in lower or upper case, by which a file counts as a picture."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Listing:
    """Picture files below ``root`` with a label each; ``inverted`` pictures are turned from dark to bright."""

    root: Path
    files: Sequence[str]
    labels: Sequence[int] | None
    classes: tuple[str, ...]
    name: str
    split: str
    inverted: bool = False

    def __len__(self) -> int:
        return len(self.files)


def pictures_below(folder: Path) -> Iterator[str]:
    """The picture files in a folder, by name, in order; hidden ones are passed over."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.lower().endswith(SUFFIXES) and entry.is_file()]
    return iter(sorted(name for name in names if not name.startswith(".")))


def decode(
    listing: Listing,
    *,
    size: int | tuple[int, int] | None,
    channels: int,
    limit: int | None = None,
    unreadable: str = "refuse",
    progress: bool = True,
) -> Images:
    """The pictures themselves, [N, channels, *size], decoded and resized side by side by a few threads.

    ``unreadable`` says what happens to a file that is no picture: "refuse" raises one line that names the first and
    counts them; "skip" leaves them out, warns once, and names them in ``Images.skipped``.
    """
    if unreadable not in ("refuse", "skip"):
        raise InputError(f"load: unreadable must be 'refuse' or 'skip'; got {unreadable!r}.")
    if channels not in (1, 3):
        raise InputError(f"load: channels must be 1 (grey) or 3 (colour); got {channels!r}.")
    target = None if size is None else side_lengths(size)
    chosen = spaced(len(listing), limit).tolist()
    names = [listing.files[i] for i in chosen]

    def one(name: str) -> Pixels | str:
        return _decode_file(listing.root / name, target, channels, listing.inverted)

    out: Pixels | None = None
    kept: list[int] = []
    bad: list[tuple[str, str]] = []
    workers = min(8, (os.cpu_count() or 1) + 1)
    with ThreadPoolExecutor(workers) as pool, Bar(f"reading {listing.name}", len(names), shown=progress) as bar:
        for start in range(0, len(names), 1024):  # not all at once: the results of one part wait, no more
            for i, result in enumerate(pool.map(one, names[start : start + 1024]), start):
                bar.update(1)
                if isinstance(result, str):
                    bad.append((names[i], result))
                    continue
                if out is None:
                    out = np.empty((len(names), *result.shape), dtype=np.uint8)
                if result.shape != out.shape[1:]:
                    _several_shapes(listing, names[kept[0]], out.shape[1:], names[i], result.shape)
                out[len(kept)] = result
                kept.append(i)
    if bad and (unreadable == "refuse" or not kept):
        _refuse(listing, bad, len(names))
    if out is None:
        raise InputError(f"load: {listing.name} needs at least one picture in {listing.root}; got none.")
    if bad:
        warnings.warn(
            f"load: {listing.name}: skipped {len(bad)} of {len(names)} pictures that cannot be read; "
            f"the first is {listing.root / bad[0][0]}: {bad[0][1]}.",
            ArhtWarning,
            stacklevel=3,
        )
    labels = None
    if listing.labels is not None:
        labels = torch.tensor([listing.labels[chosen[i]] for i in kept], dtype=torch.int64)
    return Images(
        torch.from_numpy(out[: len(kept)]),
        labels,
        listing.classes,
        listing.name,
        listing.split,
        files=tuple(names[i] for i in kept),
        skipped=tuple(name for name, _ in bad),
    )


def _decode_file(path: Path, size: tuple[int, int] | None, channels: int, inverted: bool) -> Pixels | str:
    """[C, H, W], or the reason why not."""
    from PIL import Image, ImageOps

    mode = "L" if channels == 1 else "RGB"
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            if image.mode.startswith(("I", "F")):
                return f"its pixels are not 8-bit (mode {image.mode})"
            if size is not None:
                image.draft(None, (4 * size[1], 4 * size[0]))  # a large JPEG is decoded small: a draft, still >= 4x
            picture = image.convert(mode)
    except FileNotFoundError:
        return "it does not exist"
    except Exception as error:  # the decoders raise whatever a damaged byte leads them to
        reason = " ".join(str(error).replace(repr(str(path)), "it").replace(str(path), "it").split())
        return reason.rstrip(".")[:120] or type(error).__name__
    if inverted:
        picture = ImageOps.invert(picture)
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels: Pixels = np.asarray(picture)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _several_shapes(listing: Listing, first: str, shape: tuple[int, ...], other: str, got: tuple[int, ...]) -> None:
    raise InputError(
        f"load: {listing.name} needs pictures of one size, or a size to bring them to; got {first} with "
        f"{shape[1]} x {shape[2]} and {other} with {got[1]} x {got[2]}. Give size, for instance 32."
    )


def _refuse(listing: Listing, bad: list[tuple[str, str]], total: int) -> None:
    name, reason = bad[0]
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise InputError(
        f"load: {listing.name}: {len(bad)} of {total} pictures cannot be read: {listing.root / name} ({reason}){more}. "
        "Repair or remove them, or leave them out with unreadable='skip'."
    )
