"""Exceptions of the package; `LullError` is the base of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._lull import Table


class LullError(Exception):
    """Base of the package's exceptions."""


class ConfigError(LullError, ValueError):
    """A scenario that cannot be used.

    The text is the one that the command prints; its parts are attributes.

    Attributes
    ----------
    file : str
        The file, or `scenario` for a text that is in none.
    line : int or None
        The line, where it is known.
    key : str
        The key, such as `app[1].name`; empty for the file as a whole.
    message : str
        What is wrong and what to write.
    """

    def __init__(self, text: str, file: str, line: int | None, key: str, message: str) -> None:
        super().__init__(text, file, line, key, message)
        self.file = file
        self.line = line
        self.key = key
        self.message = message

    def __str__(self) -> str:
        return str(self.args[0])


class PlanError(LullError, ValueError):
    """A plan that names a knob or a value that the machine does not have."""


class SimulationError(LullError, RuntimeError):
    """A simulation that cannot be set up, or that reaches a bound."""


class RecordError(LullError, OSError):
    """A file that is not a record of a run, or a damaged one."""


class ReplayError(LullError, RuntimeError):
    """A record that cannot be replayed, or that the replay does not reproduce.

    The text is the one that the command prints.

    Attributes
    ----------
    reproduction : Table or None
        The figures as measured and as replayed, with their errors; None if nothing was replayed.
    """

    def __init__(self, text: str, reproduction: Table | None) -> None:
        super().__init__(text, reproduction)
        self.reproduction = reproduction

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerLostError(SimulationError):
    """A cell of a sweep whose workers have died, by a signal or for want of memory.

    Attributes
    ----------
    cell : str
        The setting and seed of the cell.
    deaths : int
        How many workers have died with it.
    """

    def __init__(self, cell: str, deaths: int, why: str) -> None:
        super().__init__(cell, deaths, why)
        self.cell = cell
        self.deaths = deaths

    def __str__(self) -> str:
        return (
            f"a worker process ended {self.deaths} times before the run with {self.cell} was done "
            f"({self.args[2]}): it was killed, or memory is short (fewer processes need less), or "
            'a script that sweeps has no `if __name__ == "__main__":`'
        )


class DatasetError(LullError, OSError):
    """A directory of a sweep that cannot be used, or belongs to another sweep."""


class AgentError(LullError, RuntimeError):
    """An agent that cannot start, or whose run failed; the text is that of the command."""


class RestoreError(AgentError):
    """Knobs that an agent could not restore; `lull restore` tries again.

    Attributes
    ----------
    left : list of str
        The knobs, each with the reason.
    """

    def __init__(self, text: str, left: list[str]) -> None:
        super().__init__(text, left)
        self.left = left

    def __str__(self) -> str:
        return str(self.args[0])
