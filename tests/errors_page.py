"""The rows of docs/errors.md, by section: each section is provoked, row by row, by one test module."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def rows(section):
    """Name -> (names in backticks of the second column, the one line)."""
    (text,) = (part for part in SECTIONS if part.partition("\n")[0] == section)
    cells = [
        [cell.strip() for cell in row.strip("| ").split(" | ")]
        for row in text.splitlines()
        if row.startswith("| ") and not row.startswith("| Input")
    ]
    found = {name: (re.findall(r"`([^`]+)`", met), line.strip("`")) for name, met, line in cells}
    assert len(found) == len(cells), f"two rows of one name in {section}"
    return found


def pattern(line):
    """A line of the page as a regular expression: words in braces stand for anything."""
    return re.sub(r"\\\{\w+\\\}", r"[^\\n]+", re.escape(line))
