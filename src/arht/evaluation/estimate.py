"""A number with its interval, and the two ways to an interval that the metrics share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arht.errors import InputError

__all__ = ["Estimate", "bootstrap", "clopper_pearson"]

Array = npt.NDArray[np.float64]

RESAMPLES = 1000
BLOCK = 1 << 20
"""Weights that are drawn at once."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the interval that holds the true one with probability `level`, by `interval`.

    `low` and `high` are None where no interval was asked for (a bootstrap without a generator) or none exists.
    """

    value: float
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    interval: str = "none"
    """How the interval was made: delong, disjoint pairs, bootstrap (count), clopper-pearson, none."""

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def clopper_pearson(count: int, total: int, *, level: float = 0.95) -> Estimate:
    """The share count / total of independent trials, with its exact interval (Clopper and Pearson 1934).

    low is the α/2 quantile of Beta(count, total - count + 1), high the 1 - α/2 quantile of
    Beta(count + 1, total - count), α = 1 - level. Of no trials the share is 0 and the interval [0, 1].
    """
    from scipy.stats import beta

    check_level("clopper_pearson", level)
    if not 0 <= count <= total:
        raise InputError(
            f"clopper_pearson: needs 0 <= count <= total; got count={count}, total={total}. "
            "Pass how many of the trials succeeded."
        )
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - tail, count + 1, total - count))
    return Estimate(count / total if total else 0.0, low, high, level, "clopper-pearson")


def bootstrap(
    value: float,
    statistic: Callable[..., Array],
    *counts: npt.NDArray[np.int64],
    level: float,
    resamples: int,
    generator: Any,
) -> Estimate:
    """The value with its percentile interval over resamples, or alone if there is no generator.

    Each array of counts [G] says how often each of G distinct rows occurs in one sample; a resample draws every
    row Poisson(1) times instead of once, so each count becomes a Poisson number with that mean. `statistic` maps
    such weights, [r, G] for each sample, to [r] values; NaN (a resample without rows) does not count.
    """
    if generator is None:
        return Estimate(value, level=level)
    values = np.concatenate([statistic(*weights) for weights in resampled(counts, resamples, generator)])
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), level, f"bootstrap ({resamples})")


def resampled(counts: tuple[npt.NDArray[np.int64], ...], resamples: int, generator: Any) -> Any:
    """Blocks of weights: one array [r, G] per sample."""
    import torch

    rates = [torch.from_numpy(np.asarray(count, dtype=np.float64)) for count in counts]
    block = max(1, BLOCK // max(1, sum(map(len, rates))))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        yield [torch.poisson(rate.expand(rows, -1), generator=generator).numpy() for rate in rates]


def check_level(who: str, level: float) -> None:
    if not 0 < level < 1:
        raise InputError(
            f"{who}: level must be above 0 and below 1; got {level!r}. "
            "It is the probability that the interval holds the true value; use 0.95."
        )
