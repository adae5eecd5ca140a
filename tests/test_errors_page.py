"""docs/errors.md says what is really said: each of its rows is provoked."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arht
from arht.cli import main
from arht.errors import InputError
from arht.io import read_table
from tests.errors_page import SECTIONS, pattern, rows

ROWS = rows("Tests") | rows("Files") | rows("Command line")

GRID = np.random.default_rng(1).standard_normal((40, 5))


def spoiled(value, *places):
    """GRID with `value` at some places."""
    array = GRID.astype(type(value)) if isinstance(value, complex) else GRID.copy()
    for place in places:
        array[place] = value
    return array


# positional arguments and keywords of the call
CALLS = {
    "x and y of different width": ((GRID[:, :3], GRID[:, :4]), {}),
    "one row in each sample": ((GRID[:1, :1], GRID[1:2, :1]), {}),
    "one row, one sample": ((GRID[:1, :1],), {}),
    "no rows": ((GRID[:0], GRID), {}),
    "NaN or infinity": ((spoiled(np.nan, (7, 2), (8, 0), (9, 4)), GRID), {}),
    "not numeric": ((np.full((4, 2), "abc"), GRID), {}),
    "complex": ((GRID + 1j, GRID), {}),
    "a constant column": ((spoiled(1.0, np.s_[:, 2]), spoiled(1.0, np.s_[:, 2])), {}),
    "every column constant": ((np.ones((9, 5)), np.zeros((9, 5))), {}),
    "ridge <= 0": ((GRID, GRID + 1), {"ridge": -1.0}),
    "unknown null": ((GRID, GRID + 1), {"null": "gauss"}),
    "P too large, two samples": ((np.eye(300, 512), np.eye(20, 512)), {}),
    "P too large, one sample": ((np.eye(40, 60),), {}),
}


def keywords(function, given):
    """The keywords of the call, spelled as that function spells them."""
    keys = dict(given)
    if function == "rht_test":
        keys.setdefault("ridge", 0.1)
    elif "ridge" in keys:
        keys["ridges"] = [keys.pop("ridge")]
    return keys


@pytest.mark.parametrize("name", CALLS)
def test_tests(name):
    functions, line = ROWS[name]
    positional, given = CALLS[name]
    assert functions
    for function in functions:
        with pytest.raises(InputError) as caught:
            getattr(arht, function)(*positional, **keywords(function, given))
        assert str(caught.value) == re.sub(r"^\w+:", f"{function}:", line)


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


def cut(path, write, *arrays):
    """Only the first 70 % of what `write` writes."""
    write(path, *arrays)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 7 // 10])


def nothing(path):
    assert not path.exists()


PICKLED = np.array([{}, 1], dtype=object)

# what writes the file, the end of its path (and a key), arguments of the writer
FILES = {
    "missing file": (nothing, "x.npy"),
    "a folder": (Path.mkdir, "x.csv"),
    "a name too long to open": (lambda path: None, "x" * 300 + ".npy"),
    "unknown suffix": (Path.write_text, "x.txt", "1\n"),
    "empty file": (Path.touch, "x.parquet"),
    "empty table": (np.save, "x.npy", GRID[:0]),
    "truncated npy": (cut, "x.npy", np.save, GRID),
    "truncated npz": (cut, "x.npz", np.savez, GRID),
    "csv line cut short": (Path.write_text, "x.csv", "1,2\n3,4\n5"),
    "truncated parquet": (cut, "x.parquet", lambda path: parquet(path, a=GRID[:, 0])),
    "pickled array": (np.save, "x.npy", PICKLED),
    "non-numeric array": (np.save, "x.npy", np.array(["abc"])),
    "complex array": (np.save, "x.npy", GRID + 1j),
    "wrong number of axes": (np.save, "x.npy", np.zeros((2, 3, 4))),
    "several arrays in npz": (lambda path: np.savez(path, a=GRID, b=GRID), "x.npz"),
    "unknown key": (lambda path: np.savez(path, a=GRID, b=GRID), "x.npz:c"),
    "archive without arrays": (np.savez, "x.npz"),
    "text column in csv": (Path.write_text, "x.csv", "age,name\n1,Ada\n"),
    "text column in parquet": (lambda path: parquet(path, name=["Ada"]), "x.parquet"),
    "row index in csv": (Path.write_text, "x.csv", ",0,1\n0,1.5,2.5\n"),
    "ragged list column": (lambda path: parquet(path, embedding=[[1.0, 2.0], [3.0]]), "x.parquet"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path, capsys):
    (where,), line = ROWS[name]
    write, end, *arguments = FILES[name]
    file, colon, key = end.partition(":")
    path = tmp_path / file
    write(path, *arguments)
    expected = re.escape(line.replace("{path}", str(path))).replace(re.escape("{reason}"), r"[^\n]{5,165}")
    assert where == "read_table"
    with pytest.raises(InputError) as caught:
        read_table(f"{path}{colon}{key}")
    assert re.fullmatch(expected, str(caught.value))

    assert main(["test", f"{path}{colon}{key}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(expected + r"\n", err)


COMMANDS = {
    "no X": "test",
    "unknown option": "test x.npy --bogus",
    "unknown command": "tset x.npy",
    "unknown method": "test x.npy --method gauss",
    "rht without a ridge": "test x.npy --method rht",
    "an option of another method": "test x.npy --method rht --ridge 1 --prior 1,0,0",
    "a seed without permutations": "test x.npy --seed 1",
    "a bad number": "test x.npy --ridge 1 x",
    "a bad prior": "test x.npy --prior 1,0,x",
    "a bad integer": "test x.npy --null permutation --seed 1.5",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name, capsys):
    assert main(COMMANDS[name].split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(pattern(ROWS[name][1]) + r"\n", err)


def test_every_row_is_provoked():
    assert set(ROWS) == {*CALLS, *FILES, *COMMANDS}


def test_every_section_has_a_test_module():
    """A section of the page that no module reads would be prose."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    for section in SECTIONS:
        assert f'rows("{section.partition(chr(10))[0]}")' in sources
