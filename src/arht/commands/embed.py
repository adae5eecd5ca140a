"""``arht embed``: what an encoder makes of some inputs, written to a file."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import check_least, to_json
from arht.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from arht.data import Images
    from arht.posterior import Posterior

__all__ = ["Embed"]

WHO = "arht embed"
SPLITS = ("trained", "heldout")
BYTES = 32 << 20
"""Size of a chunk of embeddings, about."""


@dataclass(frozen=True)
class Embed:
    """Write the draws of every input's embedding to a parquet or npz file, one row per input.

    DATA is the name of a data set (see arht data), a folder of images, an npz file of images or, for an encoder of
    vectors, a table. The inputs are brought to the encoder's size and scaling as its file says.
    """

    encoder: Annotated[Positional[str], arg(metavar="ENCODER")]
    """File of an encoder, as arht train writes it."""
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Name of a data set, a folder of images, an npz file or a table."""
    out: Annotated[str, arg(metavar="FILE")]
    """The file to write, .parquet or .npz."""
    at: Annotated[tuple[str, ...], arg(metavar="LAYER...")] = ("embedding",)
    """Layers by name, a feature map reduced as LAYER:POOLING says (mean, spread, moments, grid4, flatten)."""
    draws: Annotated[int, arg(metavar="K")] = 20
    """Weight draws. All inputs meet the same."""
    seed: Annotated[int, arg(metavar="INTEGER")] = 0
    """Seed of the weight draws: the same seed gives the same bank of draws for every data set."""
    split: Annotated[str, arg(metavar="SPLIT")] = "test"
    """Split of the data; trained and heldout are the parts of train that arht train used and set apart."""
    moments: bool = False
    """Instead of the draws, the mean and the scatter of each input's draws."""
    labels: bool = False
    """Add a column with the labels."""
    limit: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Take only so many inputs, evenly spaced."""
    unreadable: Annotated[str, arg(metavar="refuse|skip")] = "refuse"
    """What happens to an image file that cannot be read."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """Where the data sets lie."""
    threads: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Threads of torch."""
    quiet: bool = False
    """No progress on standard error."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Read, draw, write, print."""
        record = _embed(self)
        sys.stdout.write(to_json(record) if self.json else _line(record))
        return 0


def _embed(options: Embed) -> dict[str, Any]:
    check_least(WHO, options, draws=1, seed=0, limit=1, threads=1)
    import torch

    from arht.data.progress import Bar
    from arht.io import artefact
    from arht.io.embeddings import ArrayWriter
    from arht.posterior.files import of_artefact

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    kind, header, tensors = artefact.read(options.encoder)
    encoder = of_artefact(options.encoder, kind, header, tensors)
    at = list(options.at)
    record: dict[str, Any] = {
        "encoder": {"path": options.encoder, "digest": artefact.digest(kind, header, tensors)},
        "data": options.data,
        "split": options.split,
        "at": at,
        "seed": options.seed,
        "moments": options.moments,
    }
    with ArrayWriter(options.out, record) as writer:
        count, inputs, labels = _inputs(options, encoder)
        if options.labels and labels is None:
            raise InputError(f"{WHO}: --labels needs data with labels; {options.data} has none. Leave it out.")
        bank = encoder.bank(options.draws, generator=torch.Generator().manual_seed(options.seed))
        started, first, rows = time.perf_counter(), 0, 16
        with Bar("embedding", count, shown=not options.quiet) as bar:
            while first < count:
                drawn = encoder.draw(inputs(first, min(first + rows, count)), at=at, bank=bank)
                arrays = {name: values.cpu().numpy() for name, values in drawn.items()}
                if first == 0:
                    record["shapes"] = {name: list(array.shape[1:]) for name, array in arrays.items()}
                    rows = max(1, BYTES // sum(array[0].nbytes for array in arrays.values()))
                arrays = _moments(arrays) if options.moments else _squeezed(arrays)
                if options.labels:
                    arrays["label"] = labels[first : first + len(next(iter(arrays.values())))]
                writer.write(arrays)
                step = len(next(iter(arrays.values())))
                first += step
                bar.update(step)
        record |= {"rows": count, "draws": bank.draws}
    return {**record, "out": options.out, "seconds": round(time.perf_counter() - started, 3)}


def _inputs(options: Embed, encoder: Posterior) -> tuple[int, Callable[[int, int], Any], Any]:
    """The number of inputs, what gives the tensor of some of them, and the labels."""
    if encoder.transform is None and Path(options.data).suffix.lower() in (".npy", ".npz", ".csv", ".parquet"):
        from arht.io import read_table

        table = read_table(options.data)[: options.limit]
        return len(table), lambda first, last: table[first:last], None
    images = _images(options, encoder)
    transform = encoder.transform
    if transform is None:
        raise InputError(
            f"{WHO}: {options.encoder} must say how images become inputs; it has no transform. "
            "Save it with encoder.save(path, transform=...)."
        )
    labels = None if images.labels is None else images.labels.numpy()
    return len(images), lambda first, last: transform(images.pixels[first:last]), labels


def _images(options: Embed, encoder: Posterior) -> Images:
    """The images, or those of the training part that the encoder's file says."""
    from arht.commands._fitted import split_of
    from arht.data import load
    from arht.data.images import spaced

    transform = encoder.transform
    shape = {} if transform is None else {"size": transform.size, "channels": transform.channels}
    common = {"data_dir": options.data_dir, "unreadable": options.unreadable, "progress": not options.quiet, **shape}
    if options.split not in SPLITS:
        return load(options.data, split_of(options.data, options.split), limit=options.limit, **common)
    record = encoder.record if isinstance(encoder.record, dict) else {}
    trained_on = record.get("options", {}).get("data", "not trained by arht train")
    if trained_on != options.data:
        raise InputError(
            f"{WHO}: --split {options.split} needs the data that the encoder was trained on; got {options.data}, it "
            f"was {trained_on}. Name a split of the data itself."
        )
    images = load(options.data, "train", limit=record["limit"], **common)
    import torch

    held = torch.zeros(len(images), dtype=torch.bool)
    held[torch.tensor(record["heldout"], dtype=torch.int64)] = True
    part = images[held if options.split == "heldout" else ~held]
    if not len(part):
        raise InputError(
            f"{WHO}: the encoder was trained without images held out, so there are none. Train it with --heldout 0.1."
        )
    return part[spaced(len(part), options.limit)]


def _squeezed(arrays: dict[str, Any]) -> dict[str, Any]:
    """[b, P] where there is one draw."""
    return {name: array[:, 0] if array.shape[1] == 1 else array for name, array in arrays.items()}


def _moments(arrays: dict[str, Any]) -> dict[str, Any]:
    """Number, mean [b, P] and scatter [b, P, P] of the draws of each input."""
    import numpy as np

    out: dict[str, Any] = {}
    for name, draws in arrays.items():
        mean = draws.mean(1, dtype=np.float64)
        centred = draws - mean[:, None]
        out[f"{name}/n"] = np.full(len(draws), draws.shape[1])
        out[f"{name}/mean"], out[f"{name}/scatter"] = mean, centred.transpose(0, 2, 1) @ centred
    return out


def _line(record: dict[str, Any]) -> str:
    shapes = ", ".join(f"{name} {k} x {p}" for name, (k, p) in record["shapes"].items())
    what = "moments of draws" if record["moments"] else "draws"
    return f"{record['rows']} inputs, {what}: {shapes}; {record['seconds']:.1f} s; {record['out']}\n"
