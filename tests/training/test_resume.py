"""A run that is killed and goes on ends where it would have ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arht.errors import InputError
from arht.training import History, Settings
from tests.training import resumed
from tests.training.digits import TRAIN, encoder, train, weights

ROOT = Path(__file__).parents[2]


def process(*words):
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tests.training.resumed", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def test_kill_9_in_the_middle_of_an_epoch_changes_nothing(tmp_path):
    with process(tmp_path / "cut", tmp_path / "cut.pt", 2, 8) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGKILL)
        assert run.wait(timeout=60) == -signal.SIGKILL
    # killed in step 8 of epoch 2; the checkpoint is that of step 6
    left = History.read(tmp_path / "cut" / "history.jsonl")
    assert [epoch.epoch for epoch in left.epochs] == [1]
    assert not (tmp_path / "cut.pt").exists()

    resumed.main(tmp_path / "cut", tmp_path / "cut.pt")
    resumed.main(tmp_path / "whole", tmp_path / "whole.pt")
    cut, whole = (torch.load(tmp_path / name, weights_only=True) for name in ("cut.pt", "whole.pt"))
    assert torch.equal(cut, whole)
    first, second = (History.read(tmp_path / name / "history.jsonl").epochs for name in ("cut", "whole"))
    assert len(first) == 4
    for ours, theirs in zip(first, second, strict=True):
        assert vars(ours) | {"seconds": 0} == vars(theirs) | {"seconds": 0}


SETTINGS = Settings(epochs=4, learning_rate=3e-3, batch_size=100)


def test_a_finished_run_is_not_run_again(tmp_path):
    first, again = encoder(), encoder()
    train(first, settings=SETTINGS, folder=tmp_path)
    written = (tmp_path / "checkpoint.safetensors").read_bytes()
    history = train(again, settings=SETTINGS, folder=tmp_path)
    assert torch.equal(weights(first), weights(again))
    assert len(history.epochs) == 4
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == written
    fresh = encoder()
    train(fresh, settings=SETTINGS, folder=tmp_path, resume=False)
    assert torch.equal(weights(first), weights(fresh))


def test_another_run_is_refused(tmp_path):
    train(encoder(), settings=SETTINGS, folder=tmp_path)
    with pytest.raises(
        InputError, match=r"its learning_rate is 0\.003, not 0\.1\. Use the old setting, another folder"
    ):
        train(encoder(), settings=Settings(epochs=4, learning_rate=0.1, batch_size=100), folder=tmp_path)
    with pytest.raises(InputError, match=r"must be of the same run; its data is 1198-\w+, not 1197-\w+"):
        train(encoder(), TRAIN[1:], settings=SETTINGS, folder=tmp_path)
    with pytest.raises(InputError, match=r"its parameters is \d+, not \d+"):
        train(encoder(hidden=33), settings=SETTINGS, folder=tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path):
    train(encoder(), settings=SETTINGS, folder=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"checkpoint\.safetensors must be a whole safetensors file"):
        train(encoder(), settings=SETTINGS, folder=tmp_path)


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    """The augmentation makes one NaN in the second epoch; what was good before is on disk and can be gone on from."""
    calls = []

    def spoil(inputs, *, generator):
        calls.append(None)
        inputs = inputs.clone()
        if len(calls) == 1 + 12 + 5:
            inputs[3] = torch.nan
        return inputs

    inputs, labels = TRAIN.pixels.float() / 255, TRAIN.labels
    common = {"settings": SETTINGS, "folder": tmp_path}
    with pytest.raises(InputError) as caught:
        fit_floats(encoder(), (inputs, labels), augment=spoil, **common)
    assert str(caught.value).startswith("training.fit: the loss must be finite; got loss=nan, nll=nan, kl=")
    assert str(caught.value).endswith(
        f"at step 17, in epoch 2. Training stopped there and {tmp_path / 'checkpoint.safetensors'} holds the last good "
        "checkpoint; check the data for NaN, or lower the learning rate."
    )
    assert [epoch.epoch for epoch in History.read(tmp_path / "history.jsonl").epochs] == [1]
    gone_on, whole = encoder(), encoder()
    fit_floats(gone_on, (inputs, labels), **common)
    fit_floats(whole, (inputs, labels), settings=SETTINGS)
    assert torch.equal(weights(gone_on), weights(whole))
    assert weights(gone_on).isfinite().all()


def fit_floats(model, data, **options):
    from arht.training import fit

    return fit(model, data, generator=torch.Generator().manual_seed(0), progress=False, **options)


def test_nan_without_a_checkpoint_leaves_the_weights_of_the_step_before(tmp_path):
    inputs = TRAIN.pixels.float() / 255
    inputs[7, 0, 3, 3] = torch.nan
    model = encoder()
    with pytest.raises(InputError, match=r"and the weights are those of the step before; check the data for NaN"):
        fit_floats(model, (inputs, TRAIN.labels), settings=SETTINGS)
    assert weights(model).isfinite().all()
    with pytest.raises(InputError, match=r"and no checkpoint was written yet; check"):
        fit_floats(encoder(), (inputs, TRAIN.labels), settings=SETTINGS, folder=tmp_path)
