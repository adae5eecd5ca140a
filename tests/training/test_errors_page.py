"""The rows of docs/errors.md on training and on data are provoked, one by one."""

import re

import numpy as np
import pytest
import torch

from arht import nets
from arht.data import Augment, Transform, load
from arht.errors import InputError
from arht.posterior import MeanField
from arht.training import Contrastive, Regression, Settings, fit
from tests.data import official
from tests.errors_page import pattern, rows
from tests.training.digits import TRAIN, TRANSFORM, encoder

TRAINING, DATA = rows("Training"), rows("Data")
X, Y = TRAIN.pixels, TRAIN.labels
LENET = {"in_channels": 1, "num_classes": 10, "image_size": 16}


def trained(_, data=TRAIN, model=None, transform=TRANSFORM, **options):
    fit(model or encoder(), data, transform=transform, progress=False, **{"epochs": 1, **options})


def wrong(place, value):
    labels = Y.clone()
    labels[place] = value
    return X, labels


def spoiled(folder):
    floats = X.float() / 255
    floats[7, 0, 3, 3] = torch.nan
    trained(folder, (floats, Y), transform=None)


def two_runs(folder):
    for rate in (0.003, 0.1):
        trained(folder, folder=folder, epochs=None, settings=Settings(epochs=1, learning_rate=rate))


TRAINING_CALLS = {
    "a label out of range": lambda folder: trained(folder, wrong(5, 10)),
    "labels as numbers": lambda folder: trained(folder, (X, Y.float())),
    "no labels": lambda folder: trained(folder, (X, None)),
    "labels of another length": lambda folder: trained(folder, (X, Y[:5])),
    "no inputs": lambda folder: trained(folder, (X[:0], Y[:0])),
    "a loss that is not finite": spoiled,
    "early stopping without held-out data": lambda folder: trained(folder, settings=Settings(patience=3)),
    "contrastive without augmentation": lambda folder: trained(folder, objective="contrastive"),
    "unknown objective": lambda folder: trained(folder, objective="ranking"),
    "regression with another width": lambda folder: trained(
        folder, (X, torch.zeros(len(X), 3)), objective="regression"
    ),
    "regression with NaN": lambda folder: trained(
        folder, (X, torch.full((len(X),), torch.nan)), encoder(outputs=1), objective="regression"
    ),
    "a checkpoint of another run": two_runs,
    "a bad setting": lambda folder: Settings(learning_rate=0.0),
    "a bad number of epochs": lambda folder: Settings(epochs=0),
    "a bad schedule": lambda folder: Settings(schedule="step"),
    "a bad margin": lambda folder: Contrastive(margin=-1),
    "a bad noise level": lambda folder: Regression(noise=0.0),
    "wrong number of channels": lambda folder: trained(
        folder, model=MeanField(nets.LeNet(**LENET)), transform=Transform(16, 3)
    ),
    "wrong size of the images": lambda folder: trained(
        folder, model=MeanField(nets.LeNet(**LENET)), transform=Transform(20, 1)
    ),
    "nothing to train": lambda folder: trained(folder, model=encoder().requires_grad_(False)),
}


def pictures(folder, damaged=True):
    """Two classes of two pictures, one of them no picture."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            official.photo(folder / name / f"{i}.png", 8 + i, 50)
    if damaged:
        (folder / "dog" / "1.png").write_bytes(b"no picture")
    return folder


def arrays(folder, **named):
    np.savez(folder / "own.npz", **named)
    return load(folder / "own.npz")


def cut_mnist(folder):
    path = official.mnist(folder) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1000])
    load("mnist", data_dir=folder)


BYTES = np.zeros((2, 4, 4), np.uint8)
DATA_CALLS = {
    "unknown data set": lambda folder: load("mnits"),
    "unknown split": lambda folder: load("mnist", "val"),
    "unknown option": lambda folder: load("mnist", inverted=True),
    "a missing file": lambda folder: load("svhn", data_dir=folder, download=False),
    "a missing file without an address": lambda folder: load("retina", data_dir=folder),
    "a damaged file": cut_mnist,
    "an unreadable image": lambda folder: load(pictures(folder / "own"), size=8),
    "images of several sizes": lambda folder: load(pictures(folder / "own", damaged=False)),
    "a folder without images": lambda folder: load(folder),
    "an array of another type": lambda folder: arrays(folder, x=BYTES.astype(float)),
    "an array that is not there": lambda folder: arrays(folder, a=BYTES),
    "labels that do not fit": lambda folder: arrays(folder, x=BYTES, y=[1]),
    "a transform of scaled values": lambda folder: Transform(8, 1)(torch.zeros(1, 1, 8, 8)),
    "augmentation of scaled values": lambda folder: Augment()(torch.zeros(1, 1, 8, 8), generator=torch.Generator()),
}


@pytest.mark.parametrize("name", TRAINING_CALLS)
def test_training(name, tmp_path):
    with pytest.raises(InputError) as caught:
        TRAINING_CALLS[name](tmp_path)
    assert re.fullmatch(pattern(TRAINING[name][1]), str(caught.value))


@pytest.mark.parametrize("name", DATA_CALLS)
def test_data(name, tmp_path):
    with pytest.raises(InputError) as caught:
        DATA_CALLS[name](tmp_path)
    assert re.fullmatch(pattern(DATA[name][1]), str(caught.value))


def test_every_row_is_provoked():
    assert set(TRAINING) == set(TRAINING_CALLS)
    assert set(DATA) == set(DATA_CALLS)
