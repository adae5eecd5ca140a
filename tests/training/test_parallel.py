"""Two real processes under Fabric's ddp, on gloo, do what one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arht.stats import Moments
from arht.training import History

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What one process left, and what two left."""
    folders = []
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "MASTER_ADDR": "127.0.0.1"}
    for count in (1, 2):
        folder = tmp_path_factory.mktemp(f"processes{count}")
        words = [sys.executable, "-m", "tests.training.parallel", str(count), str(folder)]
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        folders.append(folder)
    return folders


def loaded(path):
    return torch.load(path, weights_only=True)


def test_the_training_loss_is_the_same(outputs):
    one, two = (History.read(folder / "history.jsonl").epochs for folder in outputs)
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-4)
        assert b.nll == pytest.approx(a.nll, rel=1e-4)
        assert b.accuracy == pytest.approx(a.accuracy, abs=2 / 1198)
        assert b.validation_loss == pytest.approx(a.validation_loss, rel=1e-4)
    assert one[-1].loss < one[0].loss


def test_the_weights_are_those_of_one_process(outputs):
    alone = loaded(outputs[0] / "weights0.pt")
    first, second = (loaded(outputs[1] / f"weights{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert (first - alone).abs().max() < 1e-3


def test_the_moments_of_the_embeddings_merge_to_those_of_one_process(outputs):
    alone = Moments(*loaded(outputs[0] / "moments0.pt"))
    parts = [Moments(*loaded(outputs[1] / f"moments{rank}.pt")) for rank in (0, 1)]
    assert 0 < parts[0].n < alone.n
    merged = parts[0].merge(parts[1])
    assert merged.n == alone.n == 7 * 599
    scale = alone.scatter.diagonal().sqrt()
    assert ((merged.mean - alone.mean).abs() / scale * alone.n**0.5).max() < 1e-2
    assert ((merged.scatter - alone.scatter).abs() / scale / scale[:, None]).max() < 1e-2
