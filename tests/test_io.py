"""`read_table`: every format comes back as it was written; anything else is one clear line."""

import io
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arht.errors import ArhtWarning, InputError
from arht.io import SUFFIXES, read_table

X = np.random.default_rng(2).standard_normal((30, 4))


def write(path, array):
    """The array in the format of the path's suffix."""
    names = [f"c{i}" for i in range(array.shape[1])]
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, array)
    elif path.suffix == ".csv":
        path.write_text(",".join(names) + "\n" + "".join(",".join(map(repr, row)) + "\n" for row in array.tolist()))
    else:
        pq.write_table(pa.table(dict(zip(names, array.T, strict=True))), path)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(suffix, tmp_path):
    table = read_table(write(tmp_path / f"x{suffix}", X))
    assert table.dtype == np.float64
    np.testing.assert_array_equal(table, X)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_float32_stays_float32(suffix, tmp_path):
    single = X.astype(np.float32)
    table = read_table(write(tmp_path / f"x{suffix}", single))
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, single)


@pytest.mark.parametrize("kind", ["float16", "longdouble", ">f8", ">f4", "int8", "uint64", "bool"])
def test_other_types_become_float64(kind, tmp_path):
    array = (X * 3).astype(kind)
    np.save(tmp_path / "x.npy", array)
    table = read_table(tmp_path / "x.npy")
    assert table.dtype == (np.float32 if kind == ">f4" else np.float64)
    assert table.dtype.isnative
    np.testing.assert_array_equal(table, array.astype(np.float64))


def test_upper_case_suffix_and_plain_string(tmp_path):
    write(tmp_path / "x.csv", X).rename(tmp_path / "X.CSV")
    np.testing.assert_array_equal(read_table(str(tmp_path / "X.CSV")), X)


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped_and_never_written(order, tmp_path):
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))
    table = read_table(tmp_path / "x.npy")
    owner = table
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    table[0, 0] = 99.0
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_n_numbers_are_one_column(suffix, tmp_path):
    {".npy": np.save, ".npz": np.savez}[suffix](tmp_path / f"x{suffix}", X[:, 0])
    np.testing.assert_array_equal(read_table(tmp_path / f"x{suffix}"), X[:, :1])


