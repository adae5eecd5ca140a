"""The command line: parse, call, print.

Exit code 0: done. 2: a bad call or a bad input, one line on standard error and nothing on standard output.
130: interrupted. 141: whoever read the output went away. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, arg

from arht.errors import ArhtError, ArhtWarning, InputError

__all__ = ["main"]

METHODS: Mapping[str, tuple[str, ...]] = {
    "hotelling": (),
    "rht": ("null", "ridge", "permutations", "seed"),
    "arht": ("null", "ridge", "prior", "permutations", "seed"),
}
"""Each method with the options that only some methods have."""

GUARANTEES: Mapping[str, str] = {
    "exact": "exact: P(p <= level) is at most level at every sample size, under the test's assumption",
    "asymptotic": "asymptotic: the level is approached as n and P grow; the docs tabulate realised levels",
    "conformal": "conformal: P(p <= level) is at most level for inputs exchangeable with those held out",
    "none": "none: no claim",
}


@dataclass(frozen=True)
class Test:
    """Test whether two samples have one mean, or one sample a given mean.

    X and Y are files of embeddings, one row each: npy, npz (FILE.npz:KEY picks an array), csv or parquet.
    """

    __test__ = False  # not a test case, whatever its name says to pytest

    x: Annotated[Positional[str], arg(metavar="X")]
    """The sample, or the first of two."""
    y: Annotated[Positional[str | None], arg(metavar="[Y]", help_behavior_hint="")] = None
    """The second sample."""
    method: Annotated[str, arg(metavar="hotelling|rht|arht")] = "arht"
    """hotelling: exact, for P < n1 + n2 - 1. rht: at a given ridge. arht: at a ridge chosen from a grid."""
    null: Annotated[str | None, arg(metavar="LAW", help_behavior_hint="(default: cube_root)")] = None
    """Law of the statistic: normal, cube_root, square_root, chi_square or permutation."""
    ridge: Annotated[tuple[str, ...] | None, arg(metavar="NUMBER...", help_behavior_hint="")] = None
    """The ridge (rht: exactly one), or the grid to choose from (arht: 200 values if not given)."""
    mean: Annotated[tuple[str, ...] | None, arg(metavar="NUMBER...|FILE", help_behavior_hint="")] = None
    """Hypothesised mean of X, or of X less that of Y: one number, one per column, or a file. Default: 0."""
    prior: Annotated[tuple[str, ...] | None, arg(metavar="A,B,C...", help_behavior_hint="")] = None
    """One or several priors of arht, the numbers of each joined by commas. Default: 1,0,0 0,1,0 0,0,1."""
    permutations: Annotated[str | None, arg(metavar="COUNT", help_behavior_hint="")] = None
    """Number of permutations, with --null permutation."""
    seed: Annotated[str | None, arg(metavar="INTEGER", help_behavior_hint="(default: 0)")] = None
    """Seed of the permutations."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Demo:
    """Run a worked example on data that ships with scikit-learn."""


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
                print(f"warning: {_one_line(str(entry.message))}", file=sys.stderr)
            else:
                warnings.showwarning(entry.message, entry.category, entry.filename, entry.lineno)
        return code
    except ArhtError as error:
        print(_one_line(str(error)), file=sys.stderr)
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
    if isinstance(command, Test):
        _test(command)
    elif isinstance(command, Demo):
        importlib.import_module("arht.demo").main()
    return 0


