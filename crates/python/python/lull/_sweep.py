"""Sweeps: a scenario at every setting of a grid, over processes or a Ray cluster."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._cells import ESTIMATES, Cell, Done, Engine, Failed, Job, Lost, Rows, raise_failure
from ._lull import Scenario, Table
from ._simulate import PolicyLike, _named
from .errors import WorkerLostError

if TYPE_CHECKING:
    from ._dataset import Dataset

#: A chunk of cells takes about as long, so that handing it out costs little in comparison.
_CHUNK_S = 1.0
#: Longest wait for a result, so that the dataset is written while cells take long.
_WAIT_S = 2.0


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Iterable[Any]],
    policies: Sequence[PolicyLike] | None = None,
    seeds: Iterable[int] | None = None,
    *,
    replications: int | None = None,
    precision: float | None = None,
    figure: str | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    engine: Literal["processes", "ray"] = "processes",
    path: str | os.PathLike[str] | None = None,
    retries: int = 2,
) -> Table:
    """Simulate a scenario at every setting of a grid.

    Every combination of the grid's values with each seed is a cell. Cells are spread over
    processes, so that policies in Python do not wait for each other's interpreter. The table
    does not depend on how many there are, nor on the engine.

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
    precision : float, optional
        Replicate each run until half the 95 % interval of `figure` is at most this share of its
        mean, as in `simulate`. Where that is not reached, the interval of the row is wider.
    figure : str, optional
        The figure that `precision` is of, such as "p95[search]"; as in `simulate`.
    processes : int, optional
        Workers at most; by default one for each CPU that this process, or the cluster, may use.
    progress : callable, optional
        Called with the finished and all cells after each cell. Without it a bar is shown on
        standard error if that is a terminal.
    engine : str
        "processes" on this machine, or "ray": the cluster that `ray.init` has connected to or
        RAY_ADDRESS names, or else a local one for the time of the call. It needs
        `pip install "lull[ray]"`.
    path : str or os.PathLike, optional
        A directory that gets the rows as Parquet files while the sweep runs. Cells that are in
        it are not run again, so that a killed sweep goes on where it was. It needs pyarrow.
    retries : int
        How often a cell is run again whose worker has died.

    Returns
    -------
    Table
        A column for each key of the grid, then those of `Results.estimates`; rows in the order
        of the grid, the seeds and the policies.

    Raises
    ------
    ConfigError, SimulationError, PlanError
        As `simulate`, at the first cell in this order that fails; the others are ended. From
        Python 3.11 on a note names the cell.
    WorkerLostError
        If the worker of a cell has died once more than `retries`.
    DatasetError
        If `path` has rows of another scenario, version or grid, or another sweep writes to it.
    ImportError
        If the package that `engine` or `path` needs is missing.
    TypeError
        If a policy cannot be sent to another process.
    """
    axes = {key: list(values) for key, values in grid.items()}
    wanted: list[int | None] = [None] if seeds is None else list(seeds)
    _check_arguments(axes, wanted, processes, engine, retries)
    _check_picklable(policies or [])
    if precision is not None:
        scenario = scenario.with_precision(precision, figure, replications)
        # A fixed number would replace the precision.
        replications = None
    elif figure is not None:
        raise ValueError(f"figure = {figure!r} is of a precision: give precision, such as 0.02")
    settings = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    pairs = itertools.product(settings, wanted)
    cells = [Cell(number, setting, seed) for number, (setting, seed) in enumerate(pairs)]
    job: Job = (scenario, policies, replications)
    dataset = None if path is None else _open_dataset(path, job, axes)
    try:
        rows = {} if dataset is None else dataset.load(cells)
        driver = _Driver(cells, rows, dataset, progress or _bar(len(cells)), retries)
        if driver.queue:
            driver.run(_start(engine, job, processes, len(driver.queue)))
    finally:
        if dataset is not None:
            dataset.close()
    return _table(axes, cells, driver.rows)


def _check_arguments(
    axes: dict[str, list[Any]],
    seeds: list[int | None],
    processes: int | None,
    engine: str,
    retries: int,
) -> None:
    for name, values in [*axes.items(), ("seeds", seeds)]:
        if not values:
            raise ValueError(f"{name} has no value: give one at least, or leave it out")
    if processes is not None and processes < 1:
        raise ValueError(f"processes = {processes}: give one at least")
    if engine not in ("processes", "ray"):
        raise ValueError(f'engine = {engine!r}: write "processes" or "ray"')
    if retries < 0:
        raise ValueError(f"retries = {retries}: give 0 or more")
    taken = [key for key in axes if key in ESTIMATES]
    if taken:
        raise ValueError(f"`{taken[0]}` is a column of the results, not a key of a scenario")


# What only sweeps need is imported by them: it takes half as long as all the rest of the package.


def _open_dataset(path: str | os.PathLike[str], job: Job, axes: dict[str, list[Any]]) -> Dataset:
    from ._dataset import Dataset

    return Dataset(path, job, axes)


def _start(engine: str, job: Job, processes: int | None, cells: int) -> Engine:
    if engine == "ray":
        from ._ray import Ray

        return Ray(job, processes)
    from ._processes import Processes

    return Processes(job, min(processes or len(os.sched_getaffinity(0)), cells))


class _Driver:
    """Hands out chunks of cells, and collects their rows."""

    def __init__(
        self,
        cells: list[Cell],
        rows: dict[int, Rows],
        dataset: Dataset | None,
        progress: Callable[[int, int], object],
        retries: int,
    ) -> None:
        self.cells = cells
        self.rows = rows
        #: Numbers of the cells to hand out, the lowest first.
        self.queue = [cell.number for cell in cells if cell.number not in rows]
        self._dataset = dataset
        self._progress = progress
        self._retries = retries
        self._failed: Failed | None = None
        #: The chunk of each cell under way, and how often the workers of a cell have died.
        self._under_way: dict[int, int] = {}
        self._deaths: dict[int, int] = {}
        self._chunks = 0
        #: Simulated cells and what they took, from which the size of chunks follows.
        self._simulated = (0, 0.0)
        if rows:
            progress(len(rows), len(cells))

    def run(self, engine: Engine) -> None:
        """Run all cells of the queue."""
        try:
            while True:
                while len(set(self._under_way.values())) < engine.slots:
                    chunk = self._next_chunk(engine.slots)
                    if not chunk:
                        break
                    self._chunks += 1
                    self._under_way |= {cell.number: self._chunks for cell in chunk}
                    engine.submit(chunk)
                if not self._under_way:
                    break
                for event in engine.wait(_WAIT_S):
                    self._take(event)
                if self._dataset is not None:
                    self._dataset.flush_if_due()
        finally:
            engine.end()
        if self._failed is not None:
            raise_failure(self.cells[self._failed.number], self._failed.error)

    def _next_chunk(self, slots: int) -> list[Cell]:
        count, seconds = self._simulated
        # Single cells until it is known how long they take; then no more than an equal share.
        most = math.ceil(_CHUNK_S * count / seconds) if seconds > 0.0 else 1
        most = max(1, min(most, math.ceil(len(self.queue) / slots)))
        chunk: list[Cell] = []
        while self.queue and len(chunk) < most:
            # A cell whose worker has died runs alone, so that its death costs no other.
            is_suspect = self.queue[0] in self._deaths
            if is_suspect and chunk:
                break
            number = heapq.heappop(self.queue)
            if self._failed is not None and number > self._failed.number:
                continue
            chunk.append(self.cells[number])
            if is_suspect:
                break
        return chunk

    def _take(self, event: Done | Failed | Lost) -> None:
        if isinstance(event, Lost):
            self._take_lost(event)
            return
        del self._under_way[event.number]
        if isinstance(event, Failed):
            if self._failed is None or event.number < self._failed.number:
                self._failed = event
            return
        count, seconds = self._simulated
        self._simulated = (count + 1, seconds + event.seconds)
        self.rows[event.number] = event.rows
        if self._dataset is not None:
            self._dataset.add(self.cells[event.number], event.rows)
        self._progress(len(self.rows), len(self.cells))

    def _take_lost(self, lost: Lost) -> None:
        for number in [*lost.suspects, *lost.others]:
            del self._under_way[number]
            heapq.heappush(self.queue, number)
        for number in lost.suspects:
            deaths = self._deaths[number] = self._deaths.get(number, 0) + 1
            if deaths > self._retries:
                raise WorkerLostError(str(self.cells[number]), deaths, lost.why)


def _bar(cells: int) -> Callable[[int, int], object]:
    """Return a progress bar on standard error; nothing unless that is a terminal."""
    if not sys.stderr.isatty():
        return lambda done, total: None
    begun, first = time.monotonic(), [0]

    def show(done: int, total: int) -> None:
        first[0] = first[0] or done
        passed, fresh = time.monotonic() - begun, done - first[0]
        left = f", {passed / fresh * (total - done):.0f} s left" if fresh else ""
        filled = 30 * done // total
        end = "\n" if done == total else ""
        text = f"\rsweep [{'=' * filled:30}] {done}/{total} cells{left}\x1b[K"
        print(text, end=end, file=sys.stderr, flush=True)

    return show


def _table(axes: dict[str, list[Any]], cells: list[Cell], rows: dict[int, Rows]) -> Table:
    columns: dict[str, list[Any]] = {name: [] for name in (*axes, *ESTIMATES)}
    for cell in cells:
        estimates = rows[cell.number]
        count = len(estimates["policy"])
        for key, value in cell.setting.items():
            columns[key].extend([value] * count)
        for name in ESTIMATES:
            columns[name].extend(estimates[name])
    return Table.from_dict({name: _values(values) for name, values in columns.items()})


def _check_picklable(policies: Sequence[PolicyLike]) -> None:
    for name, policy in _named(policies):
        try:
            pickle.dumps(policy)
        except Exception as error:
            raise TypeError(
                f"policy `{name}` cannot be sent to another process: define its class at the "
                f"top of a module, not in a function ({error})"
            ) from error


def _values(values: list[Any]) -> list[Any]:
    """Return the values as cells: numbers or texts; what is neither is a text."""
    is_number = all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        for value in values
    )
    return values if is_number else [None if it is None else str(it) for it in values]
