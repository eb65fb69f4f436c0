"""The agent in this process: it observes a host, lets a policy decide, and writes the knobs.

Examples
--------
>>> with lull.agent.start("lull.toml", dry_run=True) as agent:        # doctest: +SKIP
...     for observation in itertools.islice(agent, 10):
...         print(observation.time_s, observation.entropy, observation.journal)

>>> async with lull.agent.start("lull.toml") as agent:                # doctest: +SKIP
...     async for observation in agent:
...         print(observation.app("search").tail_ms)
"""

from __future__ import annotations

import atexit
import os
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

from . import _lull
from ._lull import AgentObservation, AgentRun, App, Machine
from ._simulate import Policy, _named
from .errors import AgentError

if TYPE_CHECKING:
    # Only agents need it, and it takes a fifth of the time that the package's import takes.
    import asyncio

__all__ = ["Agent", "AgentObservation", "start"]

#: Longest time limit of a decision: the guard ends an agent that does not beat for five seconds.
_LIMIT_MAX_S = 1.0


def start(
    config: str | os.PathLike[str],
    *,
    policy: Policy | type[Policy] | None = None,
    steer: bool = False,
    time_limit_s: float | None = None,
    shadow: str | None = None,
    dry_run: bool = False,
    program: str | os.PathLike[str] | None = None,
) -> Agent:
    """Start an agent in this process, as `lull run` does in its own.

    It starts or finds the apps of the config, measures references, and takes the knobs. The
    agent runs on a thread of its own, without the interpreter's lock: a busy interpreter delays
    no epoch. `Agent.stop`, the end of a `with` block and the end of the interpreter restore every
    knob; if the process is killed, the guard does, which is a process of its own.

    Parameters
    ----------
    config : str or os.PathLike
        The path of a config, or its text; a `str` with a line break or a `=` is a text.
    policy : Policy, optional
        A policy of yours (a class or an object) that decides beside that of the config and
        changes nothing: what it would do is in `AgentObservation.shadow` and in the record.
    steer : bool
        Let `policy` act in place of the config's. It then sets real knobs of this machine.
    time_limit_s : float, optional
        How long a decision of `policy` may take, at most 1 s; by default half an epoch. If it
        takes longer, raises, or returns what is not a plan for this machine, the SLO-safe state is
        in force until it decides again; the journal has the cause.
    shadow : str, optional
        A policy of Lull that decides beside the acting one, as `lull run --shadow`.
    dry_run : bool
        Write no knob; the journal has what would have been set.
    program : str or os.PathLike, optional
        The program `lull` of the same version, which runs as the guard and as any app whose
        `start` names it; by default the one in `PATH`.

    Returns
    -------
    Agent
        The running agent: iterate over it, and stop it.

    Raises
    ------
    ConfigError
        If the config cannot be used here, with the text, file, line and key of the command.
    AgentError
        If the program is missing or of another version, another agent runs, or an app, a gauge,
        the record or the guard cannot be started. No knob is changed then.
    """
    if steer and policy is None:
        raise ValueError("steer=True is for a policy of yours: give policy, or leave steer out")
    if policy is not None and not steer and shadow is not None:
        raise ValueError("policy and shadow both decide beside the config's: give one of them")
    if policy is None and time_limit_s is not None:
        raise ValueError("time_limit_s is for a policy of yours: give policy, or leave it out")
    if time_limit_s is not None and not 0.0 < time_limit_s <= _LIMIT_MAX_S:
        raise ValueError(f"time_limit_s = {time_limit_s}: give seconds above 0, 1 at most")
    if isinstance(policy, str):
        raise TypeError(
            f"policy = {policy!r}: name a policy of Lull in the config, or as shadow="
        )
    options = {
        "program": _find_program(program),
        "dry_run": dry_run,
        "shadow": shadow,
        "policy": None if policy is None else _named([policy])[0],
        "steer": steer,
        "time_limit_s": time_limit_s,
    }
    return Agent(_lull.agent_start(config, options))


