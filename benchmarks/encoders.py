"""The encoders that were trained for this repository: what their run records say.

    python -m benchmarks.encoders            prints the tables of results/encoders/*.json

The records are written by ``arht train ... --record``; nothing is run here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "results" / "encoders"


def records(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The records, by name of their file."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def render(found: list[dict[str, Any]] | None = None) -> str:
    """Two markdown tables: what the encoders reach on the test images, and the command of each."""
    rows = records() if found is None else found
    if not rows:
        return "No encoder has been trained yet.\n"
    out = [
        "Test images, predictive mean over the draws; macro F1 is the mean over the classes.",
        "",
        "| data | encoder | seed | epochs | trained on | draws | accuracy | macro F1 | nll | minutes |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        data, test = row["data"], row["test"]
        cells = [data["name"], f"{row['architecture']}, {row['posterior']}", str(row["seed"])]
        cells += [str(len(row["history"]["epochs"])), f"{data['train']:,}"]
        if test is None:
            cells += ["", "", "", ""]
        else:
            cells += [str(test["draws"]), f"{test['accuracy']:.2%}", f"{test['macro_f1']:.2%}", f"{test['nll']:.3f}"]
        out.append("| " + " | ".join([*cells, f"{row['seconds'] / 60:.1f}"]) + " |")
    out += ["", "Each is one command:", "", "```text", *(shown(row) for row in rows), "```"]
    return "\n".join(out) + "\n"


def shown(row: dict[str, Any]) -> str:
    """The command without what changes no number."""
    words = row["command"].split()
    for flag, values in (("--quiet", 0), ("--threads", 1), ("--record", 1), ("--resume", 0), ("--data-dir", 1)):
        if flag in words:
            at = words.index(flag)
            del words[at : at + 1 + values]
    return " ".join(words)


def main() -> None:
    print(render())


if __name__ == "__main__":
    main()
