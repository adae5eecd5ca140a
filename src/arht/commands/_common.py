"""What several commands share: numbers from words, results as JSON, one line for errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from arht.errors import InputError

__all__ = ["GUARANTEES", "check_least", "is_number", "one_line", "plain", "read_integer", "read_numbers", "to_json"]

GUARANTEES: Mapping[str, str] = {
    "exact": "exact: P(p <= level) is at most level at every sample size, under the test's assumption",
    "asymptotic": "asymptotic: the level is approached as n and P grow; the docs tabulate realised levels",
    "conformal": "conformal: P(p <= level) is at most level for inputs exchangeable with those held out",
    "none": "none: no claim",
}


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_numbers(who: str, flag: str, texts: Sequence[str]) -> tuple[float, ...]:
    wrong = [text for text in texts if not is_number(text)]
    if wrong or not texts:
        how = ", joined by commas" if flag == "--prior" else ""
        raise InputError(
            f"{who}: {flag} must be numbers{how}; got {repr(wrong[0]) if wrong else 'none'}. See {who} --help."
        )
    return tuple(map(float, texts))


def read_integer(who: str, flag: str, text: str | None) -> int | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{who}: {flag} must be an integer >= 0; got {text!r}. Write for instance {flag} 1000.")
    return None if text is None else int(text)


LARGEST = {"seed": 2**63 - 1, "threads": 1024}


def check_least(who: str, options: Any, **least: int) -> None:
    """The options that are integers are none, or at least so much."""
    for name, bound in least.items():
        value, most = getattr(options, name), LARGEST.get(name, 2**31 - 1)
        if value is None or bound <= value <= most:
            continue
        limit = f">= {bound}" if value < bound else f"<= {most}"
        raise InputError(f"{who}: --{name} must be an integer {limit}; got {value}. See {who} --help.")


def plain(value: Any) -> Any:
    """A result as JSON has it: dicts, lists, numbers that are finite or None, words."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value


def to_json(record: dict[str, Any]) -> str:
    import json

    return json.dumps(record, allow_nan=False) + "\n"
