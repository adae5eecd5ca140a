"""A guard on the command line, after a real training: what was held out calibrates, and the report shows the rest."""

import json

import numpy as np
import pytest
import torch

import arht
from arht.io import read_scores
from tests.commands.files import run

pytestmark = pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")
TRAIN = "train digits --out e.safetensors --size 16 --epochs 3 --activation relu --batch-size 32 --heldout 0.3 --quiet"
FIT = "fit digits --encoder e.safetensors --draws 3 --out g.safetensors --quiet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """e.safetensors, trained on 839 digits; g.safetensors, a guard around it."""
    path = tmp_path_factory.mktemp("guard")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        from arht.cli import main

        assert main(TRAIN.split()) == 0
        assert main(FIT.split()) == 0
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_calibration_is_what_was_held_out_of_the_training(here):
    encoder = arht.load("e.safetensors")
    digits = arht.data.load("digits", size=16)
    held = torch.zeros(len(digits), dtype=torch.bool)
    held[torch.tensor(encoder.record["heldout"])] = True
    assert int(held.sum()) == 359
    by_hand = arht.Guard(encoder, draws=3, generator=torch.Generator().manual_seed(0))
    by_hand.fit(digits[~held], calibration=digits[held])
    guard = arht.load("g.safetensors")
    queries = arht.data.load("digits", "test", size=16)[:50]
    np.testing.assert_allclose(guard.score(queries), by_hand.score(queries), rtol=1e-6)
    assert np.array_equal(guard.test(queries).pvalue, by_hand.test(queries).pvalue)
    assert guard.inputs == 839


def test_scores_audit_and_report(here, capsys):
    assert run(capsys, "score g.safetensors digits --out s.parquet --heldout digits --fdr 0.2 --quiet")[0] == 0
    scores = read_scores("s.parquet")
    expected = arht.load("g.safetensors").test(arht.data.load("digits", "test", size=16))
    np.testing.assert_allclose(scores.columns["score"], expected.score, rtol=1e-6)
    assert scores.record["guarantee"] == "conformal"
    assert scores.record["reference"]["n"] == 839
    assert scores.record["audit"]["tested"] == 599
    names = [f"score.{name}" for name in expected.layers]
    assert set(names) <= set(scores.columns)
    assert run(capsys, "report s.parquet --images digits --explain 4 --out r.html")[0] == 0
    html = (here / "r.html").read_text(encoding="utf-8")
    page = json.loads(html.split('id="record">')[1].split("</script>")[0])
    assert len(page["report"]["explanations"]) == 4
    for one in page["report"]["explanations"].values():
        assert set(one["layers"]) == set(expected.layers)
        assert sum(one["layers"].values()) == pytest.approx(1)
    assert html.count("data:image/png") > 100
    code, out, _ = run(capsys, "audit g.safetensors digits --fdr 0.5 --tests 20 --json")
    assert json.loads(out)["passed"] == (code == 0)


def test_pictures_from_a_folder_and_an_npz_score_alike(here, capsys):
    assert run(capsys, "data digits --export pictures --split test --limit 30")[0] == 0
    picked = arht.data.load("pictures", size=16, channels=1)
    np.savez("pictures.npz", x_test=picked.pixels.numpy())
    for name in ("pictures", "pictures.npz"):
        assert run(capsys, f"score g.safetensors {name} --out {name}.csv --quiet")[0] == 0
    folder, archive = (read_scores(f"{name}.csv").columns for name in ("pictures", "pictures.npz"))
    assert len(folder["score"]) == 30
    assert np.array_equal(folder["score"], archive["score"])


def test_another_calibration_is_taken_where_it_is_named(here, capsys):
    line = "fit digits --encoder e.safetensors --draws 2 --mode paper --out h.safetensors --quiet"
    code, out, _ = run(capsys, f"{line} --calibration digits")
    assert code == 0
    assert "839 inputs" in out
    assert "599 held-out inputs" in out
    code, out, _ = run(capsys, f"{line} --calibration-fraction 0.5 --split test")
    assert code == 0
    counts = [int(word) for word in out.replace(",", "").split() if word.isdecimal()]
    assert sum(counts[:2]) == 599


def test_other_data_need_a_calibration_of_their_own(here, capsys):
    for words, said in (
        ("digits --split test", "a guard needs inputs that the encoder never saw"),
        ("pictures.npz", "a guard needs inputs that the encoder never saw"),
    ):
        pixels = arht.data.load("digits", size=16)[:20].pixels.numpy()
        np.savez("pictures.npz", x_train=pixels)
        code, out, err = run(capsys, f"fit {words} --encoder e.safetensors --out no.safetensors --quiet")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
    assert not (here / "no.safetensors").exists()


def test_data_that_are_not_those_of_the_training_are_noticed(here, capsys):
    from arht.commands._guards import own_parts

    encoder = arht.load("e.safetensors")
    encoder.record["data"]["train"] -= 1
    with pytest.raises(arht.InputError, match="nobody can tell which were held out"):
        own_parts(encoder, ("digits",), "train", None)
