"""A small mean-field LeNet trained on digits 0 to 7, and guards around it."""

import pytest
import torch

import arht
from arht.demo.digits import data, train


@pytest.fixture(scope="session")
def parts():
    return data(seed=1)


@pytest.fixture(scope="session")
def encoder(parts):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(parts.train, seed=1, epochs=25, progress=False)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def auto(encoder, parts):
    return arht.Guard(encoder).fit(parts.train, calibration=parts.calibration)


@pytest.fixture(scope="session")
def paper(encoder, parts):
    return arht.Guard(encoder, "paper", draws=5).fit(parts.train, calibration=parts.calibration)


@pytest.fixture(scope="session")
def own(encoder, parts):
    """A detector of one's own on two layers."""
    from arht.detectors import RHTDetector

    detector = RHTDetector(0.01, ridge_unit="mean_eigenvalue", reference="class")
    guard = arht.Guard(encoder, detector, layers=["embedding", "conv1:spread"], draws=3, combine="cauchy")
    return guard.fit(parts.train, calibration=parts.calibration)


@pytest.fixture(params=["auto", "paper", "own"])
def guard(request):
    return request.getfixturevalue(request.param)
