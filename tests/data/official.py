"""Small data sets in their official formats, written byte by byte as their pages describe them."""

import gzip

import numpy as np
from PIL import Image
from scipy.io import savemat

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
COLOURS = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 1, 4], dtype=np.uint8)


def idx(array, packed=True):
    """An array of bytes in idx format: two zeros, type 8, number of axes, each length as four bytes, the bytes."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return gzip.compress(head + array.tobytes()) if packed else head + array.tobytes()


def mnist(root, folder="mnist"):
    place = root / folder
    place.mkdir()
    for part, rows in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        (place / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(IMAGES[rows]))
        (place / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(LABELS[rows]))
    return place


def fashion_mnist(root):
    return mnist(root, "fashion-mnist")


def cifar10(root):
    """A record: one label byte, 1,024 red, 1,024 green, 1,024 blue. Two records in the first batch, one in the rest."""
    place = root / "cifar-10-batches-bin"
    place.mkdir()
    records = [bytes([LABELS[i]]) + COLOURS[i].tobytes() for i in range(6)]
    for i in range(1, 6):
        part = records[0] + records[1] if i == 1 else records[2 + i % 3]
        (place / f"data_batch_{i}.bin").write_bytes(part)
    (place / "test_batch.bin").write_bytes(records[5])
    return place


def cifar100(root):
    """A record: coarse label, fine label, pixels."""
    place = root / "cifar-100-binary"
    place.mkdir()
    for name, rows in (("train.bin", range(4)), ("test.bin", range(4, 6))):
        (place / name).write_bytes(b"".join(bytes([7, 90 + LABELS[i]]) + COLOURS[i].tobytes() for i in rows))
    (place / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)) + "\n\n", encoding="utf-8")
    return place


def svhn(root):
    """X is [32, 32, 3, N], y [N, 1] from 1 to 10, the digit 0 being 10."""
    place = root / "svhn"
    place.mkdir()
    y = np.where(LABELS == 0, 10, LABELS).astype(np.uint8)[:, None]
    x = COLOURS.transpose(2, 3, 1, 0)
    savemat(place / "train_32x32.mat", {"X": x[..., :4], "y": y[:4]})
    savemat(place / "test_32x32.mat", {"X": x[..., 4:], "y": y[4:]})
    return place


def omniglot(root):
    """One-bit pictures, dark strokes on white, in alphabet/character/."""
    place = root / "omniglot"
    for part, alphabets in (("images_background", ("Latin", "Greek")), ("images_evaluation", ("Futurama",))):
        for alphabet in alphabets:
            for character in ("character01", "character02"):
                folder = place / part / alphabet / character
                folder.mkdir(parents=True)
                for person in range(3):
                    pixels = np.full((105, 105), 255, np.uint8)
                    pixels[10 + person, 20:40] = 0
                    Image.fromarray(pixels).convert("1").save(folder / f"0001_{person:02d}.png")
    return place


def tiny_imagenet(root):
    place = root / "tiny-imagenet-200"
    names = ["n02", "n01", "n03"]
    for name in names:
        (place / "train" / name / "images").mkdir(parents=True)
        for i in range(2):
            photo(place / "train" / name / "images" / f"{name}_{i}.JPEG", 64, 40 * names.index(name))
        (place / "train" / name / f"{name}_boxes.txt").write_text("", encoding="utf-8")
    (place / "val" / "images").mkdir(parents=True)
    rows = []
    for i, name in enumerate(["n03", "n01", "n02", "n03"]):
        photo(place / "val" / "images" / f"val_{i}.JPEG", 64, 40 * names.index(name))
        rows.append(f"val_{i}.JPEG\t{name}\t0\t1\t62\t63\n")
    (place / "val" / "val_annotations.txt").write_text("".join(rows), encoding="utf-8")
    (place / "wnids.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    return place


def retina(root, patients=range(1, 41)):
    """Photographs of many sizes; the table has rows for patients whose pictures are not here."""
    place = root / "drd"
    (place / "train").mkdir(parents=True)
    rows = ["image,level"]
    for patient in patients:
        for eye in ("left", "right"):
            photo(place / "train" / f"{patient}_{eye}.jpeg", 90 + patient, 3 * patient)
            rows.append(f"{patient}_{eye},{patient % 5}")
    (place / "trainLabels.csv").write_text("\n".join([*rows, "9999_left,2"]) + "\n", encoding="utf-8")
    return place


def photo(path, side, level):
    Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(path, quality=95)


WRITERS = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "omniglot": omniglot,
    "tiny-imagenet": tiny_imagenet,
    "retina": retina,
}
