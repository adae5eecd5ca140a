"""Transforms and augmentation against loops that do the same one pixel at a time."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from arht.data import Augment, Images, Transform
from arht.data.images import convert_channels, resize
from arht.errors import InputError

RNG = np.random.default_rng(3)
PIXELS = torch.from_numpy(RNG.integers(0, 256, (40, 3, 12, 12), dtype=np.uint8))
GREY = PIXELS[:, :1].contiguous()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_transform_is_pixels_less_mean_over_scale():
    transform = Transform(12, 3, mean=(0.1, 0.2, 0.3), scale=(1.0, 2.0, 0.5))
    out = transform(PIXELS)
    for b, c, i, j in ((0, 0, 0, 0), (7, 1, 3, 11), (39, 2, 11, 5)):
        expected = (int(PIXELS[b, c, i, j]) / 255 - (0.1, 0.2, 0.3)[c]) / (1.0, 2.0, 0.5)[c]
        assert float(out[b, c, i, j]) == pytest.approx(expected, abs=1e-6)
    assert Transform(**json.loads(json.dumps(transform.config()))) == transform
    assert torch.equal(transform(PIXELS[3:5]), out[3:5])


def test_plain_transform_is_between_0_and_1():
    out = Transform(12, 1)(GREY)
    assert torch.equal(out, GREY / 255)


def test_transform_of_gives_mean_0_and_deviation_1():
    images = Images(PIXELS, None, (), "x", "train")
    out = Transform.of(images)(PIXELS).double()
    assert out.mean((0, 2, 3)).abs().max() < 1e-5
    assert (out.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    resized = Transform.of(images, size=8, channels=1)
    assert resized(PIXELS).shape == (40, 1, 8, 8)
    assert abs(float(resized(PIXELS).double().mean())) < 1e-5
    constant = Images(torch.full((2, 1, 4, 4), 51, dtype=torch.uint8), None, (), "x", "train")
    assert torch.equal(Transform.of(constant)(constant), torch.zeros(2, 1, 4, 4))


def test_grey_is_pillows_grey_and_colour_from_grey_repeats():
    grey = convert_channels(PIXELS, 1)
    for picture, expected in zip(grey[:5], PIXELS[:5], strict=True):
        theirs = np.asarray(Image.fromarray(expected.permute(1, 2, 0).numpy()).convert("L"))
        assert np.array_equal(picture[0], theirs)
    assert torch.equal(convert_channels(GREY, 3), torch.cat([GREY] * 3, 1))


@pytest.mark.parametrize("size", [(5, 7), (32, 32), (12, 6)])
def test_resize_is_pillows_up_to_one_level(size):
    ours = resize(PIXELS[:4], size)
    for picture, given in zip(ours, PIXELS[:4], strict=True):
        theirs = Image.fromarray(given.permute(1, 2, 0).numpy()).resize(size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(theirs).transpose(2, 0, 1).astype(int) - picture.numpy()).max() <= 1


def test_wrong_transforms():
    for wrong, said in (
        (lambda: Transform(0, 1), "size must be a positive integer"),
        (lambda: Transform(8, 2), r"channels must be 1 \(grey\) or 3 \(colour\); got 2"),
        (lambda: Transform(8, 3, mean=(0.0, 1.0)), "mean must be one finite number, or one for each of the 3 channels"),
        (lambda: Transform(8, 1, scale=(0.0,)), r"scale must be positive; got \(0.0,\)"),
        (lambda: Transform(8, 1)(PIXELS.float()), "values already scaled are not scaled again"),
    ):
        with pytest.raises(InputError, match=said):
            wrong()


def test_augment_is_the_generators():
    for augment in (Augment.digits(), Augment.photos()):
        once, again = (augment(PIXELS, generator=seeded(4)) for _ in range(2))
        assert torch.equal(once, again)
        assert not torch.equal(once, augment(PIXELS, generator=seeded(5)))
        assert once.shape == PIXELS.shape
        assert once.dtype == torch.uint8


def test_no_augmentation_changes_nothing():
    assert torch.equal(Augment(shift=0, flip=0)(PIXELS, generator=seeded()), PIXELS)


def moved(picture, down, right):
    """Each pixel from (i + down, j + right), the nearest edge pixel where that is outside."""
    out = torch.empty_like(picture)
    height, width = picture.shape[1:]
    for i in range(height):
        for j in range(width):
            source_i, source_j = min(max(i + down, 0), height - 1), min(max(j + right, 0), width - 1)
            out[:, i, j] = picture[:, source_i, source_j]
    return out


def test_shift_is_one_of_the_naive_moves_and_all_of_them_occur():
    picture = PIXELS[:1]
    moves = {move: moved(picture[0], *move) for move in ((i, j) for i in range(-2, 3) for j in range(-2, 3))}
    # 25 equally likely moves: one of them is absent from 400 with probability 25 * 0.96^400 = 2e-6
    out = Augment(shift=2, flip=0)(picture.expand(400, -1, -1, -1), generator=seeded())
    seen = [[move for move, expected in moves.items() if torch.equal(one, expected)] for one in out]
    assert all(len(found) == 1 for found in seen)
    assert {found[0] for found in seen} == set(moves)


def test_flip_is_a_mirror_image_of_about_so_many():
    out = Augment(shift=0, flip=0.3)(PIXELS[:1].expand(2000, -1, -1, -1), generator=seeded())
    mirror = torch.stack([PIXELS[0, :, :, 11 - j] for j in range(12)], -1)
    flipped = [torch.equal(one, mirror) for one in out]
    assert all(is_flipped or torch.equal(one, PIXELS[0]) for one, is_flipped in zip(out, flipped, strict=True))
    # 0.3 ± 0.05 is 4.9 standard errors of 2,000: outside once in a million
    assert abs(np.mean(flipped) - 0.3) < 0.05
    assert torch.equal(Augment(shift=0, flip=1.0)(PIXELS, generator=seeded())[0], mirror)


def test_jitter_keeps_its_ranges():
    flat = torch.full((500, 3, 4, 4), 100, dtype=torch.uint8)
    bright = Augment(shift=0, flip=0, brightness=0.2)(flat, generator=seeded())
    assert (bright == bright[:, :1, :1, :1]).all()
    assert 79 <= int(bright.min()) < 82
    assert 118 < int(bright.max()) <= 121
    # contrast moves the values about their mean, and the mean stays
    steps = torch.tensor([50, 150], dtype=torch.uint8).repeat(500, 3, 4, 2)
    contrast = Augment(shift=0, flip=0, contrast=0.2)(steps, generator=seeded()).float()
    assert (contrast.mean((1, 2, 3)) - 100).abs().max() <= 0.5
    spread = contrast[:, 0, 0, 1] - contrast[:, 0, 0, 0]
    assert 79 <= spread.min() < 83
    assert 117 < spread.max() <= 121
    # saturation 1 reaches grey, and grey pictures have none
    colours = Augment(shift=0, flip=0, saturation=1.0)(PIXELS, generator=seeded())
    assert not torch.equal(colours, PIXELS)
    grey = PIXELS[:, :1].expand(-1, 3, -1, -1)
    assert torch.equal(Augment(shift=0, flip=0, saturation=1.0)(grey, generator=seeded()), grey)


def test_wrong_augmentations():
    with pytest.raises(InputError, match=r"^Augment: shift must be a whole number of pixels >= 0; got -1\.$"):
        Augment(shift=-1)
    with pytest.raises(InputError, match=r"^Augment: flip must be between 0 and 1; got 2\.$"):
        Augment(flip=2)
    with pytest.raises(InputError, match=r"^Augment: needs pictures uint8"):
        Augment()(PIXELS.float(), generator=seeded())
