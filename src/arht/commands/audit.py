"""``arht audit``: may the false-discovery rate be claimed?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import plain, to_json

__all__ = ["Audit", "json_of"]

WHO = "arht audit"


@dataclass(frozen=True)
class Audit:
    """Audit a detector's p-values on held-out in-distribution inputs that neither fit nor calibration has seen.

    Exit code 1 when a false-discovery rate of --fdr cannot be claimed for --tests queries.
    """

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """File of a detector or a guard."""
    heldout: Annotated[Positional[tuple[str, ...]], arg(metavar="HELDOUT...")]
    """Files of held-out inputs."""
    fdr: Annotated[float, arg(metavar="NUMBER")] = 0.05
    """The rate to claim."""
    tests: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: as many as are held out)")] = None
    """How many queries are to be decided together."""
    split: Annotated[str, arg(metavar="SPLIT")] = "test"
    """For a guard: split of data sets."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """For a guard: where the data sets lie."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Score, judge, print."""
        from arht.commands._fitted import audited, load_fitted

        fitted = load_fitted(WHO, self.detector)
        found = audited(WHO, fitted, self.heldout, self.fdr, self.tests, split=self.split, data_dir=self.data_dir)
        record: dict[str, Any] = {"detector": self.detector, "digest": fitted.digest, "heldout": list(self.heldout)}
        sys.stdout.write(to_json({**record, **json_of(found.as_dict())}) if self.json else f"{found}\n")
        return 0 if found.passed else 1


def json_of(value: Any) -> Any:
    """With dicts all the way down, as JSON has them."""
    if isinstance(value, dict):
        return {name: json_of(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(inner) for inner in value]
    return plain(value)