def test_npz_key(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", first=X, second=X[:5])
    np.testing.assert_array_equal(read_table(f"{tmp_path / 'x.npz'}:second"), X[:5])


def test_npz_holding_something_else(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match="must be a readable"):
        read_table(tmp_path / "x.npz")


CSV = {
    "no header": ("1,2\n3,4\n", [[1, 2], [3, 4]]),
    "header": ("a,b\n1,2\n", [[1, 2]]),
    "quoted header": ('"a","b,c"\n1,2\n', [[1, 2]]),
    "spaces": (" 1 , 2 \n3, 4\n", [[1, 2], [3, 4]]),
    "header with numbers": ("id,0,1\n1,2,3\n", [[1, 2, 3]]),
    "one name twice": ("a,a\n1,2\n", [[1, 2]]),
    "byte order mark": ("\ufeffa,b\n1,2\n", [[1, 2]]),
    "byte order mark, no header": ("\ufeff1,2\n", [[1, 2]]),
    "windows line ends": ("a,b\r\n1,2\r\n", [[1, 2]]),
    "blank lines first": ("\n\na,b\n1,2\n", [[1, 2]]),
    "no last line end": ("1,2", [[1, 2]]),
    "one column": ("0\n1\n", [[0], [1]]),
    "missing is NaN": ("1,\nNA,nan\n", [[1, np.nan], [np.nan, np.nan]]),
    "infinity": ("inf,-inf\n1e300,-0\n", [[np.inf, -np.inf], [1e300, 0]]),
}


@pytest.mark.parametrize("name", CSV)
def test_csv(name, tmp_path):
    text, expected = CSV[name]
    (tmp_path / "x.csv").write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(read_table(tmp_path / "x.csv"), expected)


def test_csv_whole_numbers_first_and_fractions_far_below(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n" * 400_000 + "1.5,2\n")  # beyond the block that types are inferred from
    assert read_table(tmp_path / "x.csv")[-1, 0] == 1.5


def test_csv_counted_header_is_spoken_of(tmp_path):
    (tmp_path / "x.csv").write_text("0,1\n5,6\n")
    with pytest.warns(ArhtWarning, match="counts from 0 to 1; it is read as a header"):
        table = read_table(tmp_path / "x.csv")
    np.testing.assert_array_equal(table, [[5, 6]])


@pytest.mark.parametrize(
    ("text", "column"),
    [("1,x\n2,y\n", "'x'"), ("1.5,x,3\n1,2,3\n", "1"), ("a,b\n1,true\n", "'b'"), ("a,b\n1,?\n", "'b'")],
)
def test_csv_text_column_is_named(text, column, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=f"column {column} holds"):
        read_table(tmp_path / "x.csv")


PARQUET = {
    "mixed numbers, nulls": (
        {"a": pa.array([1, None]), "b": pa.array([1.5, 2.5], pa.float32()), "c": [Decimal("0.25"), None]},
        [[1, 1.5, 0.25], [np.nan, 2.5, np.nan]],
    ),
    "booleans and half floats": (
        {"a": [True, False], "b": pa.array(np.array([1, 2], np.float16))},
        [[1, 1], [0, 2]],
    ),
    "nothing but nulls": ({"a": pa.nulls(2), "b": [1.0, 2.0]}, [[np.nan, 1], [np.nan, 2]]),
    "lists": ({"e": [[1.0, None], [3.0, 4.0]]}, [[1, np.nan], [3, 4]]),
    "large lists of integers": ({"e": pa.array([[1, 2]], pa.large_list(pa.int32()))}, [[1, 2]]),
    "fixed-size lists": ({"e": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))}, [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(name, tmp_path):
    columns, expected = PARQUET[name]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert table.flags.writeable
    np.testing.assert_array_equal(table, expected)


BAD_PARQUET = {
    "a missing list": ({"e": pa.array([[1, 2], None], pa.list_(pa.float32(), 2))}, "lengths 0 to 2"),
    "lists of text": ({"e": [["a"]]}, "column 'e' holds list<element: string>"),
    "lists beside numbers": ({"a": [1], "e": [[1.0]]}, "column 'e' holds list"),
    "dates": ({"a": pa.array([0], pa.date32())}, "column 'a' holds date32"),
    "a row index": ({"__index_level_0__": [3], "b": [1.0]}, "'__index_level_0__' is a row index"),
    "empty lists": ({"e": pa.array([[], []], pa.list_(pa.float64()))}, r"got shape \(2, 0\)"),
    "no rows of lists": ({"e": pa.array([], pa.list_(pa.float64()))}, "at least one row"),
    "no columns": ({}, r"got shape \(0, 0\)"),
}


@pytest.mark.parametrize("name", BAD_PARQUET)
def test_bad_parquet(name, tmp_path):
    columns, line = BAD_PARQUET[name]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=line):
        read_table(tmp_path / "x.parquet")


def test_many_row_groups_of_lists(tmp_path):
    table = pa.table({"e": pa.array(list(X), pa.list_(pa.float64()))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=7)
    np.testing.assert_array_equal(read_table(tmp_path / "x.parquet"), X)


def test_damage_is_noticed_where_the_file_carries_checksums(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"a": X[:, 0]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = bytearray(path.read_bytes())
    whole[whole.index(X[:, 0].tobytes()) + 3] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match="must be a readable"):
        read_table(path)


def test_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "x.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "x.npz", trap, allow_pickle=True)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(InputError, match="pickled Python objects"):
            read_table(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_pyarrow_is_imported_only_when_needed():
    code = "import sys, arht.io; assert not {'pyarrow', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def attempt(path, content):
    """The one thing that may happen besides a table is an `InputError` of one line."""
    path.write_bytes(content)
    said = None
    try:
        table = read_table(path)
    except (InputError, ArhtWarning) as problem:  # pytest turns warnings into errors
        said = str(problem)
    if said is None:
        assert table.ndim == 2
        assert table.dtype in (np.float32, np.float64)
    else:
        assert said.startswith("read_table: ")
        assert "\n" not in said


FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
STARTS = {".npy": b"\x93NUMPY\x01\x00", ".npz": b"PK\x03\x04", ".csv": b"1,", ".parquet": b"PAR1"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(content=st.binary(max_size=200), started=st.booleans())
@FUZZ
def test_random_bytes(suffix, tmp_path, content, started):
    attempt(tmp_path / f"x{suffix}", (STARTS[suffix] if started else b"") + content)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@FUZZ
def test_damaged_files(suffix, tmp_path, data):
    path = tmp_path / f"x{suffix}"
    whole = bytearray(write(path, X[:3, :2]).read_bytes())
    for _ in range(data.draw(st.integers(0, 4), label="flips")):
        whole[data.draw(st.integers(0, len(whole) - 1), label="at")] = data.draw(st.integers(0, 255), label="byte")
    attempt(path, bytes(whole[: data.draw(st.integers(0, len(whole)), label="kept")]))
    attempt(path, bytes(whole))


@given(text=st.text(alphabet='0123456789.,;-+eE"\n\r\t nainfx\x00é', max_size=60))
@FUZZ
def test_random_csv_text(tmp_path, text):
    attempt(tmp_path / "x.csv", text.encode())


def test_python_2_header(tmp_path):
    whole = io.BytesIO()
    np.save(whole, X[:3])
    (tmp_path / "x.npy").write_bytes(whole.getvalue().replace(b"(3, 4), }  ", b"(3L, 4L), }"))
    np.testing.assert_array_equal(read_table(tmp_path / "x.npy"), X[:3])
