"""What the page says in words: guarantees, methods, outcomes, and how a number is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["GUARANTEES", "METHOD_NAMES", "METHOD_WORDS", "OUTCOMES", "estimate", "number"]

GUARANTEES: Mapping[str, str] = {
    "exact": "Exact: under the test's own assumption, the chance of a p-value at or below any level is at most that "
    "level, at every sample size.",
    "asymptotic": "Asymptotic: a working model. The level is approached as the samples and the dimension grow; draws "
    "of one input are not independent reference points, so in-distribution inputs can look stranger than they are. "
    "Calibrate with held-out inputs for a claim that holds at finite size.",
    "conformal": "Conformal: for an input exchangeable with the calibration inputs, the chance of a p-value at or "
    "below any level is at most that level, whatever the law of the data, on average over calibration sets.",
    "none": "None: scores only. Nothing is claimed about error rates, so nothing is decided.",
}
METHOD_NAMES: Mapping[str, str] = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "storey": "Storey"}
METHOD_WORDS: Mapping[str, str] = {
    "bh": "holds for independent p-values and for conformal ones that share a calibration set.",
    "by": "holds under any dependence between the p-values, and flags fewer for it.",
    "storey": "estimates the share of in-distribution inputs; holds for independent p-values only.",
}
OUTCOMES: Mapping[int, str] = {
    0: "no p-value",
    1: "holds a NaN or an infinity",
    2: "the statistic does not exist for it (singular or zero variance)",
}


def number(value: Any, kind: str = "auto") -> str:
    """A number for reading. Kinds: count, percent and rate (of shares), brief, auto."""
    if value is None:
        return "not available"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if kind == "count" or (kind == "auto" and isinstance(value, int)):
        return f"{value:,}"
    if kind == "percent":
        return f"{100 * value:.3g} %"
    if kind == "rate":
        return f"{100 * value:.1f} %"
    return f"{value:.{3 if kind == 'brief' else 4}g}".replace("-", "−")


def estimate(value: Mapping[str, Any], places: int = 1) -> tuple[str, str]:
    """A share in percent, and its interval."""
    middle = f"{100 * value['value']:.{places}f} %"
    if value.get("low") is None or value.get("high") is None:
        return middle, ""
    return middle, f"[{100 * value['low']:.{places}f}, {100 * value['high']:.{places}f}]"
