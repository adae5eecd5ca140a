"""A small table for people."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["two_columns"]


def two_columns(title: str, rows: Mapping[str, str | None]) -> str:
    """Names and values, without those that are None."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), show_header=False)
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(value))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()
