"""``arht demo``: two-sample tests, then the whole job of a guard, on real images that ship with scikit-learn."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from arht.demo.detection import Detections, detect
from arht.demo.samples import Samples, two_sample

__all__ = ["Record", "main"]


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that the demo computes."""

    samples: Samples
    detections: Detections


def main(folder: str = "demo", seed: int = 0) -> Record:
    """Compute, print, and write guard, queries and report into the folder."""
    import torch
    from rich.console import Console

    from arht.demo.printing import print_detections, print_samples

    console = Console(file=sys.stdout)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small products: a second thread is a loss
    try:
        samples = two_sample(seed)
        print_samples(samples, console)
        sys.stdout.flush()
        detections = detect(Path(folder), seed, progress=sys.stderr.isatty())
    finally:
        torch.set_num_threads(threads)
    print_detections(detections, folder, console)
    return Record(samples, detections)
