"""``arht test``: one sample or two on the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from arht.commands._common import GUARANTEES, is_number, plain, read_integer, read_numbers, to_json
from arht.errors import InputError

__all__ = ["METHODS", "Test"]

WHO = "arht test"

METHODS: Mapping[str, tuple[str, ...]] = {
    "hotelling": (),
    "rht": ("null", "ridge", "permutations", "seed"),
    "arht": ("null", "ridge", "prior", "permutations", "seed"),
}
"""Each method with the options that only some methods have."""


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

    def run(self) -> int:
        """Read, test, print."""
        _test(self)
        return 0


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
        seed = read_integer(WHO, "--seed", options.seed) or 0
        settings["null"] = _permutation(seed, read_integer(WHO, "--permutations", options.permutations))
    result = getattr(arht, f"{options.method}_test")(x, y, **settings)
    left, given = "mean(x)" if y is None else "mean(x) - mean(y)", options.mean or ("0",)
    record = {
        "x": options.x,
        "y": options.y,
        "n": [len(x)] if y is None else [len(x), len(y)],
        "P": x.shape[1],
        "seed": seed,
        "hypothesis": f"{left} = {' '.join(given) if len(given) < 9 else f'the given {len(given)} numbers'}",
        **plain(result),
    }
    sys.stdout.write(to_json(record) if options.json else _table(record))


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
        read_integer(WHO, f"--{name}", getattr(options, name))
    settings: dict[str, Any] = {} if options.null is None else {"null": options.null}
    if options.mean is not None:
        if len(options.mean) == 1 and not is_number(options.mean[0]):
            settings["mean"] = options.mean[0]
        else:
            mean = read_numbers(WHO, "--mean", options.mean)
            settings["mean"] = mean if len(mean) > 1 else mean[0]
    ridges = None if options.ridge is None else read_numbers(WHO, "--ridge", options.ridge)
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
        settings["priors"] = tuple(read_numbers(WHO, "--prior", prior.split(",")) for prior in options.prior)
        if not options.prior:
            read_numbers(WHO, "--prior", ())
    return settings


def _permutation(seed: int, count: int | None) -> Any:
    import torch

    law = importlib.import_module("arht.stats.nulls").Permutation
    generator = torch.Generator().manual_seed(seed)
    return law(generator=generator) if count is None else law(count=count, generator=generator)


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
