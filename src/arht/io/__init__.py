"""File formats: what is on disk becomes an array. The statistics know no file."""

from __future__ import annotations

from arht.io.scores import Scores, read_scores
from arht.io.streams import STREAMS, iter_tables, open_table
from arht.io.tables import SUFFIXES, read_table

__all__ = ["STREAMS", "SUFFIXES", "Scores", "iter_tables", "open_table", "read_scores", "read_table"]
