"""From embeddings in files to the report, by the commands alone: fit, score, report."""

import json

import numpy as np
import pytest

from arht import data
from arht.cli import main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pixels of digits: 0-7 for reference, calibration and audit; all ten as queries, in csv with names and labels."""
    folder = tmp_path_factory.mktemp("files")
    train, test = data.load("digits", "train"), data.load("digits", "test")
    known = train.pixels.flatten(1).double().numpy()[train.labels.numpy() < 8]
    noise = np.random.default_rng(0)

    def smooth(x):  # pixels that never vary give a covariance no inverse
        return x + noise.normal(size=x.shape)

    np.save(folder / "reference.npy", smooth(known[:500]))
    np.save(folder / "labels.npy", train.labels.numpy()[train.labels.numpy() < 8][:500])
    np.save(folder / "calibration.npy", smooth(known[500:800]))
    np.save(folder / "heldout.npy", smooth(known[800:]))
    queries = smooth(test.pixels.flatten(1).double().numpy())
    lines = [",".join(["name", "ood", *(f"x{i}" for i in range(64))])]
    for i, (label, row) in enumerate(zip(test.labels.tolist(), queries, strict=True)):
        lines.append(",".join([f"digit-{i}", str(int(label >= 8)), *map(repr, row.tolist())]))
    (folder / "queries.csv").write_text("\n".join(lines))
    return folder


def test_fit_score_report(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    fit = "fit reference.npy --labels labels.npy --against class --calibration calibration.npy --out d.safetensors"
    score = "score d.safetensors queries.csv --out scores.csv --id name --label ood --heldout heldout.npy --fdr 0.2"
    report = "report scores.csv --out report.html --images digits --explain 5 --json"
    for line in (f"{fit} --quiet", f"{score} --quiet"):
        assert main(line.split()) == 0
    capsys.readouterr()
    assert main(report.split()) == 0
    said = json.loads(capsys.readouterr().out)
    html = (files / "report.html").read_text(encoding="utf-8")
    record = json.loads(html.split('id="record">')[1].split("</script>")[0])
    assert record["report"]["file_decision"]["agrees"] is True
    assert said["queries"] == record["report"]["queries"]
    assert record["run"]["audit"]["passed"] in (True, False)
    assert record["report"]["ranking"]["metrics"]["auroc"]["value"] > 0.7
    told = record["report"]["explanations"]
    assert set(told) == {"0", "1", "2", "3", "4"}
    for one in told.values():
        assert sum(share for _, share in one["directions"]) == pytest.approx(1)
        assert len(one["nearest"]) == len(one["distances"]) == 5
        assert one["distances"] == sorted(one["distances"])
    for words in (
        "Passed." if record["run"]["audit"]["passed"] else "Not passed.",
        "How the detector was fitted",
        "digit-",
    ):
        assert words in html


def test_a_detector_that_has_changed_explains_nothing(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    for line in (
        "fit reference.npy --out other.safetensors --calibration calibration.npy --quiet",
        "score other.safetensors heldout.npy --out held.parquet --quiet",
        "fit calibration.npy --out other.safetensors --calibration heldout.npy --quiet",
    ):
        assert main(line.split()) == 0
    capsys.readouterr()
    assert main(["report", "held.parquet", "--out", "held.html", "--explain", "3"]) == 2
    assert "--explain needs the detector that made the scores; other.safetensors has changed" in capsys.readouterr().err
