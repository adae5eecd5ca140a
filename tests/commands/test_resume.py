"""A run of `arht score` that is killed goes on where it stopped, and ends with the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


class Stopped(Exception):
    """What cuts a run off."""


def stop_after(patch, count):
    """Cut the next run off after so many pieces."""
    append = Pieces.append

    def appended(self, batches):
        append(self, batches)
        if self.count == count:
            raise Stopped

    patch.setattr(Pieces, "append", appended)


def text_files(suffix):
    """100, 300 and 600 rows in a format that does not tell how many there are, with a column of names."""
    rng = np.random.default_rng(3)
    names = []
    for number, count in enumerate((100, 300, 600)):
        rows = rng.standard_normal((count, P))
        lines = [",".join(["name", *"abcdef"])] if suffix == "csv" else []
        for i, row in enumerate(rows.tolist()):
            if suffix == "csv":
                lines.append(",".join([f"{number}-{i}", *map(repr, row)]))
            else:
                lines.append(json.dumps({"name": f"{number}-{i}", "x": row}))
        names.append(f"t{number}.{suffix}")
        Path(names[-1]).write_text("\n".join(lines) + "\n")
    return " ".join(names)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_resumed_after_every_piece_of_several_files_of_unknown_length(folder, capsys, monkeypatch, suffix):
    line = f"score d.safetensors {text_files(suffix)} --id name --quiet --out"
    assert run(capsys, f"{line} whole.parquet")[0] == 0
    whole = read_scores("whole.parquet")
    assert len(whole) == 1000
    pieces = 1 + 1 + 3 + 1 + 8 + 1  # two of them hold the end of a file and the beginning of the next
    for count in range(1, pieces + 1):
        with monkeypatch.context() as patch:
            stop_after(patch, count)
            with pytest.raises(Stopped):
                run(capsys, f"{line} s.parquet")
        assert run(capsys, f"{line} s.parquet")[0] == 0
        same(whole, read_scores("s.parquet"))


def test_pieces_that_hold_rows_of_two_files(folder, capsys, monkeypatch):
    """The end of a file and the beginning of the next lie in one piece; the run before was cut off twice."""
    monkeypatch.setattr(_scoring, "PIECE_ROWS", 150)
    line = f"score d.safetensors {text_files('csv')} many.npy --quiet --out"
    for name in ("t0.csv", "t1.csv", "t2.csv"):
        rows = [row.partition(",")[2] for row in Path(name).read_text().splitlines()]
        Path(name).write_text("\n".join(rows) + "\n")
    assert run(capsys, f"{line} whole.parquet")[0] == 0
    for first, second in ((1, 2), (1, 4), (3, 5)):
        for count in (first, second):
            with monkeypatch.context() as patch:
                stop_after(patch, count)
                with pytest.raises(Stopped):
                    run(capsys, f"{line} s.parquet")
        assert run(capsys, f"{line} s.parquet")[0] == 0
        same(read_scores("whole.parquet"), read_scores("s.parquet"))


def test_a_changed_archive_is_another_run(folder, capsys, monkeypatch):
    """``file.npz:key`` is a file too."""
    rng = np.random.default_rng(5)
    np.savez("q.npz", a=rng.standard_normal((200, P)), b=np.zeros(3))
    line = "score d.safetensors q.npz:a --quiet --out s.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(capsys, line)
    np.savez("q.npz", a=rng.standard_normal((200, P)) + 1, b=np.zeros(3))
    code, out, err = run(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "it is of another. Add --restart" in err


@pytest.mark.parametrize("stop", [Stopped, KeyboardInterrupt])
def test_an_interrupted_run_to_standard_output_leaves_nothing(folder, capsys, monkeypatch, stop):
    before = set(folder.iterdir())
    append = Pieces.append

    def appended(self, batches):
        append(self, batches)
        raise stop

    monkeypatch.setattr(Pieces, "append", appended)
    line = "score d.safetensors many.npy --quiet --out -"
    if stop is KeyboardInterrupt:
        assert run(capsys, line)[0] == 130
    else:
        with pytest.raises(stop):
            run(capsys, line)
    assert set(folder.iterdir()) == before
