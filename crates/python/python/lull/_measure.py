"""Entropy of a shared machine, and the bound of tail latency on throughput."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _lull


class Entropy(NamedTuple):
    """System entropy with its parts; None for a part without apps."""

    system: float
    """E_S, from 0 (no interference) to 1."""
    latency_critical: float | None
    """E_LC, the part of latency-critical apps."""
    best_effort: float | None
    """E_BE, the part of best-effort apps."""


class TailBound(NamedTuple):
    """What the TLT theorem says of a set of latencies."""

    tail_ms: float
    """The tail at the percentile, in ms."""
    share_below: float
    """Share of latency strictly below the tail."""
    ratio_max: float
    """The most that tail over mean latency can be."""
    ratio: float
    """Tail over mean latency as it is."""


def entropy(
    latency_critical: Iterable[tuple[float, float, float]] = (),
    best_effort: Iterable[tuple[float, float]] = (),
    importance: float = 0.8,
) -> Entropy:
    """Return the system entropy E_S (Ah-Q, Liu et al. 2024).

    Parameters
    ----------
    latency_critical : iterable of (ideal_ms, measured_ms, bound_ms)
        The tail alone, the tail measured, and its bound, for each latency-critical app.
    best_effort : iterable of (solo, real)
        Progress alone and measured, for each best-effort app.
    importance : float
        Relative importance of latency-critical apps, from 0 to 1.

    Returns
    -------
    Entropy
        0 means no interference; 1 is the worst.

    Raises
    ------
    ValueError
        If a latency or a progress is not above 0, or an ideal is above its bound.
    """
    return Entropy(*_lull.entropy(list(latency_critical), list(best_effort), importance))


def equivalence(
    target: float,
    first: Iterable[tuple[float, float]],
    second: Iterable[tuple[float, float]],
) -> float | None:
    """Return how much more of a resource the first policy needs than the second.

    Parameters
    ----------
    target : float
        The entropy that both are to reach.
    first, second : iterable of (amount, entropy)
        What was measured under each.

    Returns
    -------
    float or None
        Above 0 the second is better; None if one does not reach the target within what was
        measured.
    """
    return _lull.equivalence(target, list(first), list(second))


def tlt(latencies_ms: Iterable[float], percentile: float = 99.0) -> TailBound:
    """Return the bound of tail latency on throughput for single latencies.

    Parameters
    ----------
    latencies_ms : iterable of float
        Latencies in ms.
    percentile : float
        The percentile of the tail, above 0 and below 100.

    Returns
    -------
    TailBound
        The tail in ms, and tail over mean latency with its bound.

    Raises
    ------
    ValueError
        If there are no latencies, or the percentile is not between 0 and 100.
    """
    return TailBound(*_lull.tlt(list(latencies_ms), percentile))
