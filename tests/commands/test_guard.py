"""A guard on the command line: an encoder in, images scored, the same numbers as `arht.Guard`."""

import numpy as np
import pytest
import torch

from arht import nets, posterior
from arht.data import Transform, load
from arht.io import read_scores, scores
from arht.loading import load as load_artefact
from tests.commands.files import run

pytestmark = pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """encoder.safetensors, untrained, and images of digits in r.npz, c.npz, q.npz and h.npz."""
    monkeypatch.chdir(tmp_path)
    digits = load("digits")
    pixels, labels = digits.pixels.numpy(), digits.labels.numpy()
    for name, part in (("r", slice(0, 150)), ("c", slice(150, 220)), ("q", slice(220, 250)), ("h", slice(250, 320))):
        np.savez(f"{name}.npz", x_train=pixels[part], y_train=labels[part], x_test=pixels[part], y_test=labels[part])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nets.build({"architecture": "LeNet", "in_channels": 1, "image_size": 16, "num_classes": 10})
    encoder = posterior.MeanField(net, generator=torch.Generator().manual_seed(0))
    posterior.save(encoder, "encoder.safetensors", transform=Transform.of(digits, size=16))
    return tmp_path


@pytest.mark.parametrize("mode", ["auto", "paper"])
def test_fit_and_score(folder, capsys, mode):
    line = f"fit r.npz --encoder encoder.safetensors --calibration c.npz --draws 2 --mode {mode} --out g.safetensors"
    code, out, err = run(capsys, line)
    assert (code, err) == (0, "")
    assert "70 held-out inputs" in out
    assert run(capsys, "score g.safetensors q.npz --out s.parquet --heldout h.npz")[0] == 0
    guard = load_artefact("g.safetensors")
    assert guard.mode == mode
    result = guard.test(load("q.npz", "test", size=16))
    scores = read_scores("s.parquet")
    np.testing.assert_allclose(scores.columns["score"], result.score, rtol=1e-6)
    np.testing.assert_array_equal(scores.columns["pvalue"], result.pvalue)
    assert (scores.record["guarantee"], scores.record["detector"]["class"]) == ("conformal", "Guard")
    layers = [name for name in scores.columns if name.startswith("score.")]
    assert len(layers) == (0 if result.layers is None else len(result.layers))
    assert run(capsys, "audit g.safetensors q.npz --fdr 0.5")[0] in (0, 1)


