"""Files that are not what they should be, scorers of others, and each row of docs/errors.md on detectors."""

import json
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest

import arht
from arht.detectors import (
    ARHTDetector,
    DifferentialEntropy,
    Entropy,
    FromScorer,
    HotellingDetector,
    MahalanobisDetector,
    RHTDetector,
)
from arht.errors import InputError
from arht.io import artefact
from tests.errors_page import pattern, rows

ROWS = rows("Detectors")
RNG = np.random.default_rng(0)
X, HELD, Q = RNG.normal(size=(100, 5)), RNG.normal(size=(60, 5)), RNG.normal(size=(9, 5))
LABELS = RNG.integers(3, size=100)
P = RNG.dirichlet(np.ones(4), size=(30, 3))


def spoiled(array):
    copy = array.copy()
    copy[[4, 7], 1] = np.nan
    return copy


def fitted(**options):
    return ARHTDetector(**options).fit(X, LABELS)


# every row of the page, and each detector that it says it is met in
CALLS = {
    "no reference yet": lambda d: d().test(Q),
    "queries of another width": lambda d: d().fit(X).test(Q[:, :3]),
    "reference of no rows": lambda d: d().fit(X[:0]),
    "chunks of two widths": lambda d: d().fit(iter([X, X[:, :3]])),
    "no chunks": lambda d: d().fit(iter([])),
    "not a reference": lambda d: d().fit("reference.npy"),
    "no labels": lambda d: d(reference="class").fit(X),
    "labels of another length": lambda d: d(reference="class").fit(X, LABELS[:5]),
    "labels that are not integers": lambda d: d(reference="class").fit(X, LABELS + 0.5),
    "moments of all for a class reference": lambda d: d(reference="relative").fit(arht.Moments.of(X)),
    "a calibration input without a score": lambda d: d().fit(X).calibrate(spoiled(HELD)),
    "two-sided without calibration": lambda d: d(tail="two-sided").fit(X).test(Q),
    "a decision without p-values": lambda d: d(reference="class").fit(X, LABELS).decide(Q),
    "an audit without p-values": lambda d: d(reference="class").fit(X, LABELS).audit(Q),
    "an audit on the calibration set": lambda d: d().fit(X).calibrate(Q[:8]).audit(Q[:8]),
    "merge of unlike detectors": lambda d: d().fit(X).merge(d(tail="two-sided").fit(X)),
    "unknown tail": lambda d: d(tail="lower"),
    "unknown reference": lambda d: d(reference="nearest"),
    "unknown combination": lambda d: d(combine="mean"),
    "a ridge of zero": lambda d: d(0),
    "several priors per class": lambda d: d(prior=((1, 0), (0, 1)), reference="class"),
    "a singular reference": lambda d: d().fit(X[:4]).test(Q),
    "layers without calibration": lambda d: d().fit({"a": X, "b": X}).test({"a": Q, "b": Q}),
    "other layers": lambda d: d().fit({"a": X, "b": X}).calibrate({"a": HELD, "c": HELD}),
    "logits for probabilities": lambda d: d().test(3 * P - 1),
    "one draw to match a Dirichlet": lambda d: d("probabilities").test(P[:, :1]),
    "a scorer that is none": lambda d: d(3.0),
    "a scorer that was not fitted": lambda d: d(IsolationForest()).test(Q),
    "a scorer in pieces": lambda d: d(IsolationForest()).fit(X).partial_fit(X),
    "scores of another shape": lambda d: d(lambda x: x).test(Q),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    where, line = ROWS[name]
    assert where
    for detector in where:
        with pytest.raises(InputError) as caught:
            CALLS[name](globals()[detector])
        assert re.fullmatch(pattern(line.replace(where[0], detector)), str(caught.value)), str(caught.value)


FILES = {
    "a detector cut short": lambda path, data: path.write_bytes(data[: len(data) * 7 // 10]),
    "a flipped byte": lambda path, data: path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "a newer schema": lambda path, data: newer(path),
    "a renamed pickle": lambda path, data: path.write_bytes(pickle.dumps({"a": 1})),
    "a foreign safetensors file": lambda path, data: save_file({"weight": torch.zeros(2)}, path),
    "an artefact of another kind": lambda path, data: artefact.write(path, "shopping list", {}, {}),
    "an unknown detector": lambda path, data: artefact.write(path, "detector", {"class": "Oracle"}, {}),
    "a scorer's calibration without the scorer": lambda path, data: FromScorer(abs_sum).calibrate(HELD).save(path),
}


def abs_sum(x):
    return np.abs(x).sum(1)


def newer(path):
    artefact.write(path, "detector", {}, {})
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    outer = json.loads(header["__metadata__"]["arht"])
    header["__metadata__"]["arht"] = json.dumps(outer | {"schema": 99, "version": "9.0"})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    (where,), line = ROWS[name]
    assert where == "load"
    path = tmp_path / "d.safetensors"
    fitted().save(path)
    FILES[name](path, path.read_bytes())
    with pytest.raises(InputError) as caught:
        arht.load(path)
    assert re.fullmatch(pattern(line), str(caught.value)), str(caught.value)


def test_every_row_is_provoked():
    assert set(ROWS) == {*CALLS, *FILES}


def test_every_byte_matters(tmp_path):
    """Any flipped byte of a small file is refused with one line, wherever it is."""
    path = tmp_path / "d.safetensors"
    MahalanobisDetector(keep=0).fit(X).save(path)
    data = path.read_bytes()
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(InputError) as caught:
            arht.load(path)
        assert "\n" not in str(caught.value)


def test_a_header_as_long_as_a_pickle_begins_is_read(tmp_path):
    """The first byte of the file is the lowest of the header's length: 0x80 is no sign of a pickle."""
    seen = set()
    for length in range(0, 300, 4):
        artefact.write(tmp_path / "x.safetensors", "detector", {"pad": "x" * length}, {})
        seen.add((tmp_path / "x.safetensors").read_bytes()[0])
        assert artefact.read(tmp_path / "x.safetensors")[1] == {"pad": "x" * length}
    assert 0x80 in seen


def test_load_reads_encoders_and_refuses_options_that_do_not_fit(tmp_path):
    encoder = arht_encoder()
    encoder.save(tmp_path / "e.safetensors")
    assert type(arht.load(tmp_path / "e.safetensors")) is type(encoder)
    fitted().save(tmp_path / "d.safetensors")
    with pytest.raises(InputError, match="these options do not fit a detector: net"):
        arht.load(tmp_path / "d.safetensors", net=None)


def arht_encoder():
    from arht.nets import LeNet
    from arht.posterior import Deterministic

    return Deterministic(LeNet(in_channels=1, num_classes=10, embedding_dim=84))


def test_saving_again_gives_the_same_digest(tmp_path):
    detector = fitted(reference="relative", tail="two-sided").calibrate(HELD)
    first = detector.save(tmp_path / "a.safetensors")
    assert arht.load(tmp_path / "a.safetensors").save(tmp_path / "b.safetensors") == first


# scorers of others ---------------------------------------------------------------------------------------------------


def test_scikit_learn_scorers_are_turned_round():
    forest = IsolationForest(n_estimators=20, random_state=0)
    detector = FromScorer(forest).fit(X).calibrate(HELD)
    np.testing.assert_array_equal(detector.score(Q), -forest.score_samples(Q))
    assert detector.test(Q + 50).pvalue.max() == 1 / 61
    turned = FromScorer(EllipticEnvelope(random_state=0), larger="ood").fit(X).score(Q)
    np.testing.assert_array_equal(turned, -FromScorer(EllipticEnvelope(random_state=0)).fit(X).score(Q))


def test_a_scorer_of_images_sees_images():
    images = RNG.normal(size=(40, 3, 4, 4))
    seen = []

    def scorer(x):
        seen.append(x.shape)
        return x.std((1, 2, 3))

    detector = FromScorer(scorer, average_draws=False).calibrate(images)
    assert detector.test(images[:5] * 9).pvalue.max() <= 2 / 41
    spoiled_images = images.copy()
    spoiled_images[2, 0, 0, 0] = np.nan
    assert detector.test(spoiled_images).outcome.tolist() == [0, 0, 1, *[0] * 37]
    assert seen == [(40, 3, 4, 4), (5, 3, 4, 4), (39, 3, 4, 4)]


def test_draws_are_averaged_for_a_scorer():
    draws = RNG.normal(size=(7, 4, 5))
    np.testing.assert_allclose(FromScorer(abs_sum).score(draws), abs_sum(draws.mean(1)))


def test_a_scorer_is_given_back_to_its_file(tmp_path):
    detector = FromScorer(abs_sum, tail="two-sided").calibrate(HELD)
    detector.save(tmp_path / "d.safetensors")
    loaded = arht.load(tmp_path / "d.safetensors", scorer=abs_sum)
    np.testing.assert_array_equal(loaded.test(Q).pvalue, detector.test(Q).pvalue)
    assert loaded.tail == "two-sided"


def test_all_names_used_here_are_detectors():
    kinds = (
        ARHTDetector,
        RHTDetector,
        HotellingDetector,
        MahalanobisDetector,
        Entropy,
        DifferentialEntropy,
        FromScorer,
    )
    assert {name for where, _ in ROWS.values() for name in where} - {"load"} <= {kind.__name__ for kind in kinds}
