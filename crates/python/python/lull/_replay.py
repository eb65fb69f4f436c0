"""Recorded runs under other policies."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from . import _lull
from ._lull import Replay
from ._simulate import PolicyLike, _named


def replay(
    record: str | os.PathLike[str],
    policies: Sequence[PolicyLike],
    *,
    part: str | None = None,
    skip_s: float | None = None,
    max_error: float = 25.0,
    replications: int = 5,
    seed: int = 1,
    threads: int | None = None,
) -> Replay:
    """Predict what other policies would have done with a recorded run.

    A simulated machine is fitted to the record. The recorded policy is replayed first; the
    others are predicted only if that reproduces the record. The numbers are those of
    `lull replay`. The interpreter's lock is released; Ctrl-C ends the call at once.

    Parameters
    ----------
    record : str or os.PathLike
        The file that `lull run` or `lull compare` wrote.
    policies : sequence of str or Policy
        Names in `lull.policies()`, with the recorded config's keys if they are its own, and
        policies of your own (classes or objects).
    part : str, optional
        Which policy's part of a record of several; needed only there.
    skip_s : float, optional
        Seconds left out at the beginning of each block; by default a quarter of the shortest,
        at most 10.
    max_error : float
        Predict only if the recorded policy is reproduced to so many percent.
    replications : int
        Replications of every policy, from 2 to 1000.
    seed : int
        Seed of all random numbers.
    threads : int, optional
        Threads at most; by default one for each core.

    Returns
    -------
    Replay
        `results` has the tables of `simulate`, the recorded policy first, and `reproduction()`
        the figures as measured and as replayed.

    Raises
    ------
    RecordError
        If the file is not a record, is damaged, or has no such part.
    ReplayError
        If the record lacks what a replay needs, or the replay is off by more than `max_error`.
    ConfigError
        If there is no such policy, or it cannot run on the recorded machine or on its model.
    PlanError
        If a policy of yours wants what the machine does not have.

    Examples
    --------
    >>> replay = lull.replay("docs/notebooks/day.db", ["even"], replications=2)
    >>> replay.results.policies
    ['unmanaged (recorded)', 'even']
    """
    chosen = _named(policies)
    if not chosen:
        raise ValueError("policies is empty: give one at least")
    if not (max_error > 0.0 and math.isfinite(max_error)):
        raise ValueError(f"max_error = {max_error}: write a percentage above 0")
    if not 2 <= replications <= 1000:
        raise ValueError(f"replications = {replications}: give from 2 to 1000")
    if skip_s is not None and not (skip_s >= 0.0 and math.isfinite(skip_s)):
        raise ValueError(f"skip_s = {skip_s}: give seconds, 0 or more")
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}: give one at least, or leave it out")
    extent = {
        "part": part,
        "skip_s": skip_s,
        "max_error": max_error,
        "replications": replications,
        "seed": seed,
        "threads": threads,
    }
    return _lull.replay(os.fspath(record), chosen, extent)
