"""What the demo says about its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arht.demo.detection import FDR, Detections
from arht.demo.samples import LEVEL, SIZE, Samples

if TYPE_CHECKING:
    from rich.console import Console

    from arht.evaluation.estimate import Estimate

__all__ = ["interval", "print_detections", "print_samples"]


def interval(estimate: Estimate) -> str:
    """Value and interval, in per cent."""
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:.1f}"
    return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def print_samples(record: Samples, console: Console) -> None:
    """The first part."""
    from rich.table import Table

    _say(
        console,
        f"1. Do two samples have the same mean? Real 8 × 8 images of digits, {SIZE} in each sample: "
        "fewer images than pixels.\n",
    )
    table = Table("test", "p: 3s and 8s", "p: 3s and 3s", "guarantee", f"false alarms of {record.pairs}")
    for row in record.rows:
        if row.guarantee is None:
            table.add_row(row.test, "refuses", "refuses", "-", "-")
        else:
            table.add_row(row.test, f"{row.different:.3g}", f"{row.same:.3g}", row.guarantee, str(row.rejected))
    console.print(table)
    _say(
        console,
        f"- {record.refusal}",
        "- Small p-values speak against one mean: plainly so for 3s and 8s, not at all for 3s and other 3s.",
        f"- Permutation is exact; its {record.permutations} relabellings give no p-value below {record.floor:.2g}.",
        f"- Last column: rejections at {LEVEL:.0%} among {record.pairs} pairs of samples, each pair of one digit; "
        f"about {LEVEL * record.pairs:g} are due to chance.\n",
    )


def print_detections(record: Detections, folder: str, console: Console) -> None:
    """The second part."""
    from rich.table import Table

    n = record.counts
    _say(
        console,
        "2. Which images are none of the digits 0 to 7? A mean-field LeNet is trained on "
        f"{n['training']} of them. {n['calibration']} others calibrate the p-values, {n['audit']} others audit them. "
        f"Queries: {n['known digits']} more known digits ({100 * record.accuracy:.1f} % classified rightly), "
        f"{n['unseen digits']} digits 8 and 9, {n['photographs']} patches of photographs. Nothing is chosen on them.\n",
    )
    table = Table("in %", *(found.method for found in record.methods))
    for name in record.methods[0].kinds:
        kinds = [found.kinds[name] for found in record.methods]
        table.add_row(f"{name}: AUROC", *(interval(kind.auroc) for kind in kinds))
        table.add_row("  AUPR", *(f"{100 * kind.aupr:.1f}" for kind in kinds))
        table.add_row("  FPR at 95 % TPR", *(f"{100 * kind.fpr95:.1f}" for kind in kinds))
        table.add_row("  power", *(interval(kind.power) for kind in kinds), end_section=True)
    table.add_row(f"false alarms at {LEVEL:.0%}", *(interval(found.alarms) for found in record.methods))
    table.add_row("queries rejected", *(str(found.rejected) for found in record.methods))
    table.add_row("realised FDR", *(interval(found.fdr) if found.rejected else "-" for found in record.methods))
    console.print(table)
    total = sum(n[name] for name in ("known digits", *record.methods[0].kinds))
    _say(
        console,
        "- auto: several layers by one fixed rule, one calibrated verdict. paper: ARHT of the embedding against the "
        "global mean. entropy: of the averaged predictions. All three see the same weight draws.",
        "- AUROC: 50 is blind, 100 is perfect, below 50 unfamiliar images look more "
        "familiar than digits do. In brackets: 95 % intervals.",
        f"- Rejected: all {total} queries decided together, by Benjamini-Hochberg at FDR {FDR:.0%} on conformal "
        f"p-values. Realised FDR: share of known digits among them, at most {FDR * n['known digits'] / total:.1%} on "
        "average; power: share of a kind that is rejected.",
        f"- Conformal p-values: a rank among held-out digits; at most {LEVEL:.0%} false alarms on average, whatever "
        f"the score. The asymptotic law of the paper's statistic gives {100 * record.asymptotic:.0f} %: it takes the "
        "draws of one image for as many images.\n",
        f"Audit of auto mode:\n{record.audit}\n",
        f"Written: {record.page} (open it in a browser), {folder}/guard.safetensors, {folder}/queries.npz",
        f"Next: arht score {folder}/guard.safetensors {folder}/queries.npz --out scores.parquet",
    )


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap="/" in line)
