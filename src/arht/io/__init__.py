"""File formats: what is on disk becomes an array. The statistics know no file."""

from __future__ import annotations

from arht.io.tables import SUFFIXES, read_table

__all__ = ["SUFFIXES", "read_table"]
