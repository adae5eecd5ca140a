"""``arht score``: scores, p-values and decisions for files of queries, as a stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from arht.commands._common import check_least, to_json

__all__ = ["Score"]


@dataclass(frozen=True)
class Score:
    """Score queries with a detector or a guard, and decide at a false-discovery rate over all of them.

    QUERY are files of embeddings as in arht fit, or - for standard input; for a guard, data sets, folders of images or
    files. Memory does not grow with the number of rows. A run that was cut off goes on where it stopped when the same
    command is given again: what it has done is in the folder FILE.part until the end.
    """

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """File of a detector or a guard."""
    query: Annotated[Positional[tuple[str, ...]], arg(metavar="QUERY...")]
    """Files of queries."""
    out: Annotated[str, arg(metavar="FILE")]
    """The file to write: .parquet, .csv or .jsonl; - writes csv to standard output."""
    fdr: Annotated[float, arg(metavar="NUMBER")] = 0.05
    """The false-discovery rate."""
    method: Annotated[str, arg(metavar="bh|by")] = "bh"
    """bh, or by where the dependence of the p-values is unknown."""
    id: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """A column of the query files that names each row; it is copied, and no part of the embedding."""
    label: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """A column that says what is true: 0 in distribution, 1 out of it. It is copied for the report, never used."""
    heldout: Annotated[tuple[str, ...] | None, arg(metavar="FILE...", help_behavior_hint="")] = None
    """Further in-distribution inputs: an audit on them becomes part of the record."""
    split: Annotated[str, arg(metavar="SPLIT")] = "test"
    """For a guard: split of data sets."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """For a guard: where the data sets lie."""
    restart: bool = False
    """Begin anew, whatever an earlier run has left."""
    threads: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Threads of the computation."""
    quiet: bool = False
    """No progress on standard error."""
    json: bool = False
    """Print one JSON object: the run record."""

    def run(self) -> int:
        """Read, score, decide, write, print."""
        from arht.commands._fitted import threads
        from arht.commands._scoring import WHO, score, text

        check_least(WHO, self, threads=1)
        with threads(self.threads):
            record = score(self)
        if self.out != "-":
            sys.stdout.write(to_json(record) if self.json else text(record))
        return 0