def _parse(words: list[str]) -> Test | Demo | None:
    """Words to a command; None if help was asked for and given."""
    told = io.StringIO()
    width = os.environ.get("COLUMNS")
    if not {"-h", "--help"} & set(words):
        os.environ["COLUMNS"] = "10000"  # an error is to be one line: no word of it broken in two
    try:
        with contextlib.redirect_stderr(told):
            command: Test | Demo = tyro.extras.subcommand_cli_from_dict(
                {"test": Test, "demo": Demo},
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
    kept = [_one_line(part) for part in parts if not part.strip().startswith(("For full", "Argument help"))]
    return f"arht: {'. '.join(part.rstrip('.') for part in kept if part)}. See arht --help."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _test(options: Test) -> None:
    settings = _settings(options)
    arht = importlib.import_module("arht")
    from arht.io import read_table

    x = read_table(options.x)
    y = None if options.y is None else read_table(options.y)
    if "mean" in settings and isinstance(settings["mean"], str):
        settings["mean"] = read_table(settings["mean"]).reshape(-1)
    seed = None
    if settings.get("null") == "permutation":
        seed = _integer("--seed", options.seed) or 0
        settings["null"] = _permutation(seed, _integer("--permutations", options.permutations))
    result = getattr(arht, f"{options.method}_test")(x, y, **settings)
    left, given = "mean(x)" if y is None else "mean(x) - mean(y)", options.mean or ("0",)
    record = {
        "x": options.x,
        "y": options.y,
        "n": [len(x)] if y is None else [len(x), len(y)],
        "P": x.shape[1],
        "seed": seed,
        "hypothesis": f"{left} = {' '.join(given) if len(given) < 9 else f'the given {len(given)} numbers'}",
        **_plain(result),
    }
    sys.stdout.write(_json(record) if options.json else _table(record))


def _settings(options: Test) -> dict[str, Any]:
    """Options to keyword arguments; whatever can be refused before a file is read is refused here."""
    if options.method not in METHODS:
        raise InputError(
            f"arht test: --method must be one of {', '.join(METHODS)}; got {options.method!r}. "
            "Each is explained by arht test --help."
        )
    for name in METHODS["arht"]:
        if getattr(options, name) is not None and name not in METHODS[options.method]:
            fitting = " or ".join(method for method, own in METHODS.items() if name in own)
            raise InputError(
                f"arht test: --{name} goes with --method {fitting}; got --method {options.method}. "
                "Leave it out, or change the method."
            )
    for name in ("permutations", "seed"):
        if getattr(options, name) is not None and options.null != "permutation":
            raise InputError(
                f"arht test: --{name} goes with --null permutation; got --null {options.null or 'cube_root'}"
                ". Leave it out, or add --null permutation."
            )
        _integer(f"--{name}", getattr(options, name))
    settings: dict[str, Any] = {} if options.null is None else {"null": options.null}
    if options.mean is not None:
        if len(options.mean) == 1 and not _is_number(options.mean[0]):
            settings["mean"] = options.mean[0]
        else:
            mean = _numbers("--mean", options.mean)
            settings["mean"] = mean if len(mean) > 1 else mean[0]
    ridges = None if options.ridge is None else _numbers("--ridge", options.ridge)
    if options.method == "rht":
        if ridges is None or len(ridges) != 1:
            raise InputError(
                f"arht test: --method rht needs exactly one --ridge; got {len(ridges or ())}. "
                "Choose for instance 0.01 times the mean eigenvalue, or let --method arht choose."
            )
        settings["ridge"] = ridges[0]
    elif ridges is not None:
        settings["ridges"] = ridges
    if options.prior is not None:
        settings["priors"] = tuple(_numbers("--prior", prior.split(",")) for prior in options.prior)
        if not options.prior:
            _numbers("--prior", ())
    return settings


def _permutation(seed: int, count: int | None) -> Any:
    import torch

    law = importlib.import_module("arht.stats.nulls").Permutation
    generator = torch.Generator().manual_seed(seed)
    return law(generator=generator) if count is None else law(count=count, generator=generator)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(flag: str, texts: Sequence[str]) -> tuple[float, ...]:
    wrong = [text for text in texts if not _is_number(text)]
    if wrong or not texts:
        how = ", joined by commas" if flag == "--prior" else ""
        raise InputError(
            f"arht test: {flag} must be numbers{how}; got {repr(wrong[0]) if wrong else 'none'}. See arht test --help."
        )
    return tuple(map(float, texts))


def _integer(flag: str, text: str | None) -> int | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"arht test: {flag} must be an integer >= 0; got {text!r}. Write for instance {flag} 1000.")
    return None if text is None else int(text)


def _plain(value: Any) -> Any:
    """A result as JSON has it: dicts, lists, numbers that are finite or None, words."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value


def _json(record: dict[str, Any]) -> str:
    import json

    return json.dumps(record, allow_nan=False) + "\n"


def _table(record: dict[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def number(value: Any) -> str:
        return "does not exist" if value is None else f"{value:.6g}"

    floor = record["pvalue"] is not None and 0 < record["pvalue"] <= record["smallest_pvalue"]
    rows = {
        "hypothesis": record["hypothesis"],
        "n": " and ".join(map(str, record["n"])),
        "P": str(record["P"]),
        "statistic": number(record["statistic"]),
        "ridge": None if record["ridge"] is None else number(record["ridge"]),
        "p-value": number(record["pvalue"]) + (" (this law can give none smaller)" if floor else ""),
        "guarantee": GUARANTEES.get(record["guarantee"], record["guarantee"]),
        "null law": record["null"],
        "outcome": None if not record["outcome"] else f"not tested (code {record['outcome']})",
    }
    table = Table(title=Text(f"{record['method']}: {record['x']} {record['y'] or ''}".rstrip()), show_header=False)
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(value))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get()
