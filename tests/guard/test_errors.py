"""Each row of docs/errors.md on guards, and damaged files of a guard."""

import json
import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import arht
from arht import nets
from arht.detectors import FromScorer, RHTDetector
from arht.errors import InputError
from arht.io import artefact
from arht.posterior import FromCallable, MeanField
from tests.errors_page import pattern, rows

ROWS = rows("Guards")
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
SPOILED = X.clone()
SPOILED[[4, 9], 2] = float("nan")


def encoder():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nets.MLP(in_features=5, out_features=3)
    return MeanField(net, generator=torch.Generator().manual_seed(0))


def guard(mode="paper", **options):
    return arht.Guard(encoder(), mode, draws=2, **options)


def ready():
    return guard().fit(X[:30], calibration=X[30:])


def by_class():
    return arht.Guard(nets.MLP(in_features=5), RHTDetector(1.0, reference="class"))


CALLS = {
    "no module": lambda: arht.Guard(abs),
    "unknown mode": lambda: guard("papers"),
    "unknown combination": lambda: guard(combine="mean"),
    "no draws": lambda: arht.Guard(encoder(), draws=0),
    "unknown layer": lambda: guard(RHTDetector(1.0), layers=["fcc1"]),
    "no inputs": lambda: ready().test(X[:0]),
    "batches that are none": lambda: guard().fit(iter([])),
    "no batches to test": lambda: ready().test(iter([])),
    "no batches to explain": lambda: ready().explain(iter([])),
    "inputs that are none": lambda: guard().fit("digits"),
    "labels of another length": lambda: guard().fit(X, torch.zeros(7, dtype=torch.int64)),
    "labels that are not integers": lambda: guard().fit(X, torch.zeros(60)),
    "labels beside batches": lambda: guard().fit(iter([X]), torch.zeros(60, dtype=torch.int64)),
    "a reference with NaN": lambda: guard().fit(SPOILED),
    "classes of a net without": lambda: by_class().fit(X),
    "inputs that the net does not take": lambda: arht.Guard(nn.Linear(4, 2)).fit(X),
    "inputs of another shape than in fit": lambda: ready().test(X[:, :4]),
    "calibration before fit": lambda: guard().calibrate(X),
    "save before fit": lambda: guard().save("g.safetensors"),
    "no calibration yet": lambda: guard().fit(X).test(X),
    "one calibration input": lambda: guard().fit(X).calibrate(X[:1]),
    "calibration with NaN": lambda: guard("auto").fit(X).calibrate(SPOILED),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    (_, line) = ROWS[name]
    with pytest.raises(InputError) as caught:
        CALLS[name]()
    assert re.fullmatch(pattern(line), str(caught.value)), str(caught.value)


def test_explain_and_audit_need_a_calibration_too():
    fitted = guard().fit(X)
    for verb in ("explain", "audit"):
        with pytest.raises(InputError, match=f"^Guard.{verb}: needs inputs that the encoder never saw"):
            getattr(fitted, verb)(X)


def header_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return data, size, json.loads(data[8 : 8 + size])


def newer(path):
    data, size, header = header_of(path)
    outer = json.loads(header["__metadata__"]["arht"])
    header["__metadata__"]["arht"] = json.dumps(outer | {"schema": 99, "version": "9.0"})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def flipped(path):
    data, size, _ = header_of(path)
    place = 8 + size + (len(data) - 8 - size) // 2
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def lacking(path):
    kind, header, tensors = artefact.read(path)
    artefact.write(path, kind, {name: value for name, value in header.items() if name != "combine"}, tensors)


def of_ones_own(path):
    arht.Guard(nn.Sequential(nn.Linear(5, 3)), "paper").fit(X, calibration=X).save(path)


def with_scorer(path):
    scored = arht.Guard(encoder(), FromScorer(lambda x: np.abs(x).sum(1)), draws=2)
    scored.fit(X, calibration=X).save(path)


FILES = {
    "a guard cut short": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10]),
    "a guard with a flipped byte": flipped,
    "a guard of a newer schema": newer,
    "a pickle under a guard's name": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "a guard that lacks a part": lacking,
    "a guard around a net of one's own": of_ones_own,
    "a guard with a scorer of others": with_scorer,
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    (where,), line = ROWS[name]
    assert where == "load"
    path = tmp_path / "g.safetensors"
    ready().save(path)
    FILES[name](path)
    with pytest.raises(InputError) as caught:
        arht.load(path)
    said = str(caught.value).replace(str(path), "{path}")
    assert re.fullmatch(pattern(line.replace("{path}", "PATH")), said.replace("{path}", "PATH")), said


def test_a_callable_is_not_saved(tmp_path):
    path = tmp_path / "g.safetensors"
    made = arht.Guard(FromCallable(lambda x, k, g: x[:, None].expand(-1, k, -1)), "paper", draws=2)
    with pytest.raises(InputError, match="FromCallable holds a function"):
        made.fit(X, calibration=X).save(path)
    assert not path.exists()


def test_every_row_is_provoked():
    assert set(ROWS) == set(CALLS) | set(FILES)
