"""The rows of docs/errors.md about detectors on the command line, provoked."""

import re

import numpy as np
import pytest
import torch

from arht import nets, posterior
from arht.data import Transform, load
from arht.io import artefact
from arht.io.pieces import Pieces
from tests.commands.files import P, embeddings, run
from tests.errors_page import pattern, rows

ROWS = rows("Detectors on the command line")


def whole(folder):
    """A detector, for rows that are not about it."""


def missing(folder):
    (folder / "d.safetensors").unlink()


def another(folder):
    artefact.write(folder / "d.safetensors", "encoder", {}, {"x": torch.zeros(1)})


def newer(folder):
    kind, header, tensors = artefact.read(folder / "d.safetensors")
    artefact.SCHEMA += 1
    try:
        artefact.write(folder / "d.safetensors", kind, header, tensors)
    finally:
        artefact.SCHEMA -= 1


def cut(folder):
    path = folder / "d.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def flipped(folder):
    data = bytearray((folder / "d.safetensors").read_bytes())
    data[-40] ^= 1
    (folder / "d.safetensors").write_bytes(data)


def pickled(folder):
    import pickle

    (folder / "d.safetensors").write_bytes(pickle.dumps({"weights": [1, 2, 3]}))


def narrow(folder):
    np.save(folder / "narrow.npy", np.zeros((4, P - 1)))


def few(folder):
    np.save(folder / "few.npy", np.arange(5))


def table(folder):
    (folder / "q.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")


def pieces(folder):
    Pieces(folder / "s.parquet.part", {"detector": "another"})


def encoder(heldout, **options):
    """An untrained encoder of digits, with what arht train records."""

    def prepare(folder):
        with torch.random.fork_rng(devices=[]):
            net = nets.build({"architecture": "LeNet", "in_channels": 1, "image_size": 16, "num_classes": 10})
        transform = Transform.of(load("digits", size=16))
        record = {"options": options, "data": options, "heldout": list(range(heldout))}
        posterior.save(posterior.Deterministic(net), folder / "e.safetensors", transform=transform, record=record)

    return prepare


SCORE = "score d.safetensors query.npy --out s.parquet"
GUARD = "fit digits --encoder e.safetensors --out g.safetensors"
AUDIT = "audit d.safetensors heldout.npy"
# what is done before, and the command lines
CASES = {
    "a detector that is not there": (missing, SCORE),
    "a file of another purpose": (another, SCORE),
    "a detector of a newer schema": (newer, SCORE, AUDIT),
    "a detector cut short": (cut, SCORE, AUDIT),
    "a detector with a changed byte": (flipped, SCORE, AUDIT),
    "a pickle": (pickled, SCORE, AUDIT),
    "queries of another width": (narrow, "score d.safetensors narrow.npy --out s.parquet"),
    "files of two widths": (
        narrow,
        "fit reference.npy narrow.npy --out e.safetensors",
        "score d.safetensors query.npy narrow.npy --out s.parquet",
    ),
    "two calibrations": (
        whole,
        "fit reference.npy --out e.safetensors --calibration query.npy --calibration-fraction 0.1",
    ),
    "a calibration fraction beyond 1": (whole, "fit reference.npy --out e.safetensors --calibration-fraction 1.5"),
    "an option of another method of detection": (
        whole,
        "fit reference.npy --out e.safetensors --method hotelling --prior 0,1,0",
    ),
    "too few labels": (few, "fit reference.npy --out e.safetensors --labels few.npy --against class"),
    "a column that is not there": (table, "score d.safetensors q.csv --out s.parquet --id name"),
    "a scores file of another kind": (whole, "score d.safetensors query.npy --out s.xlsx"),
    "pieces of another run": (pieces, SCORE),
    "an FDR of 0": (whole, SCORE + " --fdr 0"),
    "one detector to merge": (whole, "merge d.safetensors --out m.safetensors"),
    "a detector merged with itself": (whole, "merge d.safetensors d.safetensors --out m.safetensors"),
    "an integer below its least": (whole, "fit reference.npy --out f.safetensors --threads 0"),
    "a guard's option for a detector": (whole, "fit reference.npy --out f.safetensors --calibration-split train"),
    "images of the encoder's training to calibrate": (
        encoder(120, data="digits"),
        GUARD + " --calibration-fraction 0.2",
    ),
    "the encoder's training split as calibration": (
        encoder(0, data="digits"),
        GUARD + " --calibration digits --calibration-split train",
    ),
    "one set as reference and calibration": (encoder(0), GUARD + " --calibration digits --calibration-split train"),
}


def test_every_row_is_provoked():
    assert set(ROWS) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_one_line(name, tmp_path, monkeypatch, capsys):
    embeddings(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "fit reference.npy --out d.safetensors --calibration calibration.npy")[0] == 0
    prepare, *lines = CASES[name]
    prepare(tmp_path)
    where, expected = ROWS[name]
    assert where == [f"arht {line.split()[0]}" for line in lines]
    for line in lines:
        before = set(tmp_path.iterdir())
        code, out, err = run(capsys, line)
        assert (code, out) == (2, "")
        said = re.sub(r"^arht \w+:", f"arht {line.split()[0]}:", expected)
        assert re.fullmatch(pattern(said) + r"\n", err), err
        assert set(tmp_path.iterdir()) == before
