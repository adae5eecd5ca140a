"""`arht data`: what is here, what is missing, and pictures written out."""

import numpy as np

from arht.data import NAMES, load
from tests.commands_run import as_json, refused, run
from tests.data.official import mnist, omniglot


def test_the_list(tmp_path, capsys):
    mnist(tmp_path)
    omniglot(tmp_path)
    record = as_json(capsys, "data", "--data-dir", tmp_path)
    sets = {one["name"]: one for one in record["sets"]}
    assert list(sets) == list(NAMES)
    assert sets["mnist"]["splits"]["train"] == {"pictures": 4, "missing": []}
    assert sets["omniglot"]["splits"]["background"]["pictures"] == 12
    assert sets["omniglot"]["options"] == ["inverted"]
    assert sets["digits"]["splits"]["test"]["pictures"] == 599
    missing = sets["retina"]["splits"]["train"]
    assert missing["missing"] == ["train", "trainLabels.csv"]
    assert missing["get"].startswith("https://www.kaggle.com/")
    assert missing["fetched"] is False
    assert sets["cifar10"]["splits"]["test"]["fetched"] is True

    code, out, err = run(capsys, "data", "--data-dir", tmp_path)
    assert (code, err) == (0, "")
    assert "background, train" in out
    assert "get it from" in " ".join(out.replace("│", " ").split())


def test_one_set_and_a_damaged_file(tmp_path, capsys):
    place = mnist(tmp_path)
    (place / "train-images-idx3-ubyte.gz").write_bytes(b"nothing")
    (one,) = as_json(capsys, "data", "MNIST", "--data-dir", tmp_path)["sets"]
    assert one["splits"]["train"]["pictures"] is None
    assert "gzip" in one["splits"]["train"]["damaged"]
    assert one["splits"]["test"]["pictures"] == 2


def test_exported_pictures_are_a_folder_that_can_be_read(tmp_path, capsys):
    words = ("data", "digits", "--export", tmp_path / "out", "--split", "test", "--limit", 30)
    assert as_json(capsys, *words)["pictures"] == 30
    images, original = load(tmp_path / "out", channels=1), load("digits", "test", limit=30)
    assert images.classes == original.classes
    order = np.lexsort((np.arange(30), original.labels))
    assert np.array_equal(images.pixels, original.pixels[order])
    assert refused(capsys, *words) == (
        f"arht data: --export must be a new or empty folder; got {tmp_path / 'out'}. Name another, or empty it."
    )


def test_fetch_says_what_it_cannot_get(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ARHT_OFFLINE", "1")
    assert refused(capsys, "data", "svhn", "--fetch", "--data-dir", tmp_path) == (
        f"load: svhn needs train_32x32.mat in {tmp_path / 'svhn'}; it is not there and downloads are switched off. "
        "Get it from http://ufldl.stanford.edu/housenumbers/train_32x32.mat, or name another folder with data_dir or "
        "ARHT_DATA."
    )
    assert refused(capsys, "data", "--fetch") == (
        "arht data: --fetch goes with the name of a data set; got none. Write for instance mnist."
    )
