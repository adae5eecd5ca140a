"""The command line: parse, call, print.

Exit code 0: done. 1: a check failed. 2: a bad call or a bad input, one line on standard error and nothing on standard
output. 130: interrupted. 141: whoever read the output went away. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence

import tyro

from arht.commands import COMMANDS, Command
from arht.commands._common import one_line
from arht.errors import ArhtError, ArhtWarning, InputError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ArhtWarning)
            code = _run(words)
        sys.stdout.flush()
        for entry in caught:
            if issubclass(entry.category, ArhtWarning):
                print(f"warning: {one_line(str(entry.message))}", file=sys.stderr)
            else:
                warnings.showwarning(entry.message, entry.category, entry.filename, entry.lineno)
        return code
    except ArhtError as error:
        print(one_line(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would complain
        return 141


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"arht {importlib.import_module('arht').__version__}")
        return 0
    command = _parse(words)
    return 0 if command is None else command.run()


def _parse(words: list[str]) -> Command | None:
    """Words to a command; None if help was asked for and given."""
    told = io.StringIO()
    width = os.environ.get("COLUMNS")
    if not {"-h", "--help"} & set(words):
        os.environ["COLUMNS"] = "10000"  # an error is to be one line: no word of it broken in two
    try:
        with contextlib.redirect_stderr(told):
            command: Command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="arht",
                description="How strongly the evidence speaks against 'this is more of the same'.\n\n"
                "arht --version prints the version; arht COMMAND --help explains a command.",
                args=words,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
        return command
    except SystemExit as stop:
        if not stop.code:
            return None
        raise InputError(_condense(told.getvalue())) from None
    finally:
        os.environ.pop("COLUMNS", None)
        if width is not None:
            os.environ["COLUMNS"] = width


def _condense(box: str) -> str:
    """What tyro says in a box, as one line: without the title, the rulers and the advice at the end."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip("│╰╯ ") for row in plain.splitlines() if row.strip()][1:]
    parts = "\n".join("\0" if re.fullmatch("[─-]+", row) else row for row in rows).split("\0")
    kept = [one_line(part) for part in parts if not part.strip().startswith(("For full", "Argument help"))]
    return f"arht: {'. '.join(part.rstrip('.') for part in kept if part)}. See arht --help."
