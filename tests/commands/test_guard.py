"""A guard on the command line: an encoder in, images scored, the same numbers as `arht.Guard`."""

import numpy as np
import pytest
import torch

from arht import nets, posterior
from arht.data import Transform, load
from arht.io import read_scores
from arht.loading import load as load_artefact
from tests.commands.files import run

pytestmark = pytest.mark.filterwarnings("ignore::arht.errors.ResolutionWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """encoder.safetensors, untrained, and images of digits in r.npz, c.npz and q.npz."""
    monkeypatch.chdir(tmp_path)
    digits = load("digits")
    pixels, labels = digits.pixels.numpy(), digits.labels.numpy()
    for name, part in (("r", slice(0, 150)), ("c", slice(150, 220)), ("q", slice(220, 250))):
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
    assert run(capsys, "score g.safetensors q.npz --out s.parquet --heldout c.npz")[0] == 0
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
