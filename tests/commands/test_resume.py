"""A run of `arht score` that is killed goes on where it stopped, and ends with the same bits."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from arht.commands import _scoring
from arht.io import _rows, read_scores, scores
from arht.io.pieces import Pieces
from tests.commands.files import ENVIRONMENT, P, embeddings, run

SLOW = """
import sys, time
from arht.commands import _scoring
from arht.io import _rows
_rows.BYTES = 8 * 64 * 6  # chunks of 64 rows
_scoring.PIECE_ROWS = 64
from arht.io.pieces import Pieces
append = Pieces.append
def slowly(self, batches):
    append(self, batches)
    time.sleep(0.3)
Pieces.append = slowly
from arht.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """Two files of queries, scored in chunks and pieces of 64 rows."""
    embeddings(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_rows, "BYTES", 8 * 64 * P)
    monkeypatch.setattr(_scoring, "PIECE_ROWS", 64)
    np.save("many.npy", np.random.default_rng(0).standard_normal((1000, P)))
    assert run(capsys, "fit reference.npy --out d.safetensors --calibration calibration.npy")[0] == 0
    return tmp_path


LINE = "score d.safetensors many.npy query.npy --out s.parquet"


def same(a, b):
    assert list(a.columns) == list(b.columns)
    for name, column in a.columns.items():
        assert column.tolist() == b.columns[name].tolist(), name
    for name in ("queries", "outcomes", "decision", "rows", "guarantee", "null", "calibration"):
        assert a.record[name] == b.record[name]


def test_killed_and_resumed(folder, capsys):
    assert run(capsys, LINE.replace("s.parquet", "whole.parquet"))[0] == 0
    part = folder / "s.parquet.part"
    words = [sys.executable, "-c", SLOW, *LINE.split()]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 100
        while len(list(part.glob("*.arrow"))) < 4 and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = len(list(part.glob("*.arrow")))
    assert 4 <= done < 20
    assert not (folder / "s.parquet").exists()
    (part / ".00000099.arrow").write_bytes(b"half a piece")
    last = sorted(part.glob("*.arrow"))[-1]
    last.write_bytes(last.read_bytes()[:100])  # and one that the disk did not keep
    code, _, err = run(capsys, LINE)
    assert code == 0
    assert f"goes on at row {64 * (done - 1)}" in err
    assert not part.exists()
    same(read_scores("whole.parquet"), read_scores("s.parquet"))


def test_everything_but_the_end_was_done(folder, capsys, monkeypatch):
    """Cut off between the last piece and the result."""
    assert run(capsys, LINE.replace("s.parquet", "whole.parquet"))[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(scores, "write_scores", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(capsys, LINE)
    assert (folder / "s.parquet.part").is_dir()
    assert run(capsys, LINE)[0] == 0
    same(read_scores("whole.parquet"), read_scores("s.parquet"))


def test_another_run_does_not_go_on(folder, capsys):
    Pieces(folder / "s.parquet.part", {"detector": "another"})
    code, out, err = run(capsys, LINE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "s.parquet.part must be of this run, with this detector and these queries; it is of another" in err
    assert run(capsys, LINE + " --restart")[0] == 0
    assert not (folder / "s.parquet.part").exists()


def test_a_bad_row_far_below_is_one_line_and_leaves_nothing(folder, capsys):
    rows = ["1,2,3,4,5,6"] * 50 + ["1,2,3,4,5,oh"]
    (folder / "bad.csv").write_text("\n".join(rows) + "\n")
    code, out, err = run(capsys, "score d.safetensors bad.csv --out t.parquet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "column 5 holds 'oh'" in err
    assert not list(folder.glob("t.parquet*"))
