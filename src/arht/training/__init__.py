"""Training: one loop, the objectives, settings, history, checkpoints. Lightning Fabric is imported by ``fit`` only."""

from arht.training.history import Epoch, History
from arht.training.loop import fit
from arht.training.objectives import Classification, Contrastive, Objective, Regression
from arht.training.settings import Settings

__all__ = ["Classification", "Contrastive", "Epoch", "History", "Objective", "Regression", "Settings", "fit"]
