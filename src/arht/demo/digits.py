"""What the second part is about: digits that are known, digits that are not, photographs, and a small encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch

from arht._shapes import Tensor

if TYPE_CHECKING:
    from arht.data import Images
    from arht.posterior import MeanField

__all__ = ["NAMES", "UNSEEN", "Data", "data", "patches", "train"]

UNSEEN = (8, 9)
SIDE = 16
"""Side of the pictures that the net takes."""
PARTS = (500, 500, 150)
"""Known images that train the encoder, that calibrate, and that audit; the rest are queries."""
EPOCHS = 30
PATCH = 64
"""Side of a patch of a photograph before it is made smaller."""
STEP = 48
NAMES = ("known digits", "unseen digits", "photographs")


@dataclass(frozen=True, slots=True)
class Data:
    """Known digits in four parts, and what is no known digit."""

    train: Images
    calibration: Images
    audit: Images
    queries: Images
    """Known digits, unseen digits and photographs, in this order; the label is the place in `NAMES`."""
    digits: Tensor
    """The digit of each query, -1 for a photograph."""

    @property
    def kinds(self) -> Tensor:
        """The place of each query in `NAMES`."""
        return cast(Tensor, self.queries.labels)


def data(seed: int = 0) -> Data:
    """Digits 0 to 7 in four parts, digits 8 and 9, and patches of photographs."""
    from arht.data import load

    parts = [load("digits", split, size=SIDE) for split in ("train", "test")]
    pixels, labels = torch.cat([p.pixels for p in parts]), torch.cat([cast(Tensor, p.labels) for p in parts])
    digits = replace(parts[0], pixels=pixels, labels=labels)
    known, unseen = digits.of_class(*range(8)), digits.of_class(*UNSEEN)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    cuts = order.split([*PARTS, len(known) - sum(PARTS)])
    fit, calibration, audit, held = (replace(known[cut], classes=known.classes[:8]) for cut in cuts)
    kinds = (held.pixels, unseen.pixels, patches().pixels)
    queries = replace(
        digits,
        pixels=torch.cat(kinds),
        labels=torch.arange(3).repeat_interleave(torch.tensor([len(kind) for kind in kinds])),
        classes=NAMES,
        name="queries",
    )
    digit = [cast(Tensor, held.labels), cast(Tensor, unseen.labels), torch.full((len(kinds[2]),), -1)]
    return Data(fit, calibration, audit, queries, torch.cat(digit))


def patches() -> Images:
    """Grey patches of scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_images

    from arht.data import Images

    cut = []
    for photograph in load_sample_images().images:
        whole = torch.tensor(photograph).permute(2, 0, 1)
        for top in range(0, whole.shape[1] - PATCH + 1, STEP):
            cut += [whole[:, top : top + PATCH, at : at + PATCH] for at in range(0, whole.shape[2] - PATCH + 1, STEP)]
    return Images(torch.stack(cut), None, (), "photographs", "test").reshaped(SIDE, 1)


def train(images: Images, seed: int = 0, *, epochs: int = EPOCHS, progress: bool = True) -> MeanField:
    """A small mean-field LeNet."""
    from arht import nets, posterior, training
    from arht.data import Transform

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nets.LeNet(in_channels=1, num_classes=8, image_size=SIDE, activation="relu")
    encoder = posterior.MeanField(net, generator=generator)
    encoder.transform = Transform.of(images, size=SIDE)
    settings = training.Settings(epochs=epochs, learning_rate=3e-3, batch_size=32, kl_weight=0.1, schedule="cosine")
    training.fit(
        encoder, images, settings=settings, transform=encoder.transform, generator=generator, progress=progress
    )
    return encoder