class Agent:
    """An agent that runs in this process; `start` makes one.

    It is an iterator of `AgentObservation`, one for each epoch, that waits for the next, and an
    asynchronous one. It is a context manager of both kinds, which stops the agent at the end.
    An observation that is not read within 600 epochs is dropped; `dropped` counts them.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._error: BaseException | None = None
        #: Set while the event loop waits for an observation.
        self._bell: asyncio.Future[None] | None = None
        _running.add(self)

    @property
    def record(self) -> os.PathLike[str]:
        """The file that the run is recorded in; `lull.records.open` reads it."""
        return self._run.record

    @property
    def page(self) -> str | None:
        """Where the live page is, in words; None without one."""
        return self._run.page

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self._run.machine

    @property
    def apps(self) -> list[App]:
        """The apps with their measured references, in the order of observations."""
        return self._run.apps

    @property
    def dropped(self) -> int:
        """Observations that were dropped because they were not read."""
        return self._run.dropped

    @property
    def ended(self) -> bool:
        """Whether the run has ended; every knob is then as it was."""
        return self._run.ended

    def take_notices(self) -> list[str]:
        """Return what the command would have printed since the last call.

        Returns
        -------
        list of str
            One text for each notice.
        """
        return self._run.take_notices()

    def __iter__(self) -> Agent:
        return self

    def __next__(self) -> AgentObservation:
        observation = self._run.wait()
        if observation is None:
            self.stop()
            raise StopIteration
        return observation

    def __aiter__(self) -> Agent:
        return self

    async def __anext__(self) -> AgentObservation:
        while (observation := self._run.take()) is None:
            if self._run.ended:
                self.stop()
                raise StopAsyncIteration
            await self._next_bell()
        return observation

    async def _next_bell(self) -> None:
        """Wait until there may be an observation; a wait that is cancelled disturbs no other."""
        import asyncio

        loop = asyncio.get_running_loop()
        if self._bell is None or self._bell.get_loop() is not loop:
            self._bell = loop.create_future()
            loop.add_reader(self._run.fileno(), self._ring, self._bell)
        await asyncio.shield(self._bell)

    def _ring(self, bell: asyncio.Future[None]) -> None:
        bell.get_loop().remove_reader(self._run.fileno())
        self._bell = None
        if not bell.done():
            bell.set_result(None)

    def stop(self) -> str:
        """Restore every knob, end what the agent has started, and close the record.

        A second call returns the same. Signals are handled after the knobs are restored.

        Returns
        -------
        str
            How the run ended, as the command prints it.

        Raises
        ------
        AgentError
            If the run had failed; the knobs are restored all the same.
        RestoreError
            If knobs could not be restored.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._run.stop()
        except Exception as error:
            self._error = error
            raise
        finally:
            _running.discard(self)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception as failure:
            # What the iteration has raised already is on its way.
            if failure is not error:
                raise

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Even if the task is cancelled, the knobs are restored before the block is left.
        self.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "running"
        return f"<lull.agent.Agent, {state}, recording to {self.record}>"


#: The agents that are to be stopped when the interpreter ends.
_running: weakref.WeakSet[Agent] = weakref.WeakSet()


def _stop_all() -> None:
    for agent in list(_running):
        try:
            agent.stop()
        except Exception:
            # Of a fork, or an error that its own `stop` would have raised: nothing can be done.
            pass


atexit.register(_stop_all)


def _find_program(program: str | os.PathLike[str] | None) -> str:
    """Return the path of the program `lull`, which must be of this version."""
    import shutil
    import subprocess

    found = shutil.which("lull") if program is None else os.fspath(program)
    if found is None:
        raise AgentError(
            "the program `lull` is not in PATH; the agent's guard is that program: install it, or "
            "give program="
        )
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise AgentError(f"{found}: cannot be run as the program `lull`: {error}") from error
    version = done.stdout.strip().removeprefix("lull ")
    if version != _lull.VERSION:
        raise AgentError(
            f"{found}: is lull {version}, and this package {_lull.VERSION}: the guard must be of "
            "the same version"
        )
    return os.path.abspath(found)
