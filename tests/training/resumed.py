"""A training run in a process of its own: ``python -m tests.training.resumed FOLDER WEIGHTS [EPOCH STEP]``.

With an epoch and a step it says "ready" there, in the middle of the epoch, and waits to be killed.
"""

import sys
import time
from pathlib import Path

import torch

from arht.data import Augment
from arht.training import Settings
from tests.training.digits import TEST, encoder, train, weights


class Waiting(Augment):
    """Augmentation that stops for good at its given call."""

    calls = 0
    last = None

    def __call__(self, inputs, *, generator):
        Waiting.calls += 1
        if Waiting.calls == Waiting.last:
            print("ready", flush=True)
            time.sleep(600)
        return super().__call__(inputs, generator=generator)


def main(folder, out, *place):
    torch.set_num_threads(1)
    settings = Settings(epochs=4, learning_rate=3e-3, batch_size=100, warmup_epochs=2, schedule="cosine", patience=3)
    if place:  # one call looks at the first rows, then one a step
        epoch, step = map(int, place)
        Waiting.last = 1 + (epoch - 1) * 12 + step
    model = encoder()
    history = train(
        model,
        settings=settings,
        folder=folder,
        validation=TEST,
        augment=Waiting(shift=1, flip=0.0),
        checkpoint_steps=3,
    )
    assert len(history.epochs) == 4
    torch.save(weights(model), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
