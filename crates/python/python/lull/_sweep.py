"""Sweeps: a scenario at every setting of a grid, over processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from ._lull import Scenario, Table
from ._simulate import PolicyLike, _named, simulate
from .errors import SimulationError

#: The columns of `Results.estimates`, which follow those of the grid.
ESTIMATES = (
    "policy",
    "seed",
    "figure",
    "unit",
    "mean",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "difference_percent",
)

_Setting = dict[str, Any]
_Run = tuple[_Setting, "int | None"]
_Job = tuple[Scenario, "Sequence[PolicyLike] | None", "int | None"]

#: What a worker process runs; set once when it begins.
_job: _Job | None = None


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Iterable[Any]],
    policies: Sequence[PolicyLike] | None = None,
    seeds: Iterable[int] | None = None,
    *,
    replications: int | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Table:
    """Simulate a scenario at every setting of a grid.

    Every combination of the grid's values is one run for each seed. Runs are spread over
    processes, so that policies in Python do not wait for each other's interpreter. The table
    does not depend on how many there are.

    Parameters
    ----------
    scenario : Scenario
        The system and its load.
    grid : mapping of str to iterable
        The values of each key, such as `{"app[search].threads": [1, 2, 4]}`; keys are those of
        `Scenario.with_values`.
    policies : sequence of str or Policy, optional
        As in `simulate`. A policy of your own must be picklable: defined in a module.
    seeds : iterable of int, optional
        One run for each, the same at every setting; by default the seed of the scenario.
    replications : int, optional
        Replications of each run and policy; by default what the scenario says.
    processes : int, optional
        Worker processes at most; by default one for each CPU that this process may use.
    progress : callable, optional
        Called with the finished and all runs after each run.

    Returns
    -------
    Table
        A column for each key of the grid, then those of `Results.estimates`; rows in the order
        of the grid, the seeds and the policies.

    Raises
    ------
    ConfigError, SimulationError, PlanError
        As `simulate`, at the first run in this order that fails; the other runs are ended. From
        Python 3.11 on a note names the run.
    TypeError
        If a policy cannot be sent to another process.
    """
    axes = {key: list(values) for key, values in grid.items()}
    wanted: list[int | None] = [None] if seeds is None else list(seeds)
    for name, values in [*axes.items(), ("seeds", wanted)]:
        if not values:
            raise ValueError(f"{name} has no value: give one at least, or leave it out")
    if processes is not None and processes < 1:
        raise ValueError(f"processes = {processes}: give one at least")
    taken = [key for key in axes if key in ESTIMATES]
    if taken:
        raise ValueError(f"`{taken[0]}` is a column of the results, not a key of a scenario")
    _check_picklable(policies or [])
    settings = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    runs = [(setting, seed) for setting in settings for seed in wanted]
    count = min(processes or len(os.sched_getaffinity(0)), len(runs))
    columns: dict[str, list[Any]] = {name: [] for name in (*axes, *ESTIMATES)}
    job = (scenario, policies, replications)
    with ProcessPoolExecutor(
        count, multiprocessing.get_context(), initializer=_begin, initargs=job
    ) as pool:
        try:
            futures = [pool.submit(_run, run) for run in runs]
            for at, (run, future) in enumerate(zip(runs, futures)):
                _add(columns, run, _result(run, future))
                if progress is not None:
                    progress(at + 1, len(runs))
        except BaseException:
            _end(pool)
            raise
    return Table.from_dict({name: _cells(values) for name, values in columns.items()})


def _check_picklable(policies: Sequence[PolicyLike]) -> None:
    for name, policy in _named(policies):
        try:
            pickle.dumps(policy)
        except Exception as error:
            raise TypeError(
                f"policy `{name}` cannot be sent to another process: define its class at the "
                f"top of a module, not in a function ({error})"
            ) from error


def _begin(*job: Any) -> None:
    """Take note of the job in a worker; the parent handles Ctrl-C."""
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _job = job


def _run(run: _Run) -> dict[str, list[Any]]:
    """Run one setting with one seed in a worker."""
    assert _job is not None, "a worker begins with its job"
    (scenario, policies, replications), (setting, seed) = _job, run
    if setting:
        scenario = scenario.with_values(setting)
    seeds = None if seed is None else [seed]
    results = simulate(scenario, policies, seeds, replications=replications, threads=1)
    return results.estimates().to_dict()


def _result(run: _Run, future: Future[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the estimates of a run; an exception of it has a note that names it."""
    setting, seed = run
    parts = [f"{key} = {value!r}" for key, value in setting.items()]
    name = ", ".join(parts if seed is None else [*parts, f"seed = {seed}"]) or "its own values"
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise SimulationError(
            f"a worker process ended before the run with {name} was done: it was killed, or "
            'memory is short (fewer processes need less), or a script that sweeps has no '
            '`if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        if hasattr(error, "add_note"):
            error.add_note(f"in the run with {name}")
        raise


def _add(columns: dict[str, list[Any]], run: _Run, estimates: dict[str, list[Any]]) -> None:
    rows = len(estimates["policy"])
    for key, value in run[0].items():
        columns[key].extend([value] * rows)
    for name in ESTIMATES:
        columns[name].extend(estimates[name])


def _end(pool: ProcessPoolExecutor) -> None:
    """End the workers, which may be in simulations of hours."""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _cells(values: list[Any]) -> list[Any]:
    """Return the values as cells: numbers or texts; what is neither is a text."""
    is_number = all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        for value in values
    )
    return values if is_number else [None if it is None else str(it) for it in values]
