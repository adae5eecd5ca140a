"""`arht score` on a million embeddings in parquet, beside reading the file and multiplying it once by a matrix.

    python -m benchmarks.streaming --json                       # prints the record
    python -m benchmarks.streaming --out results/streaming.json
    python -m benchmarks.streaming --render results/streaming.json

Each is a process of its own, the two in turns; the ratio is of one pair. The baseline reads the file with pyarrow and
multiplies it, in the file's single precision, by one P x P matrix; it keeps no result. The command reads, scores
with a fitted and calibrated `ARHTDetector` in double precision, decides over all rows, and writes the scores. Its time
is counted twice: from its first line to the written file (as the run record says), over reading and multiplying
alone; and the whole process, start of Python and imports included, over the whole process of the baseline. Peak
memory is that of the command's process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS, P, REFERENCE, CALIBRATION = 1_000_000, 128, 50_000, 20_000
MEMORY_LIMIT_MB, RATIO_LIMIT = 1000.0, 3.0

BASELINE = """
import sys, time
import numpy as np, pyarrow.parquet as pq
started = time.perf_counter()
table = pq.read_table(sys.argv[1])
if table.num_columns == 1:
    x = table.column(0).combine_chunks().flatten().to_numpy().reshape(len(table), -1)
else:
    x = np.empty((table.num_columns, len(table)), np.float32)
    for i in range(table.num_columns):
        x[i] = table.column(i).to_numpy()
    x = x.T
product = x @ np.eye(x.shape[1], dtype=np.float32)
print(time.perf_counter() - started)
"""


def make(path: str, layout: str, rows: int) -> None:
    """The queries: float32, as pyarrow writes them by default."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).standard_normal((rows, P), dtype=np.float32)
    if layout == "columns":
        table = pa.table({f"x{i}": np.ascontiguousarray(x[:, i]) for i in range(P)})
    else:
        table = pa.table({"embedding": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), P)})
    pq.write_table(table, path)


def run(*words: str, threads: int) -> tuple[str, float, float, float]:
    """Standard output, seconds of the clock and of the processor, and peak memory in MB of a fresh process."""
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))}
    started = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"benchmarks.streaming: {' '.join(words[:4])} ended with {process.returncode}")
    return out, time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(pairs: int, rows: int) -> dict[str, Any]:
    threads = os.cpu_count() or 1
    arht = (sys.executable, "-m", "arht")
    cells = []
    with tempfile.TemporaryDirectory(prefix="arht-streaming-") as name:
        folder = Path(name)
        rng = np.random.default_rng(1)
        for part, count in (("reference", REFERENCE), ("calibration", CALIBRATION)):
            np.save(folder / f"{part}.npy", rng.standard_normal((count, P), dtype=np.float32))
        detector, scores = str(folder / "detector.safetensors"), str(folder / "scores.parquet")
        fit = (str(folder / "reference.npy"), "--calibration", str(folder / "calibration.npy"), "--out", detector)
        run(*arht, "fit", *fit, "--quiet", threads=threads)
        for layout in ("columns", "list"):
            path = str(folder / f"{layout}.parquet")
            # not in this process: a child's peak memory begins with that of its parent
            code = f"from benchmarks.streaming import make; make({path!r}, {layout!r}, {rows})"
            run(sys.executable, "-c", code, threads=threads)
            found: list[dict[str, float]] = []
            for pair in range(pairs + 1):  # the first warms the file cache and does not count
                both: dict[str, Any] = {}
                for side in ("ours", "base") if pair % 2 else ("base", "ours"):
                    if side == "ours":
                        command = (*arht, "score", detector, path, "--out", scores, "--quiet", "--json")
                    else:
                        command = (sys.executable, "-c", BASELINE, path)
                    both[side] = run(*command, threads=threads)
                if pair:
                    record = json.loads(both["ours"][0])
                    assert record["rows"] == record["tested"] == rows
                    (_, whole, cpu, memory), (out, base_whole, base_cpu, base_memory) = both["ours"], both["base"]
                    found.append(
                        {"seconds": record["seconds"], "whole": whole, "cpu": cpu, "memory": memory}
                        | {"base_seconds": float(out), "base_whole": base_whole, "base_cpu": base_cpu}
                        | {"base_memory": base_memory}
                    )
                    print(layout, {k: round(v, 2) for k, v in found[-1].items()}, file=sys.stderr)
            cells.append({"layout": layout, "file_mb": os.path.getsize(path) / 1e6, **summarise(found)})
            os.unlink(path)
    import pyarrow as pa
    import torch

    return {
        "benchmark": "streaming",
        "rows": rows,
        "P": P,
        "reference": REFERENCE,
        "calibration": CALIBRATION,
        "threads": threads,
        "pairs": pairs,
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "pyarrow": pa.__version__},
        "cells": cells,
        "memory_limit_mb": MEMORY_LIMIT_MB,
        "ratio_limit": RATIO_LIMIT,
    }


def summarise(found: list[dict[str, float]]) -> dict[str, Any]:
    def spread(values: list[float]) -> list[float]:
        return [float(v) for v in np.quantile(values, (0.25, 0.5, 0.75))]

    return {
        "ratio": spread([row["seconds"] / row["base_seconds"] for row in found]),
        "whole_ratio": spread([row["whole"] / row["base_whole"] for row in found]),
        "cpu_ratio": spread([row["cpu"] / row["base_cpu"] for row in found]),
        "peak_mb": max(row["memory"] for row in found),
        "base_peak_mb": max(row["base_memory"] for row in found),
        "pairs": found,
    }


def passed(record: dict[str, Any]) -> bool:
    limit, memory = record["ratio_limit"], record["memory_limit_mb"]
    return all(
        cell["ratio"][1] <= limit and cell["whole_ratio"][1] <= limit and cell["peak_mb"] < memory
        for cell in record["cells"]
    )


def render(record: dict[str, Any]) -> str:
    lines = [
        f"{record['rows']:,} x {record['P']} embeddings in float32, {record['threads']} threads, medians of "
        f"{record['pairs']} interleaved pairs; torch {record['versions']['torch']}, pyarrow "
        f"{record['versions']['pyarrow']}; load of the machine {record['load']:.1f}.",
        "",
        "| parquet layout | file, MB | scoring / (reading + product) | quartiles | whole processes | processor time | "
        "peak memory, MB | of the baseline, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = {"columns": "one column per dimension", "list": "one column of lists"}
    lines += [
        f"| {names[c['layout']]} | {c['file_mb']:.0f} | **{c['ratio'][1]:.2f}** | {c['ratio'][0]:.2f} to "
        f"{c['ratio'][2]:.2f} | {c['whole_ratio'][1]:.2f} | {c['cpu_ratio'][1]:.2f} | **{c['peak_mb']:.0f}** | "
        f"{c['base_peak_mb']:.0f} |"
        for c in record["cells"]
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="write the record there")
    parser.add_argument("--render", type=Path, metavar="RECORD", help="print the table of an existing record")
    arguments = parser.parse_args()
    if arguments.render:
        print(render(json.loads(arguments.render.read_text())))
        return 0
    record = measure(arguments.pairs, arguments.rows)
    text = json.dumps(record, indent=1)
    if arguments.out:
        temporary = arguments.out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(arguments.out)
    print(text if arguments.json else render(record))
    return 0 if passed(record) else 1


if __name__ == "__main__":
    sys.exit(main())
