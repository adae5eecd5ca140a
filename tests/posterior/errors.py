"""What provokes each row of docs/errors.md on encoders."""

import json
import pickle

import torch
from safetensors.torch import save_file
from torch import nn

from arht import nets
from arht.io import artefact
from arht.posterior import Deterministic, Ensemble, FromCallable, MCDropout, MeanField, Tap, build, load

X = torch.zeros(2, 2, 16, 16)
VECTORS = torch.zeros(2, 3)


def lenet():
    return nets.LeNet(in_channels=2, image_size=16)


def encoder():
    return MeanField(lenet())


class Labels(nn.Module):
    """Its output is no tensor of floats."""

    def forward(self, x):
        return x.flatten(1).argmax(1)


class Unused(nn.Module):
    """A layer of it does not run."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


def saved(folder, spoil=lambda path: None, made=encoder):
    """An encoder's file, spoiled, read again."""
    path = folder / "encoder.safetensors"
    made().save(path)
    spoil(path)
    return load(path)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def changed(path):
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(bytes(whole))


def newer(path):
    kind, header, tensors = artefact.read(path)
    about = {"schema": artefact.SCHEMA + 1, "kind": kind, "version": "9", "digest": "", "header": header}
    save_file(tensors, path, metadata={"arht": json.dumps(about)})


def detector(path):
    artefact.write(path, "detector", {}, {})


def foreign(path):
    save_file({"a": torch.zeros(1)}, path)


def of_another_net(folder):
    path = folder / "encoder.safetensors"
    encoder().save(path)
    return load(path, net=nets.LeNet(in_channels=3, image_size=16))


CALLS = {
    "wrong number of channels": lambda folder: encoder().draw(X[:, :1]),
    "wrong size of the images": lambda folder: encoder().predict(torch.zeros(2, 2, 20, 20)),
    "no batch of images": lambda folder: encoder().draw(X[0]),
    "vectors of another width": lambda folder: MeanField(nets.MLP(5)).draw(VECTORS),
    "no inputs": lambda folder: encoder().draw(X[:0]),
    "inputs that are no numbers": lambda folder: encoder().draw(["a", "b"]),
    "a module that cannot run the inputs": lambda folder: Deterministic(nn.Linear(5, 2)).draw(VECTORS),
    "unknown random layer": lambda folder: MeanField(lenet(), ["conv3"]),
    "no random layer": lambda folder: MeanField(lenet(), []),
    "unknown embedding": lambda folder: MeanField(lenet(), embedding="fcc2"),
    "unknown tap": lambda folder: encoder().draw(X, at="actt1"),
    "unknown pooling": lambda folder: encoder().draw(X, at="conv1:max"),
    "a bad grid": lambda folder: Tap("conv1", "grid", 0),
    "one tap twice": lambda folder: encoder().draw(X, at=["conv1", "conv1"]),
    "a tap that is no name": lambda folder: encoder().draw(X, at=3),
    "a layer that does not run": lambda folder: Deterministic(Unused()).draw(VECTORS, at="idle"),
    "a layer without floats": lambda folder: Deterministic(Labels()).draw(VECTORS),
    "a bad number of draws": lambda folder: encoder().draw(X, 0),
    "a bad batch size": lambda folder: encoder().draw(X, batch_size=0),
    "more draws than the bank": lambda folder: encoder().bank(3).first(4),
    "a module without parameters": lambda folder: MeanField(nn.Flatten()),
    "no module": lambda folder: Deterministic(torch.sum),
    "a bad prior": lambda folder: MeanField(lenet(), prior_scale=0),
    "a bad rate of dropout": lambda folder: MCDropout(lenet(), rate=1.5),
    "no place for dropout": lambda folder: MCDropout(nn.Linear(3, 2)),
    "no nets": lambda folder: Ensemble([]),
    "nets of two architectures": lambda folder: Ensemble([lenet(), nets.CNN()]),
    "no number of members": lambda folder: Ensemble(lenet()),
    "unknown posterior": lambda folder: build({"posterior": "Laplace"}, lenet()),
    "unknown architecture": lambda folder: nets.build({"architecture": "VGG"}),
    "no callable": lambda folder: FromCallable(3),
    "a callable with draws of another shape": lambda folder: FromCallable(lambda x, k, g: x).draw(VECTORS),
    "layers of a callable": lambda folder: FromCallable(lambda x, k, g: x).draw(VECTORS, at="fc1"),
    "classes of a callable": lambda folder: FromCallable(lambda x, k, g: x).predict(VECTORS),
    "saving a callable": lambda folder: FromCallable(lambda x, k, g: x).save(folder / "encoder.safetensors"),
    "an encoder that is not there": lambda folder: load(folder / "encoder.safetensors"),
    "an encoder cut short": lambda folder: saved(folder, cut),
    "an encoder with a changed byte": lambda folder: saved(folder, changed),
    "an encoder of a newer schema": lambda folder: saved(folder, newer),
    "a file of another program": lambda folder: saved(folder, foreign),
    "a file of another purpose": lambda folder: saved(folder, detector),
    "a pickle": lambda folder: saved(folder, lambda path: path.write_bytes(pickle.dumps([1]))),
    "an empty file": lambda folder: saved(folder, lambda path: path.write_bytes(b"")),
    "a module that arht cannot build": lambda folder: saved(folder, made=lambda: Deterministic(Unused())),
    "a file of another net": of_another_net,
}
