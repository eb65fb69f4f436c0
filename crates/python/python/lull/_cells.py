"""Cells of a sweep: what a worker runs, and what it reports. Workers of all engines use this."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ._lull import Scenario
from ._simulate import PolicyLike, simulate

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

Rows = dict[str, list[Any]]
Job = tuple[Scenario, "Sequence[PolicyLike] | None", "int | None"]


@dataclass(frozen=True)
class Cell:
    """One setting with one seed."""

    number: int
    setting: dict[str, Any]
    seed: int | None

    def __str__(self) -> str:
        parts = [f"{key} = {value!r}" for key, value in self.setting.items()]
        if self.seed is not None:
            parts.append(f"seed = {self.seed}")
        return ", ".join(parts) or "its own values"


@dataclass(frozen=True)
class Done:
    """A cell that was simulated, and how long that took."""

    number: int
    rows: Rows
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A cell whose simulation raised an exception."""

    number: int
    error: Exception


@dataclass(frozen=True)
class Lost:
    """Cells whose worker ended: `suspects` may be the reason, `others` were not begun."""

    suspects: list[int]
    others: list[int]
    why: str


class Engine(Protocol):
    """Runs chunks of cells somewhere."""

    #: Chunks that may be under way at once.
    slots: int

    def submit(self, chunk: list[Cell]) -> None: ...
    def wait(self, timeout_s: float) -> list[Done | Failed | Lost]: ...
    def end(self) -> None: ...


class WorkerTraceback(Exception):
    """The cause of an exception in a worker: its traceback there, as a text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_cells(job: Job, chunk: list[Cell]) -> Iterator[Done | Failed]:
    """Run the cells of a chunk in order, until one fails."""
    scenario, policies, replications = job
    for cell in chunk:
        begun = time.monotonic()
        try:
            changed = scenario.with_values(cell.setting) if cell.setting else scenario
            seeds = None if cell.seed is None else [cell.seed]
            results = simulate(changed, policies, seeds, replications=replications, threads=1)
            rows = results.estimates().to_dict()
        except Exception as error:
            yield Failed(cell.number, _portable(error))
            return
        yield Done(cell.number, {name: rows[name] for name in ESTIMATES}, time.monotonic() - begun)


def _portable(error: Exception) -> Exception:
    """Return an exception that can be sent to another process, with its traceback as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.__traceback__ = None
    # An exception's cause is not pickled: it is sent as an attribute.
    error._lull_traceback = text  # type: ignore[attr-defined]
    return error


def raise_failure(cell: Cell, error: Exception) -> None:
    """Raise the exception of a cell with a note that names it."""
    text = error.__dict__.pop("_lull_traceback", "")
    if hasattr(error, "add_note"):
        error.add_note(f"in the run with {cell}")
    raise error from WorkerTraceback(text)
