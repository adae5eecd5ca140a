"""A small drawing board: axes, steps, lines and bands as SVG text that follows the page's colours.

Shapes carry classes, never colours, so that one figure serves the light and the dark page. Nothing is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Board", "Scale", "short"]


def short(value: float) -> str:
    """A number as an axis shows it: few digits, powers of ten where it is very large or small."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        digits, power = f"{value:.1e}".split("e")
        digits = digits.removesuffix(".0")
        raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10{raised}" if digits == "1" else f"{digits}·10{raised}".replace("-", "−")
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """From a number to a place on the board, straight or logarithmic; what lies beyond is put on the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers inside the scale."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first) / count))
            if last - first >= 2:
                return [10.0**power for power in range(first, last + 1, step)]
            parts = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [part for part in parts if self.low <= part <= self.high]
        rough = (self.high - self.low) / count
        if rough <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(rough))
        step_ = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step_ - 1e-9)
        found = []
        while (first * step_) <= self.high + 1e-9 * step_:
            found.append(first * step_)
            first += 1
        return found


@dataclass
class Board:
    """One figure. `title` and `about` are what a screen reader says of it."""

    width: float
    height: float
    title: str
    about: str
    key: str
    classes: str = ""
    parts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Put in a piece of SVG."""
        self.parts.append(text)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, extra: str = "") -> None:
        """A straight line."""
        self.add(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"{extra}/>')

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start", extra: str = "") -> None:
        """Words; they are escaped."""
        self.add(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}"{extra}>{escape(words)}</text>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, *, closed: bool = False, extra: str = "") -> None:
        """A line through points, or an area within them."""
        way = "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
        if way:
            self.add(f'<path d="M{way}{"Z" if closed else ""}" class="{kind}"{extra}/>')

    def steps(self, edges: Sequence[float], tops: Sequence[float], base: float, kind: str) -> None:
        """A histogram's outline, down to the base at both ends."""
        points = [(edges[0], base)]
        for left, right, top in zip(edges[:-1], edges[1:], tops, strict=True):
            points += [(left, top), (right, top)]
        self.path([*points, (edges[-1], base)], kind, closed=True)

    def band(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str) -> None:
        """The area between two lines."""
        there = list(zip(x, high, strict=True))
        self.path([*there, *reversed(list(zip(x, low, strict=True)))], kind, closed=True)

    def dots(self, points: Iterable[tuple[float, float]], kind: str, radius: float = 2.2) -> None:
        """A dot at each point."""
        for x, y in points:
            self.add(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}"/>')

    def axis_x(self, scale: Scale, y: float, label: str, *, top: float | None = None, count: int = 5) -> None:
        """Ticks below y, light lines up to `top`, the label under them."""
        for value in scale.ticks(count):
            x = scale(value)
            if top is not None:
                self.line(x, top, x, y, "grid")
            self.text(x, y + 15, short(value), "tick", "middle")
        self.line(scale.start, y, scale.end, y, "axis")
        self.text((scale.start + scale.end) / 2, y + 32, label, "label", "middle")

    def axis_y(self, scale: Scale, x: float, label: str, *, right: float | None = None, count: int = 5) -> None:
        """Ticks left of x, light lines up to `right`, the label upright."""
        for value in scale.ticks(count):
            y = scale(value)
            if right is not None:
                self.line(x, y, right, y, "grid")
            self.text(x - 6, y + 4, short(value), "tick", "end")
        middle = (scale.start + scale.end) / 2
        self.text(12, middle, label, "label", "middle", f' transform="rotate(-90 12 {middle:g})"')

    def render(self) -> str:
        """The figure as one element."""
        kind = f"figure {self.classes}".strip()
        return (
            f'<svg class="{kind}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-labelledby="{self.key}-title {self.key}-about"><title id="{self.key}-title">{escape(self.title)}'
            f'</title><desc id="{self.key}-about">{escape(self.about)}</desc>{"".join(self.parts)}</svg>'
        )
