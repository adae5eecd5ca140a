"""``load``: any data set by its name, a folder of pictures, or arrays in a file, all as Images."""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from arht.data.dataset import DataSet
from arht.data.files import data_folder, fetch
from arht.data.images import Images, spaced
from arht.data.listing import Listing, decode
from arht.errors import InputError

__all__ = ["NAMES", "data_set", "load"]

NAMES = {
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "svhn": "svhn",
    "omniglot": "omniglot",
    "tiny-imagenet": "tiny_imagenet",
    "retina": "retina",
    "digits": "digits",
}
"""Names of the data sets, and the module of each."""


def data_set(name: str) -> DataSet:
    """The data set of that name; case, ``_`` and ``-`` do not matter."""
    plain = name.lower().replace("_", "-")
    plain = plain if plain in NAMES else plain.replace("-", "")
    if plain not in NAMES:
        near = difflib.get_close_matches(plain, NAMES, n=3, cutoff=0.4)
        raise InputError(
            f"load: data must be one of {', '.join(NAMES)}, a folder of pictures or an npz file; got {name!r}"
            f"{', near ' + ' or '.join(near) if near else ', and there is no such file or folder'}. Check the name."
        )
    found: DataSet = import_module(f"arht.data.{NAMES[plain]}").SET
    return found


def load(
    data: str | os.PathLike[str],
    split: str = "train",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    limit: int | None = None,
    unreadable: str = "refuse",
    download: bool = True,
    progress: bool = True,
    **options: Any,
) -> Images:
    """Pictures [N, C, H, W] and labels of a data set.

    Parameters
    ----------
    data : str or path
        A name (see ``arht data``); a folder, with one sub-folder a class or none; an npz file.
    split : str
        "train", "test" and what else the set has.
    data_dir : path, optional
        Where the official files lie. Default: ``ARHT_DATA``, else ``~/.cache/arht-data``. What is absent is
        downloaded from its official address, where there is one.
    size, channels : int, optional
        Bring all pictures to this height and width, and to grey (1) or colour (3).
    limit : int, optional
        Take so many, evenly spaced over the set.
    unreadable : "refuse" or "skip"
        What happens to a picture file that cannot be read.
    """
    text = os.fspath(data)
    path = Path(text)
    if path.is_dir() or path.suffix == ".npz":
        from arht.data.arrays import read_arrays
        from arht.data.folders import list_folder

        found: Images | Listing = list_folder(path, split) if path.is_dir() else read_arrays(path, split)
        given_size, given_channels = size, channels
        if options:
            raise InputError(f"load: {path} takes no options of its own; got {next(iter(options))!r}. Leave it out.")
    else:
        chosen = data_set(text)
        unknown = sorted(set(options) - set(chosen.options))
        if split not in chosen.files:
            raise InputError(f"load: {chosen.name} has the splits {', '.join(chosen.splits)}; got {split!r}.")
        if unknown:
            raise InputError(
                f"load: {chosen.name} takes {', '.join(chosen.options) or 'no options of its own'}; got {unknown[0]!r}."
            )
        root = data_folder(data_dir)
        paths = [fetch(chosen.name, root, chosen.folders, file, download=download) for file in chosen.files[split]]
        found = chosen.read(paths, split, **options)
        given_size = chosen.size if size is None else size
        given_channels = chosen.channels if channels is None else channels
    if isinstance(found, Listing):
        return decode(
            found, size=given_size, channels=given_channels or 3, limit=limit, unreadable=unreadable, progress=progress
        )
    if limit is not None:
        found = found[spaced(len(found), limit)]
    return found.reshaped(size, channels)
