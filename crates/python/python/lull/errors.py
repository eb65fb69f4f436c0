"""Exceptions of the package; `LullError` is the base of all."""

from __future__ import annotations


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
    """A file that is no record of a run, or a damaged one."""
