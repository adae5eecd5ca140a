"""Folders of pictures, arrays in files, and the set of pictures itself."""

import numpy as np
import pytest
import torch
from PIL import Image

from arht.data import Images, load
from arht.errors import ArhtWarning, InputError

RNG = np.random.default_rng(2)


@pytest.fixture
def folder(tmp_path):
    """Two classes, four pictures of three sizes and formats."""
    for name, level, side, end in (
        ("cat", 10, 20, "png"),
        ("cat", 60, 33, "jpg"),
        ("dog", 110, 20, "bmp"),
        ("dog", 200, 8, "PNG"),
    ):
        place = tmp_path / "own" / name
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(place / f"{level}.{end}")
    (tmp_path / "own" / "cat" / "notes.txt").write_text("no picture", encoding="utf-8")
    (tmp_path / "own" / "cat" / ".hidden.png").write_bytes(b"")
    return tmp_path / "own"


def test_a_folder_with_classes(folder):
    images = load(folder, size=16)
    assert images.classes == ("cat", "dog")
    assert images.files == ("cat/10.png", "cat/60.jpg", "dog/110.bmp", "dog/200.PNG")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.pixels.shape == (4, 3, 16, 16)
    assert (images.pixels.float().mean((1, 2, 3)) - torch.tensor([10.0, 60, 110, 200])).abs().max() < 2
    assert load(folder, size=(8, 12), channels=1).pixels.shape == (4, 1, 8, 12)


def test_a_folder_with_splits(folder):
    (folder / "train").mkdir()
    (folder / "cat").rename(folder / "train" / "cat")
    (folder / "dog").rename(folder / "train" / "dog")
    assert len(load(folder, "train", size=8)) == 4
    with pytest.raises(InputError, match=r"^load: .*own must have a sub-folder test; it has train\. "):
        load(folder, "test", size=8)


def test_a_folder_without_classes(folder):
    images = load(folder / "cat", size=8)
    assert images.labels is None
    assert len(images) == 2


def test_a_folder_of_several_sizes_needs_one(folder):
    with pytest.raises(InputError, match=r"pictures of one size.*cat/10.png with 20 x 20 and cat/60.jpg with 33 x 33"):
        load(folder)


def test_a_folder_without_pictures(tmp_path):
    with pytest.raises(
        InputError, match=r"^load: .* must hold pictures \(png, jpg, ...\), one sub-folder a class; got none"
    ):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["text", "cut", "empty"])
def test_an_unreadable_picture_is_named_and_refused(folder, damage):
    path = folder / "dog" / "200.PNG"
    noise = RNG.integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    path.write_bytes({"text": b"not a picture", "cut": whole[:200], "empty": b""}[damage])
    with pytest.raises(InputError) as caught:
        load(folder, size=8)
    line = str(caught.value)
    assert line.startswith(f"load: own: 1 of 4 pictures cannot be read: {path} (")
    assert line.endswith("). Repair or remove them, or leave them out with unreadable='skip'.")
    assert "\n" not in line


def test_unreadable_pictures_are_counted_and_skipped_as_asked(folder):
    for name in ("cat/60.jpg", "dog/110.bmp"):
        (folder / name).write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"own: 2 of 4 pictures cannot be read: .*cat/60.jpg \(.*\), and 1 more\. "):
        load(folder, size=8)
    with pytest.warns(ArhtWarning, match=r"^load: own: skipped 2 of 4 pictures that cannot be read; the first is .*60"):
        images = load(folder, size=8, unreadable="skip")
    assert images.files == ("cat/10.png", "dog/200.PNG")
    assert images.skipped == ("cat/60.jpg", "dog/110.bmp")
    assert images.labels.tolist() == [0, 1]
    assert (images.pixels.float().mean((1, 2, 3)) - torch.tensor([10.0, 200])).abs().max() < 1


def test_nothing_readable_is_refused_even_when_skipping(folder):
    for path in folder.rglob("*.*"):
        path.write_bytes(b"not a picture")
    with pytest.raises(InputError, match="4 of 4 pictures cannot be read"):
        load(folder, size=8, unreadable="skip")
    with pytest.raises(InputError, match=r"^load: unreadable must be 'refuse' or 'skip'; got 'ignore'\.$"):
        load(folder, size=8, unreadable="ignore")


