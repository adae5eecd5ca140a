"""Every reader on small files in the official format, whole and damaged, and on the real ones where they lie."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from arht.data import NAMES, data_set, load
from arht.data.files import find
from arht.data.retina import in_test
from arht.errors import InputError
from tests.data import official
from tests.data.official import COLOURS, IMAGES, LABELS, WRITERS

REAL = os.environ.get("ARHT_DATA")
SIZES = {  # pictures of each split as the official pages state them; tiny-imagenet and retina may be kept in part
    "mnist": {"train": 60_000, "test": 10_000},
    "fashion-mnist": {"train": 60_000, "test": 10_000},
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "svhn": {"train": 73_257, "test": 26_032},
    "omniglot": {"background": 19_280, "evaluation": 13_180},
    "tiny-imagenet": {"test": 10_000},
}


def got(name, root, split, **options):
    return load(name, split, data_dir=root, download=False, **options)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx(name, tmp_path):
    WRITERS[name](tmp_path)
    train, test = got(name, tmp_path, "train"), got(name, tmp_path, "test")
    assert np.array_equal(train.pixels[:, 0], IMAGES[:4])
    assert np.array_equal(test.pixels[:, 0], IMAGES[4:])
    assert train.labels.tolist() == LABELS[:4].tolist()
    assert test.labels.tolist() == LABELS[4:].tolist()
    assert len(train.classes) == 10
    assert (train.name, train.split) == (name, "train")


def test_idx_may_be_unpacked(tmp_path):
    place = official.mnist(tmp_path)
    for path in list(place.iterdir()):
        path.unlink()
    for kind, part in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
        (place / f"train-{kind}-ubyte").write_bytes(official.idx(part, packed=False))
    assert np.array_equal(got("mnist", tmp_path, "train").pixels[:, 0], IMAGES)


def test_cifar10(tmp_path):
    official.cifar10(tmp_path)
    train, test = got("cifar10", tmp_path, "train"), got("CIFAR_10", tmp_path, "test")
    order = [0, 1, 4, 2, 3, 4]
    assert np.array_equal(train.pixels, COLOURS[order])
    assert train.labels.tolist() == LABELS[order].tolist()
    assert np.array_equal(test.pixels, COLOURS[5:])
    assert test.classes[4] == "deer"


def test_cifar100_has_the_fine_labels(tmp_path):
    official.cifar100(tmp_path)
    images = got("cifar100", tmp_path, "test")
    assert np.array_equal(images.pixels, COLOURS[4:])
    assert [images.classes[i] for i in images.labels] == ["class91", "class94"]


def test_svhn_calls_ten_zero(tmp_path):
    official.svhn(tmp_path)
    images = got("svhn", tmp_path, "train")
    assert np.array_equal(images.pixels, COLOURS[:4])
    assert images.labels.tolist() == LABELS[:4].tolist()
    assert 0 in images.labels


def test_omniglot(tmp_path):
    official.omniglot(tmp_path)
    images = got("omniglot", tmp_path, "background")
    assert images.classes == ("Greek/character01", "Greek/character02", "Latin/character01", "Latin/character02")
    assert images.labels.tolist() == [label for label in range(4) for _ in range(3)]
    assert images.pixels.shape == (12, 1, 105, 105)
    stroke = torch.zeros(105, 105, dtype=torch.uint8)
    stroke[11, 20:40] = 255
    assert torch.equal(images.pixels[1, 0], stroke)
    assert torch.equal(got("omniglot", tmp_path, "background", inverted=False).pixels[1, 0], 255 - stroke)
    assert len(got("omniglot", tmp_path, "evaluation")) == 6
    assert torch.equal(got("omniglot", tmp_path, "train").pixels, images.pixels)


def test_tiny_imagenet(tmp_path):
    official.tiny_imagenet(tmp_path)
    train, test = got("tiny-imagenet", tmp_path, "train"), got("tiny-imagenet", tmp_path, "test")
    assert train.classes == test.classes == ("n01", "n02", "n03")
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert test.labels.tolist() == [2, 0, 1, 2]
    # every class has a level of grey of its own, so that a label on the wrong picture shows
    levels = {0: 40, 1: 0, 2: 80}
    for images in (train, test):
        means = images.pixels.float().mean((1, 2, 3))
        assert all(abs(mean - levels[label]) < 2 for mean, label in zip(means, images.labels.tolist(), strict=True))
    assert torch.equal(got("tiny-imagenet", tmp_path, "val").pixels, test.pixels)


def test_retina(tmp_path):
    official.retina(tmp_path)
    train, test = got("retina", tmp_path, "train"), got("retina", tmp_path, "test")
    assert train.pixels.shape[1:] == (3, 64, 64)
    assert len(train) + len(test) == 80
    for images in (train, test):
        numbers = [int(file.split("_")[0]) for file in images.files]
        assert images.labels.tolist() == [number % 5 for number in numbers]
        means = images.pixels.float().mean((1, 2, 3))
        assert all(abs(mean - 3 * number) < 2 for mean, number in zip(means, numbers, strict=True))
        assert all(numbers.count(number) == 2 for number in numbers)
    assert not {file.split("_")[0] for file in train.files} & {file.split("_")[0] for file in test.files}
    assert 0.1 < sum(in_test(str(number)) for number in range(10_000)) / 10_000 < 0.3


def test_the_split_of_the_retina_set_never_changes():
    assert [number for number in range(30) if in_test(str(number))] == [0, 4, 9, 15, 20, 22, 26]


def test_digits_are_all_of_scikit_learn():
    from sklearn.datasets import load_digits

    train, test = load("digits", "train"), load("digits", "test")
    bunch = load_digits()
    assert len(train) + len(test) == len(bunch.target)
    assert test.labels.tolist() == bunch.target[::3].tolist()
    assert np.abs(test.pixels[:, 0].numpy() / 255 * 16 - bunch.images[::3]).max() < 0.04


@pytest.mark.parametrize("name", WRITERS)
def test_count_is_the_number_of_pictures(name, tmp_path):
    WRITERS[name](tmp_path)
    one = data_set(name)
    for split, files in one.files.items():
        paths = [find(tmp_path, one.folders, file) for file in files]
        assert one.count(paths, split) == len(got(name, tmp_path, split)) > 0


def first_file(name, root, end=""):
    return next(path for path in sorted(WRITERS[name](root).rglob("*")) if path.is_file() and path.name.endswith(end))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])


DAMAGED = {
    "idx cut short": ("mnist", "train-images-idx3-ubyte.gz", cut),
    "idx of another kind": ("mnist", "train-labels-idx1-ubyte.gz", lambda path: path.write_bytes(official.idx(IMAGES))),
    "idx with few labels": (
        "mnist",
        "train-labels-idx1-ubyte.gz",
        lambda path: path.write_bytes(official.idx(LABELS[:2])),
    ),
    "idx with a wrong label": (
        "mnist",
        "train-labels-idx1-ubyte.gz",
        lambda path: path.write_bytes(official.idx(LABELS[:4] + 9)),
    ),
    "idx empty": ("fashion-mnist", "train-images-idx3-ubyte.gz", lambda path: path.write_bytes(b"")),
    "cifar10 cut short": ("cifar10", "data_batch_1.bin", cut),
    "cifar10 with a wrong label": ("cifar10", "data_batch_1.bin", lambda path: path.write_bytes(b"\x20" + bytes(3072))),
    "cifar100 names": ("cifar100", "fine_label_names.txt", cut),
    "svhn cut short": ("svhn", "train_32x32.mat", cut),
    "svhn empty": ("svhn", "train_32x32.mat", lambda path: path.write_bytes(b"")),
    "tiny-imagenet without names": ("tiny-imagenet", "wnids.txt", lambda path: path.write_text("")),
    "tiny-imagenet with a name too many": ("tiny-imagenet", "wnids.txt", lambda path: path.write_text("n01\nn09\n")),
    "retina with another table": ("retina", "trainLabels.csv", lambda path: path.write_text("a,b\n1,2\n")),
    "retina with a wrong level": ("retina", "trainLabels.csv", lambda path: path.write_text("image,level\n1_left,7\n")),
    "retina with a row too few": ("retina", "trainLabels.csv", lambda path: path.write_text("image,level\n1_left,0\n")),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_in_one_line(case, tmp_path):
    name, end, damage = DAMAGED[case]
    path = first_file(name, tmp_path, end)
    damage(path)
    with pytest.raises(InputError) as caught:
        got(name, tmp_path, "train")
    line = str(caught.value)
    assert line.startswith(f"load: {name} needs {tmp_path}")
    assert "\n" not in line
    assert line.endswith("It is cut short or damaged, or another file of that name; delete it and get it again.")


def test_a_line_of_annotations_cut_short(tmp_path):
    path = first_file("tiny-imagenet", tmp_path, "val_annotations.txt")
    path.write_text("val_0.JPEG\tn03\nval_1.JPEG\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"separated by tabs; got 'val_1.JPEG' in line 2\. "):
        got("tiny-imagenet", tmp_path, "val")


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_file_is_named_with_its_address(name, tmp_path):
    one = data_set(name)
    with pytest.raises(InputError) as caught:
        got(name, tmp_path, "train")
    file = one.files["train"][0]
    address = file.url if file.url and file.url.endswith(file.name) else file.page
    why = "has no address to fetch it from" if file.url is None else "downloads are switched off"
    assert str(caught.value) == (
        f"load: {name} needs {file.name} in {tmp_path / one.folders[0]}; it is not there and {why}. Get it from "
        f"{address}, or name another folder with data_dir or ARHT_DATA."
    )


def test_wrong_calls(tmp_path):
    with pytest.raises(InputError, match=r"^load: data must be one of mnist, .*; got 'mnits', near mnist"):
        load("mnits")
    with pytest.raises(InputError, match=r"^load: mnist has the splits train, test; got 'val'\.$"):
        load("mnist", "val", data_dir=tmp_path)
    with pytest.raises(InputError, match=r"^load: omniglot takes inverted; got 'upside_down'\.$"):
        load("omniglot", data_dir=tmp_path, upside_down=True)


def test_limit_size_and_channels(tmp_path):
    official.mnist(tmp_path)
    images = got("mnist", tmp_path, "train", limit=2, size=14, channels=3)
    assert images.pixels.shape == (2, 3, 14, 14)
    assert images.labels.tolist() == LABELS[[0, 2]].tolist()
    with pytest.raises(InputError, match=r"^load: limit must be a positive number of pictures; got 0\.$"):
        got("mnist", tmp_path, "train", limit=0)


@pytest.mark.skipif(REAL is None, reason="ARHT_DATA is not set")
@pytest.mark.parametrize("name", NAMES)
def test_the_real_files(name):
    one = data_set(name)
    seen = 0
    for split, files in one.files.items():
        paths = [find(Path(REAL), one.folders, file) for file in files]
        if None in paths:
            continue
        seen += 1
        if split in SIZES.get(name, {}):
            assert one.count(paths, split) == SIZES[name][split]
        images = load(name, split, limit=300, download=False)
        assert len(images) == 300
        assert 3 < images.pixels.float().std() < 128
        assert len(images.labels.unique()) >= min(5, len(images.classes))
    if not seen:
        pytest.skip("not among the real files")


def test_every_set_has_a_writer_here():
    assert set(NAMES) == {*WRITERS, "digits"}
