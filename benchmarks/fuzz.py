"""Damaged files, read by every reader: each either reads or gives the one line of `InputError`.

    python -m benchmarks.fuzz --inputs 100000 --out results/fuzz.json
    python -m benchmarks.fuzz --render results/fuzz.json

An input is a small valid file with one to four mutations: bits flipped, bytes overwritten by telling values, spans
cut out, repeated, swapped or filled, the file cut short or joined with another of its kind. Inputs are numbered, and
a number alone decides its input: `--only TARGET NUMBER` makes it again. The readers run in processes of their own,
so that a crash of a process is found too; a finding is any exception but `InputError`, a crash, or a minute's
silence.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arht.errors import ArhtWarning, InputError

Reader = Callable[[Path], object]
TELLING = (b"\0", b"\xff", b"\x80", b"\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0" * 8)
TELLING += (b"\xff" * 7 + b"\x7f", b",", b"\n", b'"', b"nan", b"-1", b"1e999", b"[", b"{", b"]", b"}", b":", b"O")


def seeds() -> dict[str, tuple[str, list[bytes], Reader]]:
    """Target -> suffix, valid files, reader."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import scipy.io

    import arht.detectors
    from arht.data.arrays import read_arrays
    from arht.data.cifar import read_records
    from arht.data.idx import read_idx
    from arht.data.svhn import read as read_svhn
    from arht.io import iter_tables, read_scores, read_table
    from arht.loading import load

    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 3))

    def saved(write: Callable[..., Any], *arguments: Any, **keywords: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.bin"
            with path.open("wb") as opened:
                write(opened, *arguments, **keywords)
            return path.read_bytes()

    def parquet(table: Any, **keywords: Any) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, **keywords)
        return sink.getvalue()

    def both(path: Path) -> None:
        """Whole and in chunks: they must agree on whether it can be read."""
        for _ in iter_tables(path, 5):
            pass
        if path.suffix != ".jsonl":
            read_table(path)

    def artefact(thing: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            thing.save(Path(folder) / "d.safetensors")
            return (Path(folder) / "d.safetensors").read_bytes()

    def scores() -> bytes:
        names = ("row", "statistic", "score", "pvalue", "ridge", "outcome", "adjusted_pvalue", "rejected")
        table = pa.table({name: np.arange(9) for name in names})
        return parquet(table.replace_schema_metadata({"arht": json.dumps({"schema": 1, "kind": "scores"})}))

    text = "\n".join(",".join(map(repr, row)) for row in x.tolist()).encode()
    lines = "\n".join(json.dumps(row) for row in x.tolist()).encode()
    objects = "\n".join(json.dumps({"x": row}) for row in x.tolist()).encode()
    columns = {f"x{i}": x[:, i] for i in range(3)}
    pixels = rng.integers(256, size=(3, 8, 8), dtype=np.uint8)
    idx = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in pixels.shape) + pixels.tobytes()
    records = rng.integers(10, size=(2, 1 + 3072), dtype=np.uint8).tobytes()
    house = {"X": rng.integers(256, size=(32, 32, 3, 2), dtype=np.uint8), "y": np.array([[1], [10]], dtype=np.uint8)}
    detectors = [arht.detectors.ARHTDetector(keep=4).fit(x).calibrate(x), arht.detectors.RHTDetector(keep=0).fit(x)]
    return {
        "npy": (
            ".npy",
            [saved(np.save, x), saved(np.save, x.astype(">f4")), saved(np.save, np.asfortranarray(x))],
            both,
        ),
        "npz": (".npz", [saved(np.savez, x), saved(np.savez_compressed, np.asfortranarray(x))], both),
        "csv": (".csv", [text, b"a,b,c\n" + text], both),
        "jsonl": (".jsonl", [lines, objects], both),
        "parquet": (
            ".parquet",
            [
                parquet(pa.table(columns)),
                parquet(pa.table({"e": list(x)}), row_group_size=5),
                parquet(pa.table(columns), compression="none", use_dictionary=False, write_page_checksum=True),
            ],
            both,
        ),
        "scores": (".parquet", [scores()], read_scores),
        "artefact": (".safetensors", [artefact(detector) for detector in detectors], load),
        "idx": (".gz", [idx, gzip.compress(idx, mtime=0)], lambda path: read_idx("mnist", path, 3)),
        "cifar": (
            ".bin",
            [records],
            lambda path: read_records("cifar10", "test", [path], tuple("0123456789"), label_bytes=1, label=0),
        ),
        "svhn": (
            ".mat",
            [saved(scipy.io.savemat, house), saved(scipy.io.savemat, house, do_compression=True)],
            lambda path: read_svhn([path], "test"),
        ),
        "arrays": (".npz", [saved(np.savez, x=pixels, y=np.arange(3))], lambda path: read_arrays(path, "train")),
    }


