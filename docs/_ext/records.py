"""The directive ``record``: the tables of a measured record, rendered while the docs are built.

    ```{record} level
    ```

puts in what ``benchmarks.level.render`` makes of ``results/level.json``; a second word names another record of that
benchmark, ``{record} ood ood_fresh``. A missing record is a warning.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
logger = logging.getLogger(__name__)


class Record(SphinxDirective):
    required_arguments: ClassVar[int] = 1
    optional_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        folder = ROOT / "results" / name
        if folder.is_dir():  # a record in several files
            for part in sorted(folder.glob("*.json")):
                self.env.note_dependency(str(part))
            return self.parse_text_to_nodes(import_module(f"benchmarks.{name}").render(), allow_section_headings=True)
        path = ROOT / "results" / f"{self.arguments[-1]}.json"
        self.env.note_dependency(str(path))
        self.env.note_dependency(str(ROOT / "benchmarks" / f"{name}.py"))
        if not path.exists():
            command = f"python -m benchmarks.{name} --out results/{path.name}"
            logger.warning("record %r is missing: run %s", path.stem, command, location=self.get_location())
            return [nodes.paragraph("", f"This record is missing. It is made by: {command}")]
        record = json.loads(path.read_text(encoding="utf-8"))
        text = import_module(f"benchmarks.{name}").render(record)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("record", Record)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
