"""From a scores file's run record to figures and one HTML page; no statistic is computed here."""

from __future__ import annotations

from arht.report.facts import collect
from arht.report.page import render, write
from arht.report.pictures import thumbnails
from arht.report.results import scores_of

__all__ = ["collect", "render", "scores_of", "thumbnails", "write"]
