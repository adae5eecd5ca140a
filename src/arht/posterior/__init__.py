"""What makes a net's embedding random: one engine a file, one contract for all."""

from __future__ import annotations

from arht.posterior.bank import Bank
from arht.posterior.base import Posterior
from arht.posterior.deterministic import Deterministic
from arht.posterior.ensemble import Ensemble
from arht.posterior.files import ENGINES, build, load, save
from arht.posterior.from_callable import FromCallable
from arht.posterior.mc_dropout import MCDropout
from arht.posterior.mean_field import MeanField
from arht.posterior.taps import POOLINGS, Tap

__all__ = [
    "ENGINES",
    "POOLINGS",
    "Bank",
    "Deterministic",
    "Ensemble",
    "FromCallable",
    "MCDropout",
    "MeanField",
    "Posterior",
    "Tap",
    "build",
    "load",
    "save",
]
