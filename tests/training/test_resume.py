"""A run that is killed and goes on ends where it would have ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from arht import nets
from arht.data import Augment, Transform
from arht.errors import InputError
from arht.io import artefact
from arht.posterior import Deterministic, MeanField
from arht.training import History, Settings
from tests.training import resumed
from tests.training.digits import TRAIN, encoder, net, seeded, train, weights

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


def softplus():
    found = net()
    found[2] = nn.Softplus()
    return MeanField(found, generator=seeded())


def identity(inputs, *, generator):
    return inputs


OTHERS = {
    r"net is Sequential-\w+, not Sequential-\w+": lambda: (softplus(), {}),
    r"posterior is MeanField, not Deterministic": lambda: (Deterministic(net()), {}),
    r"posterior\.prior_scale is 1\.0, not 2\.0": lambda: (MeanField(net(), prior_scale=2.0), {}),
    r"posterior\.rho_mean is -3\.0, not -5\.0": lambda: (MeanField(net(), rho_mean=-5.0), {}),
    r"augment is None, not Augment\(shift=2, flip=0\.0.*\)": lambda: (encoder(), {"augment": Augment.digits()}),
    r"augment is None, not <function identity>": lambda: (encoder(), {"augment": identity}),
    r"transform\.mean is \[0\.\d+\], not \[0\.0\]": lambda: (encoder(), {"transform": Transform(8, 1)}),
    r"transform is Transform, not None": lambda: (encoder(), {"transform": None}),
    r"seed is 0, not 1": lambda: (encoder(), {"seed": 1}),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    train(encoder(), settings=Settings(epochs=1), folder=folder)
    return folder


@pytest.mark.parametrize("words", OTHERS)
def test_another_net_posterior_augmentation_transform_or_seed_is_refused(words, done):
    path, settings = done / "checkpoint.safetensors", Settings(epochs=1)
    kind, header, tensors = artefact.read(path)
    model, options = OTHERS[words]()
    header["run"]["parameters"] = sum(value.numel() for value in model.state_dict().values())  # what else differs?
    artefact.write(path, kind, header, tensors)
    with pytest.raises(InputError, match=rf"must be of the same run; its {words}\. Use the old setting"):
        train(model, settings=settings, folder=done, **options)


def test_another_activation_of_a_net_by_name_is_refused(tmp_path):
    transform, settings = Transform(16, 1), Settings(epochs=1)

    def run(activation):
        made = nets.LeNet(in_channels=1, num_classes=10, image_size=16, activation=activation)
        model = MeanField(made, generator=seeded())
        train(model, TRAIN[:200], settings=settings, folder=tmp_path, transform=transform)

    run("relu")
    run("relu")
    with pytest.raises(InputError, match=r"its net\.activation is relu, not softplus\. Use the old"):
        run("softplus")


def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(tmp_path):
    """One written before these were recorded."""
    train(encoder(), settings=SETTINGS, folder=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    kind, header, tensors = artefact.read(path)
    old = {*vars(SETTINGS), "objective", "processes", "data", "validation", "parameters"}
    header["run"] = {name: value for name, value in header["run"].items() if name in old}
    artefact.write(path, kind, header, tensors)
    with pytest.raises(InputError, match=r"its net is None, not Sequential-\w+\. Use the old setting, another folder"):
        train(encoder(), settings=SETTINGS, folder=tmp_path)


def test_a_generator_that_has_moved_on_is_the_same_seed(tmp_path):
    first, again, generator = encoder(), encoder(), seeded()
    for model in (first, again):
        train(model, settings=Settings(epochs=1), folder=tmp_path, generator=generator)
    assert torch.equal(weights(first), weights(again))


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
    fit_floats(gone_on, (inputs, labels), augment=spoil, **common)
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
