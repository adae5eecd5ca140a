"""A training run in one or several processes: ``python -m tests.training.parallel COUNT OUT``.

Each process trains on its part of every batch, embeds its part of the test images, and leaves the moments of these;
the first one leaves the history and the weights.
"""

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric

from arht.stats import Moments
from arht.training import Settings
from tests.training.digits import TEST, TRANSFORM, encoder, seeded, train, weights


def main(count, out):
    torch.set_num_threads(1)
    strategy = "ddp" if count > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=count, strategy=strategy)
    fabric.launch()
    model = encoder()
    settings = Settings(epochs=3, learning_rate=3e-3, batch_size=100)
    history = train(model, settings=settings, validation=TEST, fabric=fabric, folder=out / "run")
    assert fabric.world_size == count

    part = TEST.pixels.tensor_split(count)[fabric.global_rank]
    draws = model.draw(TRANSFORM(part), 7, generator=seeded(4))
    moments = Moments.of(draws.flatten(0, 1).double())
    torch.save([moments.n, moments.mean, moments.scatter], out / f"moments{fabric.global_rank}.pt")
    torch.save(weights(model), out / f"weights{fabric.global_rank}.pt")
    if fabric.global_rank == 0:
        history.write(out / "history.jsonl")
    fabric.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
