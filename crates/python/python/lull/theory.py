"""Queueing theory, exact: what the simulator is checked against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _lull

__all__ = ["NetworkState", "SteadyState", "mg1", "mm1", "mmc", "mmck", "mva"]


class SteadyState(NamedTuple):
    """The steady state of a queue."""

    utilisation: float
    """Share of time that a server is busy, from 0 to 1."""
    response_s: float
    """Mean time from arrival to departure, in seconds."""
    present: float
    """Mean number of requests that wait or are served."""
    lost: float
    """Share of requests that find no room."""


class NetworkState(NamedTuple):
    """The steady state of a closed network."""

    throughput_per_s: float
    """Requests that complete per second."""
    response_s: float
    """Mean time of a request at all stations, in seconds."""
    present: list[float]
    """Mean number of requests at each station."""
    utilisation: list[float]
    """Share of time that a server of each station is busy, from 0 to 1."""


def _state(parts: tuple[float, float, float, float] | None) -> SteadyState | None:
    return None if parts is None else SteadyState(*parts)


def mm1(arrivals_per_s: float, work_s: float) -> SteadyState | None:
    """Return the steady state of M/M/1.

    Parameters
    ----------
    arrivals_per_s : float
        Mean requests per second, which arrive as a Poisson process.
    work_s : float
        Mean work of a request, in seconds.

    Returns
    -------
    SteadyState or None
        None if there is no steady state, because the load is at or above the capacity.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    return _state(_lull.mm1(arrivals_per_s, work_s))


def mmc(arrivals_per_s: float, work_s: float, servers: int) -> SteadyState | None:
    """Return the steady state of M/M/c.

    Parameters
    ----------
    arrivals_per_s : float
        Mean requests per second, which arrive as a Poisson process.
    work_s : float
        Mean work of a request, in seconds.
    servers : int
        Servers that share one queue.

    Returns
    -------
    SteadyState or None
        None if there is no steady state, because the load is at or above the capacity.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    return _state(_lull.mmc(arrivals_per_s, work_s, servers))


def mg1(arrivals_per_s: float, work_s: float, cv2: float) -> SteadyState | None:
    """Return the steady state of M/G/1 (Pollaczek and Khinchine).

    Parameters
    ----------
    arrivals_per_s : float
        Mean requests per second, which arrive as a Poisson process.
    work_s : float
        Mean work of a request, in seconds.
    cv2 : float
        Squared coefficient of variation of the work; 1 for exponential work.

    Returns
    -------
    SteadyState or None
        None if there is no steady state, because the load is at or above the capacity.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    return _state(_lull.mg1(arrivals_per_s, work_s, cv2))


def mmck(arrivals_per_s: float, work_s: float, servers: int, room: int) -> SteadyState:
    """Return the steady state of M/M/c/K, which loses requests that find no room.

    Parameters
    ----------
    arrivals_per_s : float
        Mean requests per second, which arrive as a Poisson process.
    work_s : float
        Mean work of a request, in seconds.
    servers : int
        Servers that share one queue.
    room : int
        Requests that wait or are served, at most.

    Returns
    -------
    SteadyState
        `lost` is the share of requests that find no room.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
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

    Returns
    -------
    NetworkState
        Of the whole network and of each station.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    return NetworkState(*_lull.mva(think_s, list(stations), customers))
