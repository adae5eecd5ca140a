"""Tables in chunks: the same numbers as `read_table`, whatever the format, the chunk and where it starts."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arht.errors import InputError
from arht.io import STREAMS, iter_tables, open_table, read_table
from tests.test_io import write

X = np.random.default_rng(5).standard_normal((50, 4))


def written(path, array=X):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in array.tolist()))
        return path
    return write(path, array)


def fortran_npy(path):
    np.save(path / "x.npy", np.asfortranarray(X))
    return path / "x.npy"


def fortran_npz(path):
    np.savez_compressed(path / "x.npz", a=np.asfortranarray(X))
    return path / "x.npz"


def list_column(path):
    pq.write_table(pa.table({"embedding": list(X)}), path / "x.parquet", row_group_size=7)
    return path / "x.parquet"


def fixed_list_column(path):
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    pq.write_table(pa.table({"embedding": column}), path / "x.parquet", row_group_size=30)
    return path / "x.parquet"


def row_groups(path):
    pq.write_table(pa.table({f"c{i}": X[:, i] for i in range(4)}), path / "x.parquet", row_group_size=13)
    return path / "x.parquet"


def objects(path):
    rows = [{"a": row[0], "b": row[1], "c": row[2], "d": row[3]} for row in X.tolist()]
    (path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path / "x.jsonl"


def object_with_list(path):
    (path / "x.jsonl").write_text("\n\n".join(json.dumps({"embedding": row}) for row in X.tolist()))
    return path / "x.jsonl"


OTHERS = [fortran_npy, fortran_npz, list_column, fixed_list_column, row_groups, objects, object_with_list]


@pytest.mark.parametrize("make", [*STREAMS, *OTHERS], ids=lambda make: getattr(make, "__name__", make))
@pytest.mark.parametrize("rows", [1, 7, 13, 50, 1000])
def test_chunks_are_the_table(make, rows, tmp_path):
    path = make(tmp_path) if callable(make) else written(tmp_path / f"x{make}")
    chunks = list(iter_tables(path, rows))
    assert [len(chunk) for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
    np.testing.assert_array_equal(np.concatenate(chunks), X)
    for start in (0, 3, 13, 30, 49, 50, 70):
        rest = [chunk.x for chunk in open_table(path).chunks(rows, start)]
        np.testing.assert_array_equal(np.concatenate([np.empty((0, 4)), *rest]), X[start:])


@pytest.mark.parametrize("make", [".npy", ".npz", ".parquet"])
def test_single_precision_stays(make, tmp_path):
    chunks = list(iter_tables(written(tmp_path / f"x{make}", X.astype(np.float32)), 20))
    assert {chunk.dtype for chunk in chunks} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate(chunks), X.astype(np.float32))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_draws_come_as_they_are(suffix, tmp_path):
    draws = X.reshape(10, 5, 4)
    {".npy": np.save, ".npz": np.savez}[suffix](tmp_path / f"x{suffix}", draws)
    assert open_table(tmp_path / f"x{suffix}").shape == (5, 4)
    np.testing.assert_array_equal(np.concatenate(list(iter_tables(tmp_path / f"x{suffix}", 3))), draws)


def test_what_is_known_beforehand(tmp_path):
    known = {suffix: open_table(written(tmp_path / f"x{suffix}")) for suffix in STREAMS}
    assert {suffix: source.count for suffix, source in known.items()} == {
        ".npy": 50,
        ".npz": 50,
        ".csv": None,
        ".parquet": 50,
        ".jsonl": None,
    }
    assert known[".parquet"].shape == known[".csv"].shape == known[".npy"].shape == (4,)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_standard_input(suffix, tmp_path, monkeypatch):
    data = written(tmp_path / f"x{suffix}").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    np.testing.assert_array_equal(np.concatenate(list(iter_tables("-", 9))), X)


def test_standard_input_of_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n")))
    with pytest.raises(InputError, match="standard input must hold a table; got nothing"):
        open_table("-")


def rows_with_names(path, suffix):
    names = [f"n{i}" for i in range(50)]
    columns = {"a": X[:, 0], "name": names, "b": X[:, 1], "label": [i % 3 for i in range(50)], "c": X[:, 2]}
    file = path / f"x{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), file, row_group_size=11)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        text = [json.dumps(row) for row in rows]
        if suffix == ".csv":
            text = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
        file.write_text("\n".join(text) + "\n")
    return file


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_columns_apart(suffix, tmp_path):
    file = rows_with_names(tmp_path, suffix)
    chunks = list(open_table(file, {"name": "text", "label": "integer"}).chunks(8))
    np.testing.assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), X[:, :3])
    assert [name for chunk in chunks for name in chunk.apart["name"].to_pylist()] == [f"n{i}" for i in range(50)]
    assert [label for chunk in chunks for label in chunk.apart["label"].to_pylist()] == [i % 3 for i in range(50)]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_column_apart_that_is_not_there(suffix, tmp_path):
    file = rows_with_names(tmp_path, suffix)
    with pytest.raises(InputError, match=r"the column must be in .*, once; got 'nam', it holds: a, name, b, label, c"):
        list(open_table(file, ["nam"]).chunks())


def test_a_column_apart_needs_names(tmp_path):
    for suffix in (".npy", ".npz"):
        with pytest.raises(InputError, match="has no names of columns; got 'id'"):
            open_table(written(tmp_path / f"x{suffix}"), ["id"])
    (tmp_path / "x.csv").write_text("1,2\n")
    with pytest.raises(InputError, match="has no names of columns; got 'id'"):
        open_table(tmp_path / "x.csv", ["id"])


BAD = {
    "text far below": ("x.csv", "a,b\n" + "1,2\n" * 9 + "3,oh\n", "column 'b' holds 'oh'"),
    "a line cut short": ("x.csv", "1,2\n3\n", "Expected 2 columns, got 1"),
    "a header alone": ("x.csv", "a,b\n", "at least one row"),
    "no list": ("x.jsonl", "[1, 2]\n3\n", "got '3\\\\n' in row 1"),
    "another length": ("x.jsonl", "[1, 2]\n[3]\n", "got 1 numbers after rows of 2 in row 1"),
    "text": ("x.jsonl", '[1, 2]\n[3, "4"]\n', "got '4' in row 1"),
    "no JSON": ("x.jsonl", "[1, 2\n", r"got '\[1, 2\\n' in row 0"),
    "an integer too large": ("x.jsonl", "[1" + "0" * 400 + "]\n", "too large"),
    "nothing": ("x.jsonl", "\n", "at least one row"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_one_line(name, tmp_path):
    file, text, message = BAD[name]
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        list(iter_tables(tmp_path / file, 4))
    assert str(caught.value).count("\n") == 0


def test_null_in_jsonl_is_nan(tmp_path):
    (tmp_path / "x.jsonl").write_text("[1, null]\n[NaN, 2]\n")
    np.testing.assert_array_equal(next(iter_tables(tmp_path / "x.jsonl")), [[1, np.nan], [np.nan, 2]])


def test_lists_of_two_lengths_in_two_row_groups(tmp_path):
    pq.write_table(pa.table({"e": [[1.0, 2.0], [3.0, 4.0], [5.0]]}), tmp_path / "x.parquet", row_group_size=2)
    with pytest.raises(InputError, match="lengths 1 to 2"):
        list(iter_tables(tmp_path / "x.parquet", 2))


def test_streamed_and_whole_agree_on_types(tmp_path):
    for kind in ("int8", "bool", ">f4", ">f8", "float16"):
        np.save(tmp_path / "x.npy", (X * 3).astype(kind))
        (chunk,) = iter_tables(tmp_path / "x.npy", 99)
        whole = read_table(tmp_path / "x.npy")
        assert chunk.dtype == whole.dtype
        np.testing.assert_array_equal(chunk, whole)


MEMORY = """
import resource, sys
from arht.io import iter_tables
import pyarrow.parquet, pyarrow.csv
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
count = sum(len(chunk) for chunk in iter_tables(sys.argv[1], 4096))
assert count == 300_000, count
print(peak() - before)
"""


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet"])
def test_memory_does_not_hold_the_table(name, tmp_path):
    array = np.random.default_rng(0).standard_normal((300_000, 64), dtype=np.float32)  # 77 MB, one row group
    path = tmp_path / name
    {".npy": np.save, ".npz": np.savez}.get(path.suffix, write)(path, array)
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 40
