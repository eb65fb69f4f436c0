"""Intervals, bounds and tests of noisy measurements.

Values in a row are rarely independent, and an interval over dependent values is too short.
Differences within pairs whose order was drawn at random keep their coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from . import _lull

__all__ = [
    "Estimate",
    "Ratio",
    "estimate",
    "holm",
    "paired_difference",
    "paired_ratio",
    "proportion_lower",
    "proportion_upper",
    "quantile_lower",
    "quantile_upper",
    "sign_flip_chance",
    "studentised_interval",
]


class Estimate(NamedTuple):
    """A mean with half the width of its 95 % interval."""

    mean: float
    half_width: float
    """Infinite for a single value."""
    values: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero, so that there is a difference."""
        return math.isfinite(self.half_width) and (self.low > 0.0 or self.high < 0.0)


class Ratio(NamedTuple):
    """A ratio within pairs with the ends of its 95 % interval."""

    ratio: float
    low: float
    high: float


def estimate(values: Iterable[float]) -> Estimate | None:
    """Return the mean of independent values (Student's t); None without a value."""
    parts = _lull.estimate(list(values))
    return None if parts is None else Estimate(*parts)


def paired_difference(ours: Iterable[float], theirs: Iterable[float]) -> Estimate | None:
    """Return the mean difference within pairs; None without a pair."""
    parts = _lull.paired_difference(list(ours), list(theirs))
    return None if parts is None else Estimate(*parts)


def paired_ratio(ours: Iterable[float], theirs: Iterable[float]) -> Ratio | None:
    """Return the ratio within pairs of values above 0; None without two pairs."""
    parts = _lull.paired_ratio(list(ours), list(theirs))
    return None if parts is None else Ratio(*parts)


def proportion_upper(events: int, trials: int, alpha: float = 0.05) -> float:
    """Return the upper bound of a share at confidence `1 - alpha` (Clopper and Pearson)."""
    return _lull.proportion_upper(events, trials, alpha)


def proportion_lower(events: int, trials: int, alpha: float = 0.05) -> float:
    """Return the lower bound of a share at confidence `1 - alpha` (Clopper and Pearson)."""
    return _lull.proportion_lower(events, trials, alpha)


def quantile_upper(values: Iterable[float], share: float, alpha: float = 0.05) -> float | None:
    """Return the upper bound of a quantile of independent values; None with too few of them."""
    return _lull.quantile_upper(list(values), share, alpha)


def quantile_lower(values: Iterable[float], share: float, alpha: float = 0.05) -> float | None:
    """Return the lower bound of a quantile of independent values; None with too few of them."""
    return _lull.quantile_lower(list(values), share, alpha)


def studentised_interval(
    values: Iterable[float], level: float = 0.05, seed: int = 0
) -> tuple[float, float] | None:
    """Return the interval of a mean at confidence `1 - level` by the studentised bootstrap.

    At each end the wider of the bootstrap's and Student's; for skewed values.
    """
    return _lull.studentised_interval(list(values), level, seed)


def sign_flip_chance(differences: Iterable[float], seed: int = 0) -> float:
    """Return the chance of such differences if only the order within pairs made them."""
    return _lull.sign_flip_chance(list(differences), seed)


def holm(chances: Iterable[float], alpha: float = 0.05) -> list[bool]:
    """Return which of several claims hold together at the error probability `alpha`."""
    return _lull.holm(list(chances), alpha)
