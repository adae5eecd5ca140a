"""What the commands on detectors share: the fitted object in a file, the tables it is given, what a record says."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arht.errors import InputError

if TYPE_CHECKING:
    from arht.io._rows import Rows, Source

__all__ = [
    "Fitted",
    "Images",
    "audited",
    "load_fitted",
    "sources_of",
    "split_of",
    "summary",
    "threads",
    "versions",
    "with_record",
    "writable",
]

QUANTILES = 201

SPLITS = ("train", "test", "val", "validation")
"""Sub-folders of pictures that are splits, not classes."""


@dataclass(frozen=True)
class Fitted:
    """A detector or a guard, and what its file says."""

    path: str
    kind: str
    object: Any
    digest: str
    record: dict[str, Any] | None

    def about(self) -> dict[str, Any]:
        """For a run record."""
        return {
            "path": self.path,
            "digest": self.digest,
            "kind": self.kind,
            "class": type(self.object).__name__,
            "parameters": plain_parameters(self.object),
            "inputs": self.object.inputs,
            "P": getattr(self.object, "width", None),
            "record": self.record,
        }

    @property
    def calibration(self) -> Any:
        """Scores of the calibration inputs on the scale of `score`, or None."""
        law = self.object._law
        if law is None:
            return None
        if getattr(self.object, "tail", "upper") == "two-sided":
            return (-self.object._margin.log_pvalue(law.scores)).numpy()
        return law.scores.numpy()


def plain_parameters(thing: Any) -> dict[str, Any]:
    """The arguments that made it, as JSON has them."""
    from arht.commands._common import plain

    if not hasattr(thing, "parameters"):
        return {"mode": repr(thing.mode), "combine": thing.combine}
    return {name: plain(value) for name, value in thing.parameters.items()}


def load_fitted(who: str, path: str) -> Fitted:
    """The detector or guard in a file."""
    from arht.io import artefact
    from arht.loading import load

    kind, header, tensors = artefact.read(path)
    digest = artefact.digest(kind, header, tensors)
    del tensors
    if kind not in ("detector", "guard"):
        raise InputError(
            f"{who}: needs a detector or a guard; got {path}, which holds {kind!r}. Make one with arht fit."
        )
    return Fitted(path, kind, load(path), digest, header.get("record"))


def with_record(path: Path, record: dict[str, Any]) -> str:
    """Put the run record into the artefact, and return its digest."""
    from arht.io import artefact

    kind, header, tensors = artefact.read(path)
    return artefact.write(path, kind, {**header, "record": record}, tensors)


def split_of(data: str, split: str) -> str:
    """The split to ask for: a folder or an npz file without splits is taken as it is, where one of a test is meant."""
    path = Path(data)
    if split != "test":
        return split
    if path.is_dir():
        return split if any((path / name).is_dir() for name in SPLITS) else "train"
    if path.suffix == ".npz" and path.is_file():
        import zipfile

        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except (OSError, zipfile.BadZipFile):
            return split  # whoever reads it says so
        return "train" if "x.npy" in names and not any(name.startswith("x_") for name in names) else split
    return split


class Images:
    """Images of a data set, in chunks as tables are: what a guard is given."""

    def __init__(self, name: str, encoder: Any, split: str, data_dir: str | None) -> None:
        from arht.data import load

        transform = encoder.transform
        shape = {} if transform is None else {"size": transform.size, "channels": transform.channels}
        self.path, self.images = name, load(name, split_of(name, split), data_dir=data_dir, **shape)
        self.count = len(self.images)

    def digest(self) -> str:
        """Of the pictures, whatever file they came from."""
        import hashlib

        pixels = self.images.pixels.contiguous().numpy()
        return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()

    def rows(self) -> int:
        """Images at a time."""
        return 1024

    def chunks(self, rows: int | None = None, start: int = 0) -> Iterator[Rows]:
        """Chunks of images."""
        import pyarrow as pa

        from arht.io._rows import Rows

        size = rows or self.rows()
        for at in range(start, self.count, size):
            part = self.images[at : at + size]
            labels = {} if part.labels is None else {"class": pa.array(part.labels.numpy())}
            yield Rows(part, labels)  # type: ignore[arg-type]


def sources_of(
    who: str,
    paths: Sequence[str],
    kinds: dict[str, str] | None = None,
    *,
    encoder: Any = None,
    split: str = "test",
    data_dir: str | None = None,
    absent: bool = False,
) -> list[Source | Images]:
    """The tables of some files, all of one width; for an encoder of images, the images.

    `kinds` are columns apart from the embedding; with `absent` a file may lack them.
    """
    from arht.io import STREAMS, open_table

    if list(paths).count("-") > 1:
        raise InputError(f"{who}: standard input can be read once; got - twice.")
    if encoder is not None and encoder.transform is not None:
        if kinds:
            raise InputError(f"{who}: images have no columns; got {next(iter(kinds))!r}. Leave it out.")
        return [Images(path, encoder, split, data_dir) for path in paths]
    if any(Path(path).suffix.lower() not in STREAMS and path != "-" and Path(path).is_dir() for path in paths):
        raise InputError(
            f"{who}: needs files of embeddings; got a folder. Images need a guard: see arht fit --encoder."
        )
    found = [open_table(path, kinds or {}, absent=absent) for path in paths]
    shapes = {source.shape[-1]: source.path for source in found if source.shape is not None}
    if len(shapes) > 1:
        (p, first), (q, second) = list(shapes.items())[:2]
        raise InputError(
            f"{who}: every file must have the same number of columns; got P={p} in {first} and P={q} in {second}. "
            "They are not embeddings of one layer."
        )
    return list(found)


def summary(scores: Any) -> dict[str, Any] | None:
    """How scores are spread, or None for none."""
    if scores is None:
        return None
    values = np.asarray(scores, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    return {
        "n": int(values.size),
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)) if values.size > 1 else None,
        "quantiles": np.quantile(values, np.linspace(0, 1, QUANTILES)).tolist(),
    }


def audited(who: str, fitted: Fitted, paths: Sequence[str], fdr: float, tests: int | None, **where: Any) -> Any:
    """The audit on held-out files; of their embeddings only p-values and scores are kept."""
    from dataclasses import replace

    from arht.evaluation.audits import audit
    from arht.io.ahead import ahead

    encoder = getattr(fitted.object, "encoder", None)
    result, parts = None, []
    for source in sources_of(who, paths, encoder=encoder, **where):
        for chunk in ahead(source.chunks()):
            result = fitted.object.test(chunk.x)
            parts.append([np.asarray(values) for values in (result.pvalue, result.statistic, result.score)])
    if result is None:
        raise InputError(f"{who}: needs held-out inputs; got none.")
    law = fitted.object._law
    pvalue, statistic, score = (np.concatenate(part) for part in zip(*parts, strict=True))
    whole = replace(result, pvalue=pvalue, statistic=statistic, score=score)
    return audit(whole, calibration=None if law is None else law.scores, fdr=fdr, tests=tests)


def versions() -> dict[str, str]:
    """Of what a run depends on."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("arht", "torch", "numpy", "pyarrow")
    }


def writable(who: str, name: str) -> Path:
    """The path of a file that can be written, before time is spent on it."""
    import os

    path = Path(name)
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(
            f"{who}: --out must be a file in a folder that can be written to; got {name}. Make the folder."
        )
    return path


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many threads of torch and arrow, and arrow's memory from the system; afterwards all is as before.

    The other allocators of arrow give memory back and fetch it again with every chunk: more work than reading it.
    """
    import pyarrow as pa
    import torch

    before = torch.get_num_threads(), pa.cpu_count(), pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    if count is not None:
        torch.set_num_threads(count)
        pa.set_cpu_count(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        pa.set_cpu_count(before[1])
        pa.set_memory_pool(before[2])
