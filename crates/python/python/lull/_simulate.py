"""Simulations under policies of the registry and of the caller."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Sequence
from typing import Union

from . import _lull
from ._lull import App, Machine, Observation, Plan, PolicyRng, Results, Scenario

# A thread that calls a policy while the interpreter ends would abort the process. Exit functions
# run in reverse: the agents of `lull.agent`, which is imported later, have stopped by then.
atexit.register(_lull.end_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lull.forget_calls)


class Policy:
    """Base of policies that are written in Python.

    A policy decides at the end of each epoch. Every replication, and every server of a tier,
    has an object of its own: a class is called without arguments, an object is copied with
    `copy.deepcopy`. Draw random numbers only from `rng`, so that a seed gives one result.

    Examples
    --------
    >>> class Halves(lull.Policy):
    ...     def start(self, machine, apps):
    ...         self.cores = machine.cores
    ...     def decide(self, seen, rng):
    ...         plan = lull.Plan()
    ...         plan.set("cores", range(self.cores // 2), of="search")
    ...         return plan
    """

    def start(self, machine: Machine, apps: tuple[App, ...]) -> None:
        """Take note of the machine and its apps.

        Called once before the first `decide`, and once when the scenario is checked.

        Parameters
        ----------
        machine : Machine
            What can be set: its cores, cache ways, frequencies and knobs.
        apps : tuple of App
            The apps with their objectives, in the order of `Observation.apps`.
        """

    def decide(self, seen: Observation, rng: PolicyRng) -> Plan | None:
        """Return the wanted settings after an epoch.

        Parameters
        ----------
        seen : Observation
            What was measured in the epoch.
        rng : PolicyRng
            The random numbers of the run.

        Returns
        -------
        Plan or None
            The settings; a knob that is not named stays as it is. None keeps all.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `decide`")


PolicyLike = Union[str, Policy, "type[Policy]"]


def simulate(
    scenario: Scenario,
    policies: Sequence[PolicyLike] | None = None,
    seeds: Iterable[int] | None = None,
    *,
    replications: int | None = None,
    precision: float | None = None,
    figure: str | None = None,
    threads: int | None = None,
) -> Results:
    """Simulate a scenario under several policies.

    All policies meet the same requests in replications of the same number. The results are
    those of `lull sim` for the same seed, to the last bit, on any number of threads. The
    interpreter's lock is released; Ctrl-C ends the call at once.

    Parameters
    ----------
    scenario : Scenario
        The system and its load.
    policies : sequence of str or Policy, optional
        Names in `lull.policies()`, labels of the scenario, and policies of your own (classes or
        objects), the reference of paired differences first. By default those of the scenario.
    seeds : iterable of int, optional
        One run for each; by default the seed of the scenario.
    replications : int, optional
        Replications for each seed and policy; by default what the scenario says.
    precision : float, optional
        Replicate until half the 95 % interval of `figure` is at most this share of its mean,
        such as 0.02, under every policy: `run.precision` of the scenario. `replications` is
        then where it begins. Where the scenario's `most` (by default 100) replications do not
        reach it, `Results.notices` says so.
    figure : str, optional
        The figure that `precision` is of, such as "p95[search]"; `[search]` may be left out
        where one app has it. By default the scenario's, or else "p95".
    threads : int, optional
        Threads at most; by default one for each core.

    Returns
    -------
    Results
        A table for libraries that read Arrow data, and further tables.

    Raises
    ------
    ConfigError
        If the scenario or a policy cannot be used.
    SimulationError
        If a simulation reaches a bound.
    PlanError
        If a policy of yours wants what the machine does not have.
    """
    if not isinstance(scenario, Scenario):
        raise TypeError(
            f"{scenario!r} is not a scenario: give lull.Scenario.from_toml(path or text)"
        )
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}: give one at least, or leave it out")
    if figure is not None and precision is None:
        raise ValueError(f"figure = {figure!r} is of a precision: give precision, such as 0.02")
    chosen = _named(policies or [])
    wanted: list[int | None] = [None] if seeds is None else list(seeds)
    if not wanted:
        raise ValueError("seeds is empty: give one at least, or leave it out")
    if precision is not None:
        scenario = scenario.with_precision(precision, figure, replications)
        # A fixed number would replace the precision.
        replications = None
    return _lull.simulate(scenario, chosen, wanted, replications, threads)


def _named(policies: Sequence[PolicyLike]) -> list[tuple[str, object]]:
    """Give each policy a name; of two with the same name the later has a number behind it."""
    if isinstance(policies, (str, Policy, type)):
        raise TypeError("policies is a list: write policies=[...]")
    named: list[tuple[str, object]] = []
    for policy in policies:
        if isinstance(policy, str):
            named.append((policy, None))
            continue
        kind = policy if isinstance(policy, type) else type(policy)
        if not issubclass(kind, Policy):
            raise TypeError(f"{policy!r} is not a policy: give a name, or derive from lull.Policy")
        name = str(getattr(policy, "name", None) or kind.__name__)
        taken = {known for known, _ in named}
        free = (f"{name} {number}" for number in range(2, len(policies) + 2))
        if name in taken:
            name = next(other for other in free if other not in taken)
        named.append((name, policy))
    return named