def test_what_a_guard_needs(folder, capsys):
    for line, words in (
        ("fit r.npz --encoder encoder.safetensors --out g.safetensors", "a guard needs inputs that the encoder"),
        ("fit r.npz --encoder encoder.safetensors --ridge 1 --out g.safetensors", "--ridge is for detectors"),
        ("fit r.npz --mode paper --out g.safetensors", "--mode goes with --encoder"),
        ("fit r.npz --encoder r.npz --calibration c.npz --out g.safetensors", "must be a safetensors file"),
    ):
        code, out, err = run(capsys, line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def pngs(folder, pixels):
    """Pictures in a folder without sub-folders."""
    from PIL import Image

    folder.mkdir()
    for i, picture in enumerate(pixels):
        Image.fromarray(picture[0]).save(folder / f"{i:03d}.png")


FIT = "fit r.npz --encoder encoder.safetensors --draws 2 --mode paper --quiet --out g.safetensors"


def test_a_changed_picture_is_another_run(folder, capsys, monkeypatch):
    """A folder, an archive and a data set elsewhere: the scores of other pixels are not gone on with."""
    pixels = load("digits").pixels.numpy()
    pngs(folder / "pictures", pixels[:30])
    assert run(capsys, f"{FIT} --calibration c.npz")[0] == 0

    def stopped(path, *rest):
        raise ZeroDivisionError

    for query in ("pictures", "q.npz"):
        line = f"score g.safetensors {query} --quiet --out {query}.csv"
        with monkeypatch.context() as patch:
            patch.setattr(scores, "write_scores", stopped)
            with pytest.raises(ZeroDivisionError):
                run(capsys, line)
        assert (folder / f"{query}.csv.part").is_dir()
        if query == "pictures":
            (folder / "pictures" / "003.png").write_bytes((folder / "pictures" / "004.png").read_bytes())
        else:
            np.savez("q.npz", x_test=pixels[300:330])
        code, out, err = run(capsys, line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "it is of another" in err
        assert run(capsys, line + " --restart")[0] == 0


def test_a_folder_without_splits_is_taken_as_it_is(folder, capsys):
    pixels = load("digits").pixels.numpy()
    pngs(folder / "held", pixels[150:220])
    pngs(folder / "queries", pixels[220:250])
    assert run(capsys, f"{FIT} --calibration held")[0] == 0
    assert run(capsys, "score g.safetensors queries --quiet --out s.csv")[0] == 0
    np.testing.assert_array_equal(
        read_scores("s.csv").columns["pvalue"],
        load_artefact("g.safetensors").test(load("queries", size=16, channels=1)).pvalue,
    )
    np.savez("plain.npz", x=pixels[220:250])
    assert run(capsys, "audit g.safetensors queries --fdr 0.5")[0] in (0, 1)
    assert run(capsys, "score g.safetensors plain.npz --quiet --out p.csv")[0] == 0
    assert run(capsys, "embed encoder.safetensors queries --draws 2 --quiet --out e.npz")[0] == 0
    code, _, err = run(capsys, "score g.safetensors queries --split val --out t.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "must have a sub-folder val" in err


def test_calibration_split(folder, capsys):
    pixels = load("digits").pixels.numpy()
    np.savez("c.npz", x_train=pixels[150:220], x_test=pixels[:5])
    code, out, err = run(capsys, f"{FIT} --calibration c.npz --calibration-split train")
    assert (code, err) == (0, "")
    assert "70 held-out inputs" in out
    code, out, err = run(capsys, f"fit {folder}/c.npz --calibration-split train --out d.safetensors")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--calibration-split goes with --encoder" in err


def trained(folder, data, heldout=(), limit=None):
    """The encoder, with what `arht train` records of its training images."""
    encoder = posterior.load("encoder.safetensors")
    count = 1198 if data == "digits" else 150
    record = {
        "options": {"data": data},
        "data": {"name": data, "train": count - len(heldout), "validation": 0, "heldout": len(heldout)},
        "heldout": list(heldout),
        "limit": limit,
    }
    posterior.save(encoder, "encoder.safetensors", transform=encoder.transform, record=record)


def test_a_part_of_the_training_images_is_no_calibration(folder, capsys):
    """Refused where the record knows it, with a way out; a warning where it knows nothing."""
    line = f"{FIT} --calibration-fraction 0.3"
    code, _, err = run(capsys, line)
    assert (code, err.count("\n")) == (0, 1)
    assert "conformal only if it never saw these images" in err
    trained(folder, "r.npz")
    for reference in ("r.npz", f"{folder}/r.npz", "c.npz r.npz"):
        code, out, err = run(capsys, line.replace("r.npz", reference))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--calibration-fraction needs images that the encoder never saw; got" in err
        assert "Give other images with --calibration, or train it with --heldout 0.1." in err
    trained(folder, "r.npz", range(0, 150, 5))
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert "Leave it out: the 30 images that arht train held out calibrate." in err
    code, out, err = run(capsys, FIT)
    assert (code, err) == (0, "")
    assert "30 held-out inputs" in out
    code, _, err = run(capsys, line.replace("r.npz", "c.npz"))  # other images: nothing to say
    assert (code, err) == (0, "")
    trained(folder, "gone/elsewhere.npz")
    code, _, err = run(capsys, line)
    assert code == 0
    assert "conformal only if" in err
    trained(folder, "digits")
    code, _, err = run(capsys, line.replace("r.npz", "Digits"))
    assert code == 2
    assert "got Digits, which it was trained on" in err
    code, _, err = run(capsys, line.replace("r.npz", "digits --split test"))
    assert (code, err) == (0, "")


def test_training_images_as_calibration(folder, capsys):
    """Of the training split only what was held out calibrates; nothing calibrates that is in the reference."""
    line = f"{FIT} --calibration r.npz --calibration-split train"
    code, out, err = run(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs images that are not in the reference; got r.npz as both" in err
    trained(folder, "r.npz")
    for reference in ("r.npz", "c.npz"):
        code, out, err = run(capsys, line.replace("fit r.npz", f"fit {reference}"))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "needs images that the encoder never saw; got r.npz, which it was trained on" in err
    trained(folder, "r.npz", range(0, 150, 5))
    for reference, count in (("r.npz", 120), ("c.npz", 70)):
        code, out, err = run(capsys, line.replace("fit r.npz", f"fit {reference}"))
        assert (code, err) == (0, "")
        assert "30 held-out inputs" in out
        assert f"{count} inputs" in out
    code, out, err = run(capsys, line.replace("fit r.npz", "fit r.npz c.npz"))
    assert (code, out) == (2, "")


@pytest.mark.parametrize("draws", [0, -3])
def test_no_draws(folder, capsys, draws):
    code, out, err = run(capsys, FIT.replace("--draws 2", f"--draws {draws} --calibration c.npz"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--draws must be an integer >= 1; got {draws}." in err
