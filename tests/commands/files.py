"""Files of embeddings and fresh processes for the tests of the commands."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import arht
from arht.cli import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(arht.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
P = 6


def embeddings(folder):
    """reference.npy, labels.npy, calibration.npy, heldout.npy and query.npy; the last 40 queries are shifted."""
    rng = np.random.default_rng(11)
    labels = rng.integers(3, size=900)
    centres = np.eye(3, P) * 4
    np.save(folder / "reference.npy", rng.standard_normal((900, P)) + centres[labels])
    np.save(folder / "labels.npy", labels)
    for name, count in (("calibration", 999), ("heldout", 400)):
        np.save(folder / f"{name}.npy", rng.standard_normal((count, P)) + centres[rng.integers(3, size=count)])
    query = rng.standard_normal((300, P)) + centres[rng.integers(3, size=300)]
    query[260:] += 6
    np.save(folder / "query.npy", query)


def run(capsys, line):
    """Exit code, standard output and standard error, in this process."""
    code = main(line.split())
    return code, *capsys.readouterr()


def process(line, **options):
    """The command in a process of its own."""
    words = [sys.executable, "-m", "arht", *line.split()]
    return subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **options)