def mutated(files: list[bytes], target: str, number: int) -> bytes:
    """The input of that number."""
    rng = np.random.default_rng([zlib.crc32(target.encode()), number])
    data = bytearray(files[rng.integers(len(files))])
    for _ in range(rng.integers(1, 5)):
        if not data:
            break
        at, kind = int(rng.integers(len(data))), int(rng.integers(9))
        if rng.integers(2):  # headers and footers decide more than what they describe
            at = int(min(rng.integers(128), len(data) - 1)) if rng.integers(2) else max(0, len(data) - at % 256 - 1)
        span = int(rng.integers(1, 1 + max(1, len(data) // 8)))
        if kind <= 2:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 3:
            value = TELLING[rng.integers(len(TELLING))]
            data[at : at + len(value)] = value
        elif kind == 4:
            del data[at : at + span]
        elif kind == 5:
            data[at:at] = data[at : at + span]
        elif kind == 6:
            data[at : at + span] = rng.bytes(min(span, 64))
        elif kind == 7:
            del data[at:]
        else:
            other = files[rng.integers(len(files))]
            data[at:] = other[int(rng.integers(len(other))) :]
    return bytes(data)


def attempt(read: Reader, path: Path) -> str | None:
    """None, or what is wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ArhtWarning)
            read(path)
    except InputError as error:
        return None if str(error).count("\n") == 0 else f"more than one line: {error}"
    except Exception:
        return traceback.format_exc(limit=-3)
    return None


def shard(target: str, first: int, last: int, progress: Any) -> None:
    """Inputs first to last - 1 of a target; what was found is put in the queue."""
    import resource

    import pyarrow as pa
    import torch

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    suffix, files, read = seeds()[target]
    fast = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        path = Path(folder) / f"x{suffix}"
        for number in range(first, last):
            path.write_bytes(mutated(files, target, number))
            if number % 50 == 0:
                progress.put((number, None))
            if (found := attempt(read, path)) is not None:
                progress.put((number, found))
    progress.put((last, None))


def fuzz(target: str, count: int) -> list[dict[str, Any]]:
    """Findings of `count` inputs; a process that dies is followed by another, behind the input that killed it."""
    import queue

    context = multiprocessing.get_context("spawn")
    findings: list[dict[str, Any]] = []
    first = 0
    while first < count:
        progress = context.Queue()
        process = context.Process(target=shard, args=(target, first, count, progress), daemon=True)
        process.start()
        at, since = first, time.monotonic()
        while at < count:
            try:
                at, found = progress.get(timeout=1)
                since = time.monotonic()
                if found is not None:
                    findings.append({"target": target, "number": at, "what": found})
            except queue.Empty:
                if process.is_alive() and time.monotonic() - since < 120:
                    continue
                what = "no answer" if process.is_alive() else f"the process ended with {process.exitcode}"
                findings.append({"target": target, "number": f"{at} to {at + 49}", "what": what})
                process.kill()
                at += 50
                break
        process.join()
        first = at
    return findings


def measure(count: int) -> dict[str, Any]:
    targets = list(seeds())
    each = -(-count // len(targets))
    started, findings = time.perf_counter(), []
    for target in targets:
        found = fuzz(target, each)
        findings += found
        print(f"{target}: {each} inputs, {len(found)} findings", file=sys.stderr, flush=True)
    import pyarrow as pa
    import torch

    return {
        "benchmark": "fuzz",
        "inputs": each * len(targets),
        "targets": dict.fromkeys(targets, each),
        "findings": findings,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
        | {"pyarrow": pa.__version__},
    }


def render(record: dict[str, Any]) -> str:
    found: dict[str, int] = {}
    for finding in record["findings"]:
        found[finding["target"]] = found.get(finding["target"], 0) + 1
    rows = [f"| {target} | {count:,} | {found.get(target, 0)} |" for target, count in record["targets"].items()]
    return "\n".join(
        [
            f"{record['inputs']:,} damaged files, {len(record['findings'])} findings.",
            "",
            "| reader of | damaged files | findings |",
            "| --- | --- | --- |",
            *rows,
        ]
    )


def problems(targets: dict[str, Any], count: int, folder: Path) -> Iterator[str]:
    """In this process, for the tests: the findings among the first `count` inputs of each target."""
    for target, (suffix, files, read) in targets.items():
        path = folder / f"x{suffix}"
        for number in range(count):
            path.write_bytes(mutated(files, target, number))
            if (found := attempt(read, path)) is not None:
                yield f"{target} {number}: {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", nargs=2, metavar=("TARGET", "NUMBER"), help="one input again")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="write the record there")
    parser.add_argument("--render", type=Path, metavar="RECORD", help="print the table of an existing record")
    arguments = parser.parse_args()
    if arguments.render:
        print(render(json.loads(arguments.render.read_text())))
        return 0
    if arguments.only:
        target, number = arguments.only
        suffix, files, read = seeds()[target]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"x{suffix}"
            path.write_bytes(mutated(files, target, int(number)))
            print(attempt(read, path) or "no finding")
        return 0
    record = measure(arguments.inputs)
    text = json.dumps(record, indent=1)
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(arguments.out)
    print(text if arguments.json else render(record))
    return 1 if record["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
