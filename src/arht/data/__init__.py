"""Data sets in their official files, as pictures in memory; folders and arrays of one's own; transforms."""

from __future__ import annotations

from arht.data.augment import Augment
from arht.data.dataset import DataSet
from arht.data.images import Images
from arht.data.loading import NAMES, data_set, load
from arht.data.transforms import Transform

__all__ = ["NAMES", "Augment", "DataSet", "Images", "Transform", "data_set", "load"]