@pytest.mark.parametrize("shape", [(5, 9, 9), (5, 1, 9, 9), (5, 3, 9, 9), (5, 9, 9, 3), (5, 9, 9, 1)])
def test_arrays_of_every_layout(tmp_path, shape):
    x = RNG.integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(5))
    images = load(tmp_path / "own.npz")
    channels = 3 if 3 in shape else 1
    assert images.pixels.shape == (5, channels, 9, 9)
    expected = x if shape[1] in (1, 3) else x[:, None] if len(shape) == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(images.pixels, expected)
    assert images.classes == tuple("01234")


def test_arrays_with_splits_share_their_classes(tmp_path):
    x = RNG.integers(0, 256, (4, 9, 9), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=[0, 1, 2, 7], x_test=x[:2], y_test=[1, 0])
    assert load(tmp_path / "own.npz", "test").classes == load(tmp_path / "own.npz").classes == tuple("01234567")
    np.savez(tmp_path / "bare.npz", x_train=x)
    assert load(tmp_path / "bare.npz").labels is None


WRONG = {
    "no x": ({"a": np.zeros(3)}, "must hold x_train (and y_train) or x; it holds a. Name the arrays so."),
    "floats": (
        {"x": np.zeros((2, 4, 4))},
        "must be uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]; got float64 [2, 4, 4].",
    ),
    "two axes": ({"x": np.zeros((2, 4), np.uint8)}, "got uint8 [2, 4]. Scale the values to 0..255."),
    "labels too few": (
        {"x": np.zeros((2, 4, 4), np.uint8), "y": [1]},
        "y must be 2 whole numbers from 0; got int64 [1].",
    ),
    "labels below 0": ({"x": np.zeros((2, 4, 4), np.uint8), "y": [1, -1]}, "y must be 2 whole numbers from 0;"),
    "labels as words": (
        {"x": np.zeros((1, 4, 4), np.uint8), "y": ["a"]},
        "y must be 1 whole numbers from 0; got <U1 [1].",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays(tmp_path, case):
    arrays, said = WRONG[case]
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "own.npz")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_that_are_not_there_or_damaged(tmp_path):
    with pytest.raises(InputError, match=r"own.npz; it does not exist\. Check the path\.$"):
        load(tmp_path / "own.npz")
    for write in (
        lambda path: path.write_bytes(b"nothing"),
        lambda path: np.savez(path, x=np.array([{}], dtype=object)),
    ):
        write(tmp_path / "own.npz")
        with pytest.raises(
            InputError, match=r"must be an npz file of arrays; got: it is no archive, or holds pickled obj"
        ):
            load(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=np.zeros((1, 4, 4), np.uint8))
    with pytest.raises(InputError, match="takes no options of its own; got 'inverted'"):
        load(tmp_path / "own.npz", inverted=False)


PIXELS = torch.from_numpy(RNG.integers(0, 256, (6, 3, 5, 5), dtype=np.uint8))
SIX = Images(PIXELS, torch.tensor([0, 1, 2, 0, 1, 2]), ("a", "b", "c"), "six", "train", files=tuple("uvwxyz"))


def test_parts_of_a_set():
    assert torch.equal(SIX[1:3].pixels, PIXELS[1:3])
    assert SIX[[5, 0]].files == ("z", "u")
    assert SIX[torch.tensor([True, False] * 3)].labels.tolist() == [0, 2, 1]
    assert SIX[-1].files == ("z",)
    assert SIX.of_class(2).files == ("w", "z")
    first = SIX.sample(4, generator=torch.Generator().manual_seed(0))
    again = SIX.sample(4, generator=torch.Generator().manual_seed(0))
    assert first.files == again.files
    assert len(set(first.files)) == 4
    with pytest.raises(InputError, match=r"^Images\.sample: needs 0 <= count <= N = 6; got 7\."):
        SIX.sample(7)
    with pytest.raises(IndexError, match="picture 6 of 6"):
        SIX[6]


def test_a_set_that_does_not_fit_together():
    with pytest.raises(InputError, match=r"^Images: pixels must be uint8 \[N, C, H, W\].*got torch.float32"):
        Images(PIXELS.float(), None, (), "x", "train")
    with pytest.raises(InputError, match=r"labels must be 0\.\.1, one for each of the 2 classes; got 0\.\.2"):
        Images(PIXELS, SIX.labels, ("a", "b"), "x", "train")
    with pytest.raises(InputError, match=r"labels must be int64 \[N\] with N = 6; got torch.int64 \[2\]"):
        Images(PIXELS, SIX.labels[:2], SIX.classes, "x", "train")
