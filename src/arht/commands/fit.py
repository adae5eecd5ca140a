"""``arht fit``: a detector from files of embeddings, or a guard around an encoder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from arht.commands._common import check_least, to_json

__all__ = ["Fit"]


@dataclass(frozen=True)
class Fit:
    """Fit a detector to in-distribution embeddings and write it to a file.

    REFERENCE are files of embeddings, one row each (npy, npz, csv, parquet, jsonl, - for standard input), read as
    streams; npy and npz may hold draws [N, K, P]. With --encoder they are data sets, folders of images or files, and
    the result is a guard: the encoder, its layers, their references and one calibration in one file.
    """

    reference: Annotated[Positional[tuple[str, ...]], arg(metavar="REFERENCE...")]
    """Files of the reference. With --encoder: names of data sets, folders or files."""
    out: Annotated[str, arg(metavar="FILE")]
    """The file to write, for instance detector.safetensors."""
    calibration: Annotated[tuple[str, ...] | None, arg(metavar="FILE...", help_behavior_hint="")] = None
    """Held-out in-distribution inputs that make p-values conformal. With --encoder, and REFERENCE the data that it was
    trained on: those that arht train --heldout kept from it, if none are given."""
    calibration_fraction: Annotated[float | None, arg(metavar="FRACTION", help_behavior_hint="")] = None
    """Instead: hold out this part of the reference at random."""
    labels: Annotated[str | None, arg(metavar="COLUMN|FILE", help_behavior_hint="")] = None
    """Classes of the reference, as integers: a column of its files, or a file of one number a row."""
    method: Annotated[str, arg(metavar="arht|rht|hotelling|mahalanobis")] = "arht"
    """The statistic."""
    against: Annotated[str | None, arg(metavar="global|class|relative", help_behavior_hint="(default: global)")] = None
    """What a query is compared with: the mean of all, the nearest class, or the one less the other."""
    tail: Annotated[str | None, arg(metavar="upper|two-sided", help_behavior_hint="(default: upper)")] = None
    """Two-sided: a query nearer to the mean than in-distribution inputs ever are is suspicious too."""
    ridge: Annotated[str | None, arg(metavar="NUMBER", help_behavior_hint="(arht: 0.01)")] = None
    """The ridge; with arht, the one that the multiples multiply, or `grid` for a grid of 200."""
    multiples: Annotated[tuple[str, ...] | None, arg(metavar="NUMBER...", help_behavior_hint="(arht: 1 5 10)")] = None
    """The ridges to choose from, in units of --ridge."""
    prior: Annotated[tuple[str, ...] | None, arg(metavar="A,B,C...", help_behavior_hint="(arht: 0,1,0)")] = None
    """One or several priors of arht."""
    ridge_unit: Annotated[str | None, arg(metavar="absolute|mean_eigenvalue", help_behavior_hint="")] = None
    """What a ridge of 1 is."""
    null: Annotated[str | None, arg(metavar="LAW", help_behavior_hint="(arht: cube_root)")] = None
    """The asymptotic law of p-values where there is no calibration."""
    encoder: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """An encoder, as arht train writes it: fit a guard around it."""
    mode: Annotated[str | None, arg(metavar="auto|paper", help_behavior_hint="(default: auto)")] = None
    """With --encoder: the recipe of several layers, or the paper's single one."""
    draws: Annotated[int | None, arg(metavar="K", help_behavior_hint="(default: 20)")] = None
    """With --encoder: weight draws."""
    split: Annotated[str, arg(metavar="SPLIT")] = "train"
    """With --encoder: split of the data sets of the reference."""
    calibration_split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="(default: test)")] = None
    """With --encoder: split of the data sets of --calibration."""
    data_dir: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: $ARHT_DATA)")] = None
    """With --encoder: where the data sets lie."""
    seed: Annotated[int, arg(metavar="INTEGER")] = 0
    """Seed of what is held out and of the weight draws."""
    threads: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Threads of the computation."""
    quiet: bool = False
    """No progress on standard error."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Read, fit, calibrate, write, print."""
        from arht.commands._fitted import threads
        from arht.commands._fitting import WHO, fit, text

        check_least(WHO, self, seed=0, threads=1, draws=1)
        with threads(self.threads):
            record = fit(self)
        sys.stdout.write(to_json(record) if self.json else text(record))
        return 0
