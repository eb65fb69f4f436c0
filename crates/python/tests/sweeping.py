"""A sweep that tests kill: run as a program it sweeps into a directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from conftest import NODE

import lull
import lull._dataset

LOAD = "app[search].activity.requests.load[0].rate-per-s"
GRID = {LOAD: [500.0, 700.0, 900.0], "app[batch].threads": [2, 3, 4]}
OPTIONS = {"seeds": [1, 2], "replications": 2}


def many_cells(count: int) -> tuple[lull.Scenario, dict[str, list[int]], dict[str, object]]:
    """A scenario, a grid and options of a sweep of so many small cells."""
    scenario = lull.Scenario.from_toml(NODE)
    scenario = scenario.with_values({"run.warmup": "200ms", "run.length": "1s"})
    options = {"policies": ["unmanaged"], "seeds": range(1, count // 2 + 1), "replications": 1}
    return scenario, {"app[batch].threads": [2, 4]}, options


def is_first(name: str) -> bool:
    """Whether no process has called this with the name before."""
    try:
        os.close(os.open(Path(os.environ["MARKS"]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class KillsOnce(lull.Policy):
    """Kills the first worker that runs it."""

    def decide(self, seen, rng):
        if is_first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)


class Kills(lull.Policy):
    """Kills every worker that runs it with four threads in the batch app."""

    def start(self, machine, apps):
        self.machine = machine

    def decide(self, seen, rng):
        if self.machine.cores == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(lull.Policy):
    """Does nothing, slowly."""

    def decide(self, seen, rng):
        time.sleep(0.004)


def rows_of(path: Path) -> list[tuple[object, ...]]:
    """The rows of all files of a dataset, sorted."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(path).to_table().to_pydict()
    return sorted(zip(*table.values()), key=repr)


if __name__ == "__main__":
    # A policy is known by its module, which here must be that of the tests.
    from sweeping import Slow as Policy

    lull._dataset.FLUSH_S = 0.1
    scenario, grid, options = lull.Scenario.from_toml(NODE), GRID, {"policies": [Policy], **OPTIONS}
    if len(sys.argv) > 3:
        scenario, grid, options = many_cells(int(sys.argv[3]))
    lull.sweep(scenario, grid, **options, processes=2, path=sys.argv[1], engine=sys.argv[2])
