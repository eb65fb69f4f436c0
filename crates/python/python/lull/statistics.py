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
    """A mean with half the width of its 95 % interval, in the unit of the values."""

    mean: float
    """The mean."""
    half_width: float
    """Infinite for a single value."""
    values: int
    """Number of values."""

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
    """The ratio, without unit."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


def estimate(values: Iterable[float]) -> Estimate | None:
    """Return the mean of independent values with its interval by Student's t.

    Parameters
    ----------
    values : iterable of float
        Independent values, such as one of each replication, in any unit.

    Returns
    -------
    Estimate or None
        In the unit of the values; None without a value.

    Raises
    ------
    ValueError
        If a value is not a number, or a probability is not between 0 and 1.
    """
    parts = _lull.estimate(list(values))
    return None if parts is None else Estimate(*parts)


def paired_difference(ours: Iterable[float], theirs: Iterable[float]) -> Estimate | None:
    """Return the mean difference within pairs with its interval.

    Parameters
    ----------
    ours, theirs : iterable of float
        The two values of each pair, in one unit.

    Returns
    -------
    Estimate or None
        Of `ours` less `theirs`; None without a pair.

    Raises
    ------
    ValueError
        If there are more of one than of the other.
    """
    parts = _lull.paired_difference(list(ours), list(theirs))
    return None if parts is None else Estimate(*parts)


def paired_ratio(ours: Iterable[float], theirs: Iterable[float]) -> Ratio | None:
    """Return the ratio within pairs with its 95 % interval.

    Parameters
    ----------
    ours, theirs : iterable of float
        The two values of each pair, above 0 and in one unit.

    Returns
    -------
    Ratio or None
        Of `ours` over `theirs`, without unit; None without two pairs.

    Raises
    ------
    ValueError
        If there are more of one than of the other.
    """
    parts = _lull.paired_ratio(list(ours), list(theirs))
    return None if parts is None else Ratio(*parts)


def proportion_upper(events: int, trials: int, alpha: float = 0.05) -> float:
    """Return the upper bound of a share (Clopper and Pearson).

    Parameters
    ----------
    events, trials : int
        How many of how many, such as late requests of all.
    alpha : float
        Probability that the share is above the bound, from 0 to 1.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    ValueError
        If there are no trials, or more events than trials.
    """
    return _lull.proportion_upper(events, trials, alpha)


def proportion_lower(events: int, trials: int, alpha: float = 0.05) -> float:
    """Return the lower bound of a share (Clopper and Pearson).

    Parameters
    ----------
    events, trials : int
        How many of how many, such as late requests of all.
    alpha : float
        Probability that the share is below the bound, from 0 to 1.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    ValueError
        If there are no trials, or more events than trials.
    """
    return _lull.proportion_lower(events, trials, alpha)


def quantile_upper(values: Iterable[float], share: float, alpha: float = 0.05) -> float | None:
    """Return the upper bound of a quantile, by order statistics.

    Parameters
    ----------
    values : iterable of float
        Independent values, in any unit.
    share : float
        Which quantile: 0.99 for the 99th percentile.
    alpha : float
        Probability that the quantile is above the bound, from 0 to 1.

    Returns
    -------
    float or None
        In the unit of the values; None if there are too few of them.

    Raises
    ------
    ValueError
        If a value is not a number, or a probability is not between 0 and 1.
    """
    return _lull.quantile_upper(list(values), share, alpha)


def quantile_lower(values: Iterable[float], share: float, alpha: float = 0.05) -> float | None:
    """Return the lower bound of a quantile, by order statistics.

    Parameters
    ----------
    values : iterable of float
        Independent values, in any unit.
    share : float
        Which quantile: 0.99 for the 99th percentile.
    alpha : float
        Probability that the quantile is below the bound, from 0 to 1.

    Returns
    -------
    float or None
        In the unit of the values; None if there are too few of them.

    Raises
    ------
    ValueError
        If a value is not a number, or a probability is not between 0 and 1.
    """
    return _lull.quantile_lower(list(values), share, alpha)


def studentised_interval(
    values: Iterable[float], level: float = 0.05, seed: int = 0
) -> tuple[float, float] | None:
    """Return the interval of a mean of skewed values by the studentised bootstrap.

    At each end it is the wider of the bootstrap's and Student's.

    Parameters
    ----------
    values : iterable of float
        Independent values, in any unit.
    level : float
        Probability that the mean is outside of the interval, from 0 to 1.
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    tuple of float or None
        Lower and upper end, in the unit of the values; None with fewer than two values.

    Raises
    ------
    ValueError
        If a value is not a number, or a probability is not between 0 and 1.
    """
    return _lull.studentised_interval(list(values), level, seed)


def sign_flip_chance(differences: Iterable[float], seed: int = 0) -> float:
    """Return the chance of such differences if only the order within pairs made them.

    Parameters
    ----------
    differences : iterable of float
        The difference of each pair, whose order was drawn at random.
    seed : int
        Seed of the drawn signs, where there are too many to try all.

    Returns
    -------
    float
        A two-sided p-value, from 0 to 1.
    """
    return _lull.sign_flip_chance(list(differences), seed)


def holm(chances: Iterable[float], alpha: float = 0.05) -> list[bool]:
    """Return which of several claims hold together (Holm).

    Parameters
    ----------
    chances : iterable of float
        The p-value of each claim.
    alpha : float
        Probability that any of the accepted claims is wrong, from 0 to 1.

    Returns
    -------
    list of bool
        Whether each claim is accepted, in the order of the p-values.
    """
    return _lull.holm(list(chances), alpha)
