"""Queueing theory, exact: what the simulator is checked against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _lull

__all__ = ["NetworkState", "SteadyState", "mg1", "mm1", "mmc", "mmck", "mva"]


class SteadyState(NamedTuple):
    """The steady state of a queue."""

    utilisation: float
    response_s: float
    present: float
    """Mean number of requests that wait or are served."""
    lost: float
    """Share of requests that find no room."""


class NetworkState(NamedTuple):
    """The steady state of a closed network."""

    throughput_per_s: float
    response_s: float
    present: list[float]
    """Mean number of requests at each station."""
    utilisation: list[float]


def _state(parts: tuple[float, float, float, float] | None) -> SteadyState | None:
    return None if parts is None else SteadyState(*parts)


def mm1(arrivals_per_s: float, work_s: float) -> SteadyState | None:
    """Return the state of M/M/1; None if it has no steady state."""
    return _state(_lull.mm1(arrivals_per_s, work_s))


def mmc(arrivals_per_s: float, work_s: float, servers: int) -> SteadyState | None:
    """Return the state of M/M/c; None if it has no steady state."""
    return _state(_lull.mmc(arrivals_per_s, work_s, servers))


def mg1(arrivals_per_s: float, work_s: float, cv2: float) -> SteadyState | None:
    """Return the state of M/G/1; `cv2` is the squared coefficient of variation of the work."""
    return _state(_lull.mg1(arrivals_per_s, work_s, cv2))


def mmck(arrivals_per_s: float, work_s: float, servers: int, room: int) -> SteadyState:
    """Return the state of M/M/c/K with `room` requests at most."""
    return SteadyState(*_lull.mmck(arrivals_per_s, work_s, servers, room))


def mva(think_s: float, stations: Iterable[tuple[float, int]], customers: int) -> NetworkState:
    """Return the state of a closed network by exact mean-value analysis.

    Parameters
    ----------
    think_s : float
        Mean time that a customer thinks between two requests, in seconds.
    stations : iterable of (work_s, servers)
        Mean work of a request at each station in seconds, and its servers.
    customers : int
        How many there are.
    """
    return NetworkState(*_lull.mva(think_s, list(stations), customers))
