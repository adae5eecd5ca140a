"""The work of ``arht fit --encoder``: a guard from data sets, folders and files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from arht.errors import ArhtWarning, InputError

if TYPE_CHECKING:
    from arht.commands.fit import Fit
    from arht.data import Images
    from arht.posterior import Posterior

__all__ = ["fit_guard", "own_parts"]

WHO = "arht fit"
SAMPLE = 1000
"""Reference inputs that are scored, so that a report can show how they lie."""


def fit_guard(options: Fit) -> tuple[Any, int, Any]:
    """The guard, the number of its calibration inputs, and reference inputs to score (None where none are at hand)."""
    import torch

    from arht.data.images import spaced
    from arht.data.progress import Bar
    from arht.guard import Guard
    from arht.io import artefact
    from arht.posterior.files import of_artefact

    assert options.encoder is not None
    kind, header, tensors = artefact.read(options.encoder)
    if kind != "encoder":
        raise InputError(f"{WHO}: --encoder must be an encoder's file; got {options.encoder}, which holds {kind!r}.")
    encoder = of_artefact(options.encoder, kind, header, tensors)
    generator = torch.Generator().manual_seed(options.seed)
    draws = 20 if options.draws is None else options.draws
    guard = Guard(encoder, options.mode or "auto", draws=draws, generator=generator)
    fraction = options.calibration_fraction
    split = options.calibration_split or "test"
    if fraction is not None:
        _never_seen(encoder, options)
    own = None if fraction is not None else own_parts(encoder, options.reference, options.split, options.data_dir)
    calibration = None if options.calibration is None else _calibration(encoder, options, split, own)
    if own is None and fraction is None and options.calibration is None:
        raise InputError(
            f"{WHO}: a guard needs inputs that the encoder never saw; got no --calibration. "
            "Give a data set of the same kind, or --calibration-fraction if the encoder saw none of REFERENCE."
        )
    sample = None
    with Bar("fitting", None if own is None else len(own[0]), shown=not options.quiet) as bar:
        if own is not None:
            guard.fit(_counted(_slices(own[0]), bar))
            sample = own[0][spaced(len(own[0]), SAMPLE)]
        else:
            kept = None if fraction is None else False
            guard.fit(_counted(_chunks(options, encoder, options.reference, options.split, kept), bar))
    with Bar("calibrating", None, shown=not options.quiet) as bar:
        counted = _Count()
        if fraction is not None:
            held: Iterable[Any] = _chunks(options, encoder, options.reference, options.split, True)
        elif isinstance(calibration, tuple):
            held = _chunks(options, encoder, calibration, split, None)
        elif calibration is not None:
            held = _slices(calibration)
        else:
            assert own is not None
            held = _slices(own[1])
        guard.calibrate(counted(_counted(held, bar)))
    return guard, counted.count, sample


def own_parts(
    encoder: Posterior, reference: tuple[str, ...], split: str, data_dir: str | None
) -> tuple[Images, Images] | None:
    """What `arht train` trained on of this data set, and what it held out; None where it is other data.

    The encoder's file lists the held-out images by their place in the training split, cut to ``--limit``.
    """
    from arht import data

    record = encoder.record if isinstance(encoder.record, dict) else {}
    places, about = record.get("heldout"), record.get("data") or {}
    if not places or len(reference) != 1 or not _trained_on(encoder, reference[0], split):
        return None
    transform = encoder.transform
    shape = {} if transform is None else {"size": transform.size, "channels": transform.channels}
    images = data.load(reference[0], "train", data_dir=data_dir, limit=record.get("limit"), **shape)
    count = sum(about.get(part) or 0 for part in ("train", "validation", "heldout"))
    if len(images) != count:
        raise InputError(
            f"{WHO}: {reference[0]} must be the data that the encoder was trained on, {count} images of its training "
            f"split; got {len(images)}, so that nobody can tell which were held out. Give --calibration."
        )
    inside = np.ones(count, dtype=bool)
    inside[places] = False
    return images[np.flatnonzero(inside)], images[np.flatnonzero(~inside)]


def _known(encoder: Posterior) -> str | None:
    """The data that the encoder was trained on, as its record names it."""
    record = encoder.record if isinstance(encoder.record, dict) else {}
    name = (record.get("options") or {}).get("data") or (record.get("data") or {}).get("name")
    return None if name is None else str(name)


def _trained_on(encoder: Posterior, data: str, split: str) -> bool:
    """Whether these are the training images of the encoder, as far as its record tells."""
    from arht.commands._fitted import split_of

    known = _known(encoder)
    return known is not None and split_of(data, split) == "train" and _place(data) == _place(known)


def _place(data: str) -> str:
    """One word for one set of data: where it lies, or the plain name of a data set."""
    from pathlib import Path

    if Path(data).exists():
        return str(Path(data).resolve())
    return data.lower().replace("_", "").replace("-", "")


def _advice(encoder: Posterior) -> str:
    record = encoder.record if isinstance(encoder.record, dict) else {}
    count = len(record.get("heldout") or ())
    if not count:
        return "Give other images with --calibration, or train it with --heldout 0.1."
    return f"Leave it out: the {count} images that arht train held out calibrate."


def _never_seen(encoder: Posterior, options: Fit) -> None:
    """A part of the reference calibrates only an encoder that was not trained on it."""
    from pathlib import Path

    from arht.data import NAMES

    for path in options.reference:
        if _trained_on(encoder, path, options.split):
            raise InputError(
                f"{WHO}: --calibration-fraction needs images that the encoder never saw; got {path}, which it was "
                f"trained on. {_advice(encoder)}"
            )
    known = _known(encoder)
    if known is None or not (Path(known).exists() or _place(known) in map(_place, NAMES)):
        warnings.warn(
            f"{WHO}: {options.encoder} does not say on which of the data at hand it was trained: p-values are "
            "conformal only if it never saw these images.",
            ArhtWarning,
            stacklevel=3,
        )


def _calibration(encoder: Posterior, options: Fit, split: str, own: Any) -> tuple[str, ...] | Images:
    """The files to calibrate on; of the data that the encoder was trained on, only what was held out."""
    from arht.commands._fitted import split_of

    paths = options.calibration or ()
    for path in paths:
        if _trained_on(encoder, path, split):
            if own is None and not any(_trained_on(encoder, other, options.split) for other in options.reference):
                own = own_parts(encoder, paths, split, options.data_dir)
            if own is not None and len(paths) == 1:
                return own[1]
            raise InputError(
                f"{WHO}: --calibration needs images that the encoder never saw; got {path}, which it was trained on. "
                f"{_advice(encoder)}"
            )
        for other in options.reference:
            if _place(path) == _place(other) and split_of(path, split) == split_of(other, options.split):
                raise InputError(
                    f"{WHO}: --calibration needs images that are not in the reference; got {path} as both. "
                    "Give others, or --calibration-fraction."
                )
    return paths


class _Count:
    """How many inputs went by."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, chunks: Iterable[Any]) -> Iterator[Any]:
        for chunk in chunks:
            self.count += len(chunk)
            yield chunk


def _counted(chunks: Iterable[Any], bar: Any) -> Iterator[Any]:
    for chunk in chunks:
        yield chunk
        bar.update(len(chunk))


def _slices(images: Images) -> Iterator[Images]:
    for start in range(0, len(images), 1024):
        yield images[start : start + 1024]


def _chunks(options: Fit, encoder: Posterior, paths: tuple[str, ...], split: str, held: bool | None) -> Iterator[Any]:
    """Inputs of some files; with a calibration fraction those that are held out, or the others."""
    from arht.commands._fitted import sources_of

    rng = np.random.default_rng(options.seed)
    for source in sources_of(WHO, paths, encoder=encoder, split=split, data_dir=options.data_dir):
        for chunk in source.chunks():
            x: Any = chunk.x
            if held is not None:
                chosen = (rng.random(len(chunk)) < (options.calibration_fraction or 0)) == held
                x = x[chosen] if isinstance(x, np.ndarray) else x[np.flatnonzero(chosen)]
            if len(x):
                yield x
