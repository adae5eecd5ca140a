"""Small real images and small encoders, for the tests of training."""

import torch
from torch import nn

from arht.data import Transform, load
from arht.posterior import MeanField
from arht.training import Settings, fit

TRAIN, TEST = load("digits", "train"), load("digits", "test")
TRANSFORM = Transform.of(TRAIN)


def net(hidden=32, outputs=10, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def encoder(seed=0, **options):
    return MeanField(net(seed=seed, **options), generator=seeded(seed))


def train(model, data=TRAIN, *, seed=0, settings=None, **options):
    """`fit` on the digits, silently."""
    settings = settings or Settings(epochs=2, learning_rate=3e-3, batch_size=50)
    options = {"transform": TRANSFORM, "generator": seeded(seed), **options}
    return fit(model, data, settings=settings, progress=False, **options)


def weights(model):
    """All tensors of a module, as one vector."""
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in model.state_dict().values()])


def log_likelihood(model, images, draws=50):
    """Mean log predictive probability of the right class."""
    probabilities = model.predict(TRANSFORM(images), draws, generator=seeded(99))
    return float(probabilities[torch.arange(len(images)), images.labels].clamp_min(1e-12).log().mean())
