"""The engine `ray`: chunks of cells as tasks of a Ray cluster."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ._cells import Cell, Done, Failed, Job, Lost, run_cells

#: Tasks for each CPU of the cluster, so that a worker need not wait for the driver.
_TASKS_PER_CPU = 2


class Ray:
    """Tasks of the cluster of `ray.init`, of that which RAY_ADDRESS names, or of a local one."""

    def __init__(self, job: Job, count: int | None) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError(
                'engine="ray" needs the package ray: pip install "lull[ray]", or use '
                'engine="processes"'
            ) from error
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            options: dict[str, Any] = {"log_to_driver": False}
            # RAY_ADDRESS, which `ray job submit` sets too, names a cluster that has its CPUs.
            # Without it the cluster is our own, even if another one runs on this machine.
            if not os.environ.get("RAY_ADDRESS"):
                options |= {"address": "local", "num_cpus": count, "include_dashboard": False}
            ray.init(**options)
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.slots = _TASKS_PER_CPU * min(count or cpus, cpus)
        self._job = ray.put(job)
        self._task = ray.remote(_run).options(max_retries=0, num_cpus=1)
        self._chunks: dict[Any, list[int]] = {}

    def submit(self, chunk: list[Cell]) -> None:
        """Start a task."""
        self._chunks[self._task.remote(self._job, chunk)] = [cell.number for cell in chunk]

    def wait(self, timeout_s: float) -> list[Done | Failed | Lost]:
        """Return the results of the tasks that have ended, once there is one."""
        under_way = list(self._chunks)
        done, _ = self._ray.wait(under_way, num_returns=1, timeout=timeout_s)
        more, _ = self._ray.wait(under_way, num_returns=len(under_way), timeout=0)
        events: list[Done | Failed | Lost] = []
        for task in {*done, *more}:
            events += self._events(task, self._chunks.pop(task))
        return events

    def _events(self, task: Any, chunk: list[int]) -> list[Done | Failed | Lost]:
        errors = self._ray.exceptions
        try:
            reports: list[Done | Failed | Lost] = list(self._ray.get(task))
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            # Whichever cell it was: the driver runs them again one by one.
            return [Lost(chunk, [], f"its worker ended: {type(error).__name__}")]
        rest = chunk[len(reports) :]
        return [*reports, Lost([], rest, "a cell before them failed")] if rest else reports

    def end(self) -> None:
        """Cancel the tasks; a local cluster that was started here ends."""
        if self._is_ours:
            self._ray.shutdown()
            return
        for task in self._chunks:
            self._ray.cancel(task, force=True)


def _run(job: Job, chunk: list[Cell]) -> list[Done | Failed]:
    """Run the cells of a chunk in a worker of Ray."""
    return list(run_cells(job, chunk))
