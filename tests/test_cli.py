"""The command line: exit codes, one line on standard error, JSON that parses, nothing imported in vain."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import arht
from arht import cli
from arht.commands import _common
from arht.errors import ArhtWarning
from arht.stats.nulls import Permutation

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(arht.__file__).parent.parent), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """x.npy and y.csv, of different means, in the working folder."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((30, 4)), rng.standard_normal((25, 4)) + 0.8
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "y.csv", y, delimiter=",", fmt="%.17g")
    monkeypatch.chdir(tmp_path)
    return x, y


def in_process(capsys, line):
    code = cli.main(line.split())
    return code, *capsys.readouterr()


def as_json(capsys, line):
    code, out, err = in_process(capsys, line + " --json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def subprocess_run(*words, **keywords):
    command = [sys.executable, "-m", "arht", *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **keywords)


def test_json_in_a_process_of_its_own(files):
    done = subprocess_run("test", "x.npy", "y.csv", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    expected = arht.arht_test(*files)
    assert record["pvalue"] == pytest.approx(float(expected.pvalue), rel=1e-6)
    assert record["statistic"] == pytest.approx(float(expected.statistic), rel=1e-9)
    assert (record["n"], record["P"], record["guarantee"]) == ([30, 25], 4, "asymptotic")
    assert len(record["priors"]["ridge"]) == 3


def test_table_in_a_process_of_its_own(files):
    done = subprocess_run("test", "x.npy", "y.csv", "--method", "hotelling")
    assert (done.returncode, done.stderr) == (0, "")
    for word in (
        "hotelling: x.npy y.csv",
        "mean(x) - mean(y) = 0",
        "30 and 25",
        "p-value",
        "exact: P(p <= level)",
    ):
        assert word in done.stdout


def test_bad_input_in_a_process_of_its_own(files):
    done = subprocess_run("test", "x.npy", "z.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("read_table: needs an existing file; got z.npy")


def test_bad_call_in_a_process_of_its_own():
    done = subprocess_run("test", "x.npy", "--rideg", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("arht: Unrecognized options: --rideg, 1. Perhaps you meant: --ridge")


def test_help_and_version_in_processes_of_their_own():
    bare, asked, version = subprocess_run(), subprocess_run("--help"), subprocess_run("--version")
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == asked.stdout
    assert "test" in bare.stdout
    assert "demo" in bare.stdout
    assert (version.returncode, version.stdout) == (0, f"arht {arht.__version__}\n")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from arht.cli import main\n"
        "for line in ('--help', 'test --help', '--version'): main(line.split())\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pyarrow', 'rich', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_silent():
    """The reader is gone before the first line is written."""
    code = "import sys, time; sys.stdin.readline(); from arht.cli import main; sys.exit(main(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_an_interrupt_is_silent(files):
    """Ctrl-C while a file is being read."""
    code = (  # a shell's background job, CI's say, starts with the signal ignored
        "import signal, sys, arht.io, arht.cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def reading(path):\n    print('reading', flush=True)\n    while True: pass\n"
        "arht.io.read_table = reading\n"
        "sys.exit(arht.cli.main(['test', 'x.npy']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


OPTIONS = {
    "--method hotelling": (arht.hotelling_test, {}),
    "--method hotelling --mean -1 0 0.5 1e-1": (arht.hotelling_test, {"mean": [-1, 0, 0.5, 0.1]}),
    "--method hotelling --mean -0.8": (arht.hotelling_test, {"mean": -0.8}),
    "--method rht --ridge 0.1": (arht.rht_test, {"ridge": 0.1}),
    "--method rht --ridge 0.1 --null normal": (arht.rht_test, {"ridge": 0.1, "null": "normal"}),
    "--ridge 0.1 1 10": (arht.arht_test, {"ridges": [0.1, 1, 10]}),
    "--prior 0,1,0": (arht.arht_test, {"priors": [(0, 1, 0)]}),
    "--prior 1,0 0,1 --null chi_square": (arht.arht_test, {"priors": [(1, 0), (0, 1)], "null": "chi_square"}),
}


@pytest.mark.parametrize("line", OPTIONS)
def test_options_reach_the_test(files, capsys, line):
    test, settings = OPTIONS[line]
    record, expected = as_json(capsys, f"test x.npy y.csv {line}"), test(*files, **settings)
    assert record["method"] == expected.method
    assert record["null"] == expected.null
    assert record["statistic"] == pytest.approx(float(expected.statistic), rel=1e-9)
    assert record["pvalue"] == pytest.approx(float(expected.pvalue), rel=1e-6)
    if record["ridge"] is not None:
        assert record["ridge"] == pytest.approx(float(expected.ridge))


def test_one_sample_and_a_mean_from_a_file(files, capsys):
    x, _ = files
    np.save("mean.npy", x.mean(0) + 0.1)
    record = as_json(capsys, "test x.npy --method hotelling --mean mean.npy")
    assert record["statistic"] == pytest.approx(float(arht.hotelling_test(x, mean=x.mean(0) + 0.1).statistic))
    assert (record["n"], record["y"], record["hypothesis"]) == ([30], None, "mean(x) = mean.npy")


def test_permutations_repeat_with_their_seed(files, capsys):
    line = "test x.npy y.csv --method rht --ridge 1 --mean -1 -1 -1 -1 --null permutation --permutations 99"
    first, again, other = (as_json(capsys, line + seed) for seed in ("", " --seed 0", " --seed 5"))
    assert first["seed"] == again["seed"] == 0
    assert first["pvalue"] == again["pvalue"] != other["pvalue"]
    assert first["smallest_pvalue"] == Permutation(count=99).smallest_pvalue
    assert first["guarantee"] == "exact"


def test_the_smallest_pvalue_is_said_to_be_it(files, capsys):
    code, out, _ = in_process(capsys, "test x.npy y.csv --null permutation --permutations 19")
    assert code == 0
    assert "0.05 (this law can give none smaller)" in out


def test_numbers_that_do_not_exist_are_null():
    assert _common.plain({"a": 1}) == {"a": 1}
    assert _common.plain(
        [float("nan"), np.float32(np.inf), np.array([1.0, np.nan]), np.int8(2), (True, "x", None)]
    ) == [
        None,
        None,
        [1.0, None],
        2,
        [True, "x", None],
    ]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("test x.npy --ridge", "got none"),
        ("test x.npy --prior", "got none"),
        ("test x.npy --mean", "got none"),
        ("test x.npy --mean 1 a", "got 'a'"),
        ("test x.npy --null permutation --permutations -3", "got '-3'"),
        ("test x.npy --null permutation --permutations 0", "count must be"),
        ("test x.npy y.csv --mean 1 2", "mean must be"),
        ("test x.npy y.csv --null gauss", "got 'gauss'"),
        ("test x.npy y.csv --method rht --ridge 1 2", "got 2"),
        ("test x.npy y.csv --method hotelling --null normal", "--null goes with --method rht or arht"),
        ("test x.npy y.csv z.csv", "z.csv"),
        ("test x.npy --method", "--method"),
        ("test x.npy --" + "long" * 50, "long" * 50),
        ("demo x", "x"),
        ("-x", "-x"),
    ],
)
def test_bad_calls_are_one_line(files, capsys, line, word):
    code, out, err = in_process(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert word in err
    assert not set("│╭╰─") & set(err)


def test_the_window_width_is_left_alone(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "77")
    in_process(capsys, "test --bogus")
    assert os.environ["COLUMNS"] == "77"
    monkeypatch.delenv("COLUMNS")
    in_process(capsys, "test --bogus")
    assert "COLUMNS" not in os.environ


def test_warnings_are_one_line_each(files, capsys):
    Path("z.csv").write_text("0,1\n5,6\n6,7.5\n8,3\n4,4\n")
    code, out, err = in_process(capsys, "test z.csv --method hotelling")
    assert code == 0
    assert "p-value" in out
    said = "the first line of z.csv counts from 0 to 1; it is read as a header, not as data."
    assert err == f"warning: read_table: {said}\n"


def test_a_warning_before_an_error_leaves_one_line(files, capsys):
    Path("z.csv").write_text("0,1\n5,6\n")
    code, out, err = in_process(capsys, "test z.csv --method hotelling")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("hotelling_test: needs at least 2 rows")


def test_warnings_of_others_are_not_swallowed(monkeypatch):
    import warnings

    monkeypatch.setattr(cli, "_run", lambda words: warnings.warn("old", FutureWarning, stacklevel=1) or 0)
    with pytest.warns(FutureWarning, match="old"):
        assert cli.main(["test"]) == 0


def test_an_interrupt_is_130(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_markup_in_a_file_name_is_only_a_name(files, capsys):
    Path("x.npy").rename("[bold]x.npy")
    code, out, _ = in_process(capsys, "test [bold]x.npy --method hotelling")
    assert code == 0
    assert "[bold]x.npy" in out


def test_arht_warning_is_a_user_warning():
    assert issubclass(ArhtWarning, UserWarning)
