"""fit, score, merge, audit: what the library says of the same arrays, and one line for what cannot be."""

import io
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import arht
from arht.errors import InputError
from arht.io import artefact, read_scores
from arht.loading import load
from tests.commands.files import P, embeddings, process, run

pytestmark = pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    embeddings(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fitted(folder, capsys):
    assert run(capsys, "fit reference.npy --out d.safetensors --calibration calibration.npy")[0] == 0
    return folder


def expected(**options):
    detector = arht.detectors.ARHTDetector(**options) if options else arht.detectors.ARHTDetector()
    return detector.fit(np.load("reference.npy")).calibrate(np.load("calibration.npy"))


def as_json(capsys, line):
    code, out, _ = run(capsys, line + " --json")
    assert code in (0, 1)
    return code, json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_scores_are_those_of_the_library(fitted, capsys):
    code, record = as_json(capsys, "score d.safetensors query.npy --out s.parquet")
    assert code == 0
    result = expected().test(np.load("query.npy"))
    scores = read_scores("s.parquet")
    np.testing.assert_array_equal(scores.columns["row"], np.arange(300))
    for name in ("statistic", "score", "ridge"):
        np.testing.assert_allclose(scores.columns[name], getattr(result, name), rtol=1e-12)
    np.testing.assert_array_equal(scores.columns["pvalue"], result.pvalue)
    decision = result.decide(fdr=0.05)
    np.testing.assert_allclose(scores.columns["adjusted_pvalue"], decision.adjusted, rtol=1e-13)
    np.testing.assert_array_equal(scores.columns["rejected"], decision.rejected)
    assert 30 <= decision.rejected[260:].sum() == record["decision"]["rejected"] - decision.rejected[:260].sum()
    assert record["detector"]["digest"] == scores.record["detector"]["digest"]
    assert (record["rows"], record["tested"], record["guarantee"]) == (300, 300, "conformal")
    assert record["calibration"]["n"] == 999
    assert len(record["reference"]["quantiles"]) == 201


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_every_format_reads_back_alike(fitted, capsys, suffix):
    query = np.load("query.npy")
    query[7, 2] = np.nan
    names = [f"q{i}" for i in range(300)]
    columns = {f"x{i}": query[:, i] for i in range(P)}
    truth = (np.arange(300) >= 260).astype(int)
    pq.write_table(pa.table({"name": names, **columns, "truth": truth}), "q.parquet")
    line = f"score d.safetensors q.parquet query.npy --out s.{suffix} --id name --label truth"
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert "query.npy has no names of columns" in err
    assert run(capsys, f"score d.safetensors q.parquet q.parquet --out s.{suffix} --id name --label truth")[0] == 0
    scores = read_scores(f"s.{suffix}")
    assert scores.columns["id"].tolist() == names * 2
    assert scores.columns["label"].tolist() == truth.tolist() * 2
    assert set(scores.columns["file"]) == {"q.parquet"}
    assert scores.columns["outcome"][7] == scores.columns["outcome"][307] == 1
    for name in ("score", "pvalue", "adjusted_pvalue"):
        assert np.isnan(scores.columns[name][[7, 307]]).all()
        assert np.isfinite(np.delete(scores.columns[name], [7, 307])).all()
    assert not scores.columns["rejected"][[7, 307]].any()
    assert scores.columns["rejected"].dtype == bool
    assert scores.record["outcomes"] == {"0": 598, "1": 2}
    result = expected().test(query)
    np.testing.assert_allclose(scores.columns["score"], np.tile(result.score, 2), rtol=1e-12)


OPTIONS = {
    "": {},
    "--ridge 0.1 --multiples 1 2": {"ridge": 0.1, "multiples": (1, 2)},
    "--ridge grid": {"ridge": None},
    "--prior 1,0,0": {"prior": (1, 0, 0)},
    "--tail two-sided": {"tail": "two-sided"},
    "--ridge_unit mean_eigenvalue": {"ridge_unit": "mean_eigenvalue"},
}


@pytest.mark.parametrize("line", OPTIONS)
def test_options_reach_the_detector(folder, capsys, line):
    line = line.replace("ridge_unit", "ridge-unit")
    code, record = as_json(capsys, f"fit reference.npy --out d.safetensors --calibration calibration.npy {line}")
    assert code == 0
    mine = expected(**OPTIONS[line.replace("ridge-unit", "ridge_unit")])
    detector = load("d.safetensors")
    assert detector.parameters == mine.parameters
    assert (record["inputs"], record["calibration"], record["P"]) == (900, 999, P)
    np.testing.assert_allclose(detector.score(np.load("query.npy")), mine.score(np.load("query.npy")), rtol=1e-9)


@pytest.mark.parametrize("method", ["arht", "rht", "hotelling", "mahalanobis"])
def test_methods_and_classes(folder, capsys, method):
    reference, labels = np.load("reference.npy"), np.load("labels.npy")
    pq.write_table(pa.table({**{f"x{i}": reference[:, i] for i in range(P)}, "label": labels}), "r.parquet")
    common = f"--method {method} --against class --calibration calibration.npy"
    assert run(capsys, f"fit r.parquet --labels label --out a.safetensors {common}")[0] == 0
    assert run(capsys, f"fit reference.npy --labels labels.npy --out b.safetensors {common}")[0] == 0
    a, b = (load(f"{name}.safetensors").test(np.load("query.npy")) for name in "ab")
    np.testing.assert_allclose(a.score, b.score, rtol=1e-8, atol=1e-12)  # columns are summed in another order than rows
    np.testing.assert_array_equal(a.nearest_class, b.nearest_class)
    assert run(capsys, "score a.safetensors query.npy --out s.parquet")[0] == 0
    np.testing.assert_array_equal(read_scores("s.parquet").columns["nearest_class"], a.nearest_class)


def test_what_is_held_out_is_not_in_the_reference(folder, capsys):
    code, record = as_json(capsys, "fit reference.npy --out d.safetensors --calibration-fraction 0.3 --seed 4")
    assert code == 0
    assert record["inputs"] + record["calibration"] == 900
    assert 200 < record["calibration"] < 340
    detector = load("d.safetensors")
    rows = np.load("reference.npy")
    held = np.random.default_rng(4).random(900) < 0.3
    np.testing.assert_allclose(detector.moments.mean.numpy(), rows[~held].mean(0), rtol=1e-10)
    np.testing.assert_allclose(np.sort(detector.score(rows[held])), detector._law.scores.numpy(), rtol=1e-10)


def test_draws(folder, capsys):
    rng = np.random.default_rng(0)
    for name, count in (("reference", 200), ("calibration", 99), ("query", 20)):
        np.save(f"{name}.npy", rng.standard_normal((count, 4, P)))
    assert run(capsys, "fit reference.npy --out d.safetensors --calibration calibration.npy")[0] == 0
    assert run(capsys, "score d.safetensors query.npy --out s.parquet")[0] == 0
    np.testing.assert_allclose(
        read_scores("s.parquet").columns["score"], expected().score(np.load("query.npy")), rtol=1e-9
    )


def test_merge_is_one_fit_on_all(folder, capsys):
    rows = np.load("reference.npy")
    np.save("a.npy", rows[:400])
    np.save("b.npy", rows[400:])
    for name in "ab":
        assert run(capsys, f"fit {name}.npy --out {name}.safetensors")[0] == 0
    line = "merge a.safetensors b.safetensors --out m.safetensors --calibration calibration.npy"
    code, record = as_json(capsys, line)
    assert code == 0
    assert [part["inputs"] for part in record["parts"]] == [400, 500]
    merged, whole = load("m.safetensors").test(np.load("query.npy")), expected().test(np.load("query.npy"))
    np.testing.assert_allclose(merged.score, whole.score, rtol=1e-8)
    np.testing.assert_array_equal(merged.pvalue, whole.pvalue)


def test_a_detector_is_not_merged_with_itself(folder, capsys):
    """Nor with a copy of its file: every input would count twice."""
    assert run(capsys, "fit reference.npy --out a.safetensors")[0] == 0
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    for other in "ab":
        code, out, err = run(capsys, f"merge a.safetensors {other}.safetensors --out m.safetensors")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"got {other}.safetensors, which is a.safetensors again" in err
        assert not (folder / "m.safetensors").exists()
    detector = load("a.safetensors")
    with pytest.raises(InputError, match="needs another detector; got this one itself"):
        detector.merge(detector)
    assert detector.inputs == 900


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl", "-"])
def test_the_column_of_classes_is_left_out_of_the_calibration(folder, capsys, monkeypatch, suffix):
    """Where the calibration's file has it: it is no part of the embedding."""

    def table(name, suffix, labels=True):
        rows = np.load(f"{name}.npy")
        columns = {f"x{i}": rows[:, i] for i in range(P)}
        if labels:
            columns["y"] = np.arange(len(rows)) % 3
        if suffix == "parquet":
            pq.write_table(pa.table(columns), f"{name}.parquet")
        elif suffix == "jsonl":
            lines = [json.dumps(row) for row in pa.table(columns).to_pylist()]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        else:
            pyarrow.csv.write_csv(pa.table(columns), f"{name}.csv")

    line = "fit reference.csv --labels y --against class --quiet --out"
    table("reference", "csv")
    assert run(capsys, f"{line} whole.safetensors --calibration calibration.npy")[0] == 0
    whole = load("whole.safetensors").test(np.load("query.npy"))
    for labels in (True, False):
        table("calibration", "csv" if suffix == "-" else suffix, labels)
        name = f"calibration.{suffix}"
        if suffix == "-":
            name = "-"
            data = io.BytesIO((folder / "calibration.csv").read_bytes())
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
        code, _, err = run(capsys, f"{line} d.safetensors --calibration {name}")
        assert (code, err) == (0, "")
        found = load("d.safetensors").test(np.load("query.npy"))
        np.testing.assert_array_equal(found.pvalue, whole.pvalue)


@pytest.mark.parametrize(
    "line",
    [
        "fit reference.npy --out e.safetensors --seed -1",
        "fit reference.npy --out e.safetensors --threads 0",
        "fit reference.npy --out e.safetensors --threads 100000",
        "fit reference.npy --out e.safetensors --seed 99999999999999999999",
        "score d.safetensors query.npy --out s.csv --threads -2",
        "embed e.safetensors digits --out x.npz --threads 0",
        "embed e.safetensors digits --out x.npz --seed -1",
        "embed e.safetensors digits --out x.npz --limit 0",
        "train digits --out e.safetensors --threads -1",
        "train digits --out e.safetensors --seed -1",
    ],
)
def test_integers_out_of_range_are_one_line(fitted, capsys, line):
    code, out, err = run(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    flag, value = line.split()[-2:]
    assert re.match(rf"arht \w+: {flag} must be an integer [<>]= \d+; got {value}\. See arht", err)


def test_audit_passes_and_fails(fitted, capsys):
    code, record = as_json(capsys, "audit d.safetensors heldout.npy --fdr 0.2")
    assert (code, record["passed"], record["reasons"]) == (0, True, [])
    assert record["tested"] == 400
    np.save("shifted.npy", np.load("heldout.npy") * 1.5)
    code, record = as_json(capsys, "audit d.safetensors shifted.npy --fdr 0.2")
    assert (code, record["passed"]) == (1, False)
    code, out, err = run(capsys, "audit d.safetensors heldout.npy --fdr 0.0001 --tests 5")
    assert (code, err) == (1, "")
    assert "the FDR cannot be claimed: not even all 5 queries" in out
    code, out, err = run(capsys, "audit d.safetensors calibration.npy --fdr 0.2")
    assert (code, out) == (2, "")
    assert "These inputs calibrated it; give others." in err


def test_audit_of_pvalues_that_were_not_calibrated(fitted, capsys):
    run(capsys, "fit reference.npy --out raw.safetensors")
    code, out, err = run(capsys, "audit raw.safetensors heldout.npy --tests 1000")
    assert (code, err) == (1, "")
    assert "400 held-out inputs see nothing below p = 1/401; calibrate" in out


def test_no_audit_on_the_calibration_itself(fitted, capsys):
    """Its p-values are uniform whatever the detector is."""
    for line in (
        "audit d.safetensors calibration.npy",
        "score d.safetensors query.npy --out s.csv --heldout calibration.npy",
    ):
        code, out, err = run(capsys, line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "calibrat" in err
        assert not (fitted / "s.csv").exists()


def test_score_with_an_audit(fitted, capsys):
    _, audit = as_json(capsys, "audit d.safetensors heldout.npy --tests 300")
    _, record = as_json(capsys, "score d.safetensors query.npy --out s.parquet --heldout heldout.npy")
    assert record["audit"] == {k: v for k, v in audit.items() if k not in ("detector", "digest", "heldout")}
    assert read_scores("s.parquet").record["audit"] == record["audit"]


def test_from_and_to_a_pipe(fitted, capsys, monkeypatch):
    assert run(capsys, "score d.safetensors query.npy --out s.csv")[0] == 0
    text = "\n".join(",".join(map(repr, row)) for row in np.load("query.npy").tolist()) + "\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    code, out, _ = run(capsys, "score d.safetensors - --out -")
    assert code == 0
    assert out == (fitted / "s.csv").read_text()
    assert not list(fitted.glob("scores.*"))


def test_without_calibration_the_law_is_asymptotic(folder, capsys):
    assert run(capsys, "fit reference.npy --out d.safetensors")[0] == 0
    _, record = as_json(capsys, "score d.safetensors query.npy --out s.parquet --method by")
    assert (record["guarantee"], record["calibration"], record["decision"]["method"]) == ("asymptotic", None, "by")
    code, _, err = run(capsys, "score d.safetensors query.npy --out s.csv")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("warning: arht score: d.safetensors has no calibration")
    assert "Fit it with --calibration" in err


def test_without_any_law_nothing_is_rejected(folder, capsys):
    assert run(capsys, "fit reference.npy --out d.safetensors --method mahalanobis")[0] == 0
    code, _, err = run(capsys, "score d.safetensors query.npy --out s.parquet")
    scores = read_scores("s.parquet")
    if scores.record["guarantee"] == "none":
        assert "gives no p-values" in err
    assert code == 0
    assert np.isfinite(scores.columns["score"]).all()


def test_a_fresh_process_gives_the_same_bits(fitted, capsys):
    assert run(capsys, "score d.safetensors query.npy --out a.parquet")[0] == 0
    done = process("score d.safetensors query.npy --out b.parquet")
    assert done.returncode == 0, done.stderr
    a, b = read_scores("a.parquet"), read_scores("b.parquet")
    assert list(a.columns) == list(b.columns)
    for name, column in a.columns.items():
        assert column.tobytes() == b.columns[name].tobytes(), name


def newer(path):
    kind, header, tensors = artefact.read(path)
    artefact.SCHEMA += 1
    try:
        artefact.write(path, kind, header, tensors)
    finally:
        artefact.SCHEMA -= 1


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def pickled(path):
    import pickle

    path.write_bytes(pickle.dumps({"weights": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (newer, "has schema 2, written by arht"),
        (truncated, "must be a whole safetensors file"),
        (flipped, "its content does not match its digest"),
        (pickled, "Loading a pickle can run code, so it is refused"),
    ],
)
@pytest.mark.parametrize(
    "line", ["score {} query.npy --out s.parquet", "audit {} heldout.npy", "merge {} {} --out m.st"]
)
def test_a_damaged_detector_is_one_line(fitted, capsys, damage, words, line):
    damage(fitted / "d.safetensors")
    code, out, err = run(capsys, line.replace("{}", "d.safetensors"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not list(fitted.glob("*.part"))
