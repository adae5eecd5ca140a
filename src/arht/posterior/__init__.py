"""What makes a net's embedding random: one engine a file, one contract for all."""

from __future__ import annotations

from arht.posterior.bank import Bank
from arht.posterior.base import Posterior
from arht.posterior.deterministic import Deterministic
from arht.posterior.files import ENGINES, build, load, save
from arht.posterior.mean_field import MeanField
from arht.posterior.taps import POOLINGS, Tap

__all__ = ["ENGINES", "POOLINGS", "Bank", "Deterministic", "MeanField", "Posterior", "Tap", "build", "load", "save"]
