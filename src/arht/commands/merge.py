"""``arht merge``: detectors fitted on parts become the detector of the whole."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import to_json
from arht.errors import InputError

__all__ = ["Merge"]

WHO = "arht merge"


@dataclass(frozen=True)
class Merge:
    """Merge detectors that were fitted on parts of the reference, as if one had been fitted on all of it.

    They must be of one kind with the same options. A calibration is dropped: it belonged to one part's statistic.
    """

    detectors: Annotated[Positional[tuple[str, ...]], arg(metavar="DETECTOR...")]
    """Two or more files of detectors."""
    out: Annotated[str, arg(metavar="FILE")]
    """The file to write."""
    calibration: Annotated[tuple[str, ...] | None, arg(metavar="FILE...", help_behavior_hint="")] = None
    """Held-out in-distribution embeddings to calibrate the result on."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Read, merge, write, print."""
        record = _merge(self)
        sys.stdout.write(to_json(record) if self.json else _text(record))
        return 0


def _merge(options: Merge) -> dict[str, Any]:
    from arht.commands._fitted import load_fitted, plain_parameters, sources_of, versions, with_record, writable
    from arht.io.ahead import ahead

    if len(options.detectors) < 2:
        raise InputError(f"{WHO}: needs two or more detectors; got {len(options.detectors)}.")
    out = writable(WHO, options.out)
    parts = [load_fitted(WHO, path) for path in options.detectors]
    for part in parts:
        if part.kind != "detector":
            raise InputError(
                f"{WHO}: needs detectors; got {part.path}, which holds a {part.kind}. Fit a guard on all data."
            )
    for i, part in enumerate(parts):
        same = next((other for other in parts[:i] if other.digest == part.digest), None)
        if same is not None:
            raise InputError(
                f"{WHO}: every detector must be of another part of the reference; got {part.path}, which is "
                f"{same.path} again. Its inputs would count twice; name it once."
            )
    counts = [part.object.inputs for part in parts]
    whole = parts[0].object
    for part in parts[1:]:
        whole.merge(part.object)
    held = 0
    if options.calibration is not None:

        def chunks() -> Any:
            nonlocal held
            for source in sources_of(WHO, options.calibration or ()):
                for chunk in ahead(source.chunks()):
                    held += len(chunk)
                    yield chunk.x

        whole.calibrate(chunks())
    temporary = out.with_name(f".{out.name}.merge.tmp")
    try:
        whole.save(temporary)
        record = {
            "command": shlex.join(["arht", *sys.argv[1:]]),
            "versions": versions(),
            "parts": [
                {"path": part.path, "digest": part.digest, "inputs": count}
                for part, count in zip(parts, counts, strict=True)
            ],
            "inputs": whole.inputs,
            "calibration": held,
        }
        digest = with_record(temporary, record)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    about = {"class": type(whole).__name__, "parameters": plain_parameters(whole), "P": whole.width}
    return {"out": options.out, "digest": digest, **about, **record}


def _text(record: dict[str, Any]) -> str:
    from arht.commands._table import two_columns

    parts = " + ".join(f"{part['inputs']:,}" for part in record["parts"])
    return two_columns(
        f"arht merge: {record['out']}",
        {
            "detector": record["class"],
            "reference": f"{parts} = {record['inputs']:,} inputs, P = {record['P']}",
            "calibration": f"{record['calibration']:,} held-out inputs" if record["calibration"] else "none",
            "digest": record["digest"],
        },
    )
