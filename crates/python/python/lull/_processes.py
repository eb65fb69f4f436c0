"""The engine `processes`: workers on this machine, one pipe each."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from ._cells import Cell, Done, Failed, Job, Lost, run_cells

#: How often an idle worker looks whether its parent is still there.
_PARENT_CHECK_S = 1.0


@dataclass
class _Worker:
    process: Any
    pipe: connection.Connection
    #: The cells that it was given and has not reported, in order.
    chunk: list[int] = field(default_factory=list)


class Processes:
    """Worker processes that are replaced when they end."""

    def __init__(self, job: Job, count: int) -> None:
        self.slots = count
        self._job = job
        self._context: Any = multiprocessing.get_context()
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(theirs, os.getpid(), self._job), daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def submit(self, chunk: list[Cell]) -> None:
        """Give a chunk to an idle worker; there is one if at most `slots` are under way."""
        worker = next(worker for worker in self._workers if not worker.chunk)
        worker.chunk = [cell.number for cell in chunk]
        try:
            worker.pipe.send(chunk)
        except OSError:
            pass  # It has ended: `wait` reports the chunk as lost.

    def wait(self, timeout_s: float) -> list[Done | Failed | Lost]:
        """Return what workers have reported, once there is something."""
        ends = [end for it in self._workers for end in (it.pipe, it.process.sentinel)]
        connection.wait(ends, timeout_s)
        events: list[Done | Failed | Lost] = []
        for worker in list(self._workers):
            # The order matters: a worker that has ended by now reports nothing more.
            has_ended = not worker.process.is_alive()
            if not self._read(worker, events) or has_ended:
                self._replace(worker, events)
        return events

    def _read(self, worker: _Worker, events: list[Done | Failed | Lost]) -> bool:
        """Read all reports of a worker; false if its pipe is closed."""
        try:
            while worker.pipe.poll():
                report: Done | Failed = worker.pipe.recv()
                events.append(report)
                worker.chunk.remove(report.number)
                if isinstance(report, Failed):
                    # The driver decides what to do with the rest, which was not run.
                    if worker.chunk:
                        events.append(Lost([], worker.chunk, "a cell before them failed"))
                    worker.chunk = []
        except (EOFError, OSError):
            return False
        return True

    def _replace(self, worker: _Worker, events: list[Done | Failed | Lost]) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        self._start()
        if worker.chunk:
            why = f"its worker ended with exit code {worker.process.exitcode}"
            events.append(Lost(worker.chunk[:1], worker.chunk[1:], why))

    def end(self) -> None:
        """End the workers, which may be in simulations of hours."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()


def _work(pipe: connection.Connection, parent: int, job: Job) -> None:
    """Run chunks until the parent has gone; the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while os.getppid() == parent:
            if not pipe.poll(_PARENT_CHECK_S):
                continue
            for report in run_cells(job, pipe.recv()):
                pipe.send(report)
                if os.getppid() != parent:
                    return
    except (EOFError, OSError):
        return
