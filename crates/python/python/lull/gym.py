"""A Gymnasium environment: apps that share one machine (`pip install lull[gym]`).

Needs `gymnasium` and `numpy`, which the rest of the package does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ._lull import Environment, Observation, Plan, Scenario
from ._measure import Entropy

__all__ = ["ColocationEnv"]

#: Largest value of an observation: a tail of ten times its bound is as bad as any longer one.
CEILING = 10.0

Reward = Callable[[Observation, Entropy], float]


class ColocationEnv(gymnasium.Env):
    """Apps that share one simulated machine; the agent divides its cores and cache ways.

    **Observation**, each in [0, 10]: for a latency-critical app its tail over the bound, its
    load over its largest load (over 1000 requests/s where the scenario has no `max_load`) and
    its unanswered requests per core; for a best-effort app its progress over that alone; then
    the utilisation of every core. A tail without a request counts as 0.

    **Action**: for each app how many cores it may use, less one; then, if the cache can be
    divided, how many ways, less one. Latency-critical apps get cores and ways from the lowest
    on, one after another, and best-effort apps from the highest down; what is too much for the
    machine is shared.

    **Reward**: `1 - E_S`, in [0, 1], unless `reward` says otherwise.

    An episode is truncated after `epochs` epochs and never terminates by itself. The seed of
    `reset` decides that of the simulation. `seen` is the `lull.Observation` of the last epoch.

    Parameters
    ----------
    scenario : Scenario, str or os.PathLike
        A scenario with `[node]`, or the path or text of one.
    epochs : int
        Epochs of an episode.
    epoch_s : float
        Length of an epoch in seconds.
    reward : callable, optional
        From what was seen and the entropy to the reward of an epoch.

    Raises
    ------
    ValueError
        If an episode has no epoch.
    ConfigError
        If the scenario cannot be used, or has no `[node]`.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    """What Gymnasium wants to know: there is nothing to render."""

    def __init__(
        self,
        scenario: Scenario | str | os.PathLike[str],
        *,
        epochs: int = 120,
        epoch_s: float = 0.5,
        reward: Reward | None = None,
    ) -> None:
        if epochs < 1:
            raise ValueError(f"epochs = {epochs}: an episode has one epoch at least")
        if not isinstance(scenario, Scenario):
            scenario = Scenario.from_toml(scenario)
        self.scenario = scenario
        """The scenario."""
        self.epochs = epochs
        """Epochs of an episode."""
        self.epoch_s = epoch_s
        """Length of an epoch, in seconds."""
        self._reward = reward or (lambda _, entropy: 1.0 - entropy.system)
        self._environment = Environment(self.scenario, epoch_s=epoch_s)
        self._machine, self._apps = self._environment.machine, self._environment.apps
        knobs = {knob for knob, _ in self._machine.knobs}
        self._ways = self._machine.cache_ways if "cache-ways" in knobs else None
        sizes = [self._machine.cores] * len(self._apps)
        sizes += [self._ways] * len(self._apps) if self._ways else []
        self.action_space = spaces.MultiDiscrete(sizes)
        """The actions: cores of each app, then ways of each, less one."""
        length = sum(3 if app.latency_critical else 1 for app in self._apps) + self._machine.cores
        self.observation_space = spaces.Box(0.0, CEILING, (length,), np.float32)
        """The observations: numbers without unit, from 0 to 10."""
        self._epoch = 0
        self.seen: Observation | None = None
        """What the last epoch measured; None before the first `reset`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode; its first epoch passes under the machine's own settings.

        Parameters
        ----------
        seed : int, optional
            Decides the seed of the simulation.
        options : dict, optional
            Not used.

        Returns
        -------
        observation, info
            What was observed, and `entropy` with `refused`, as `step` has them.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**63))
        self._environment = Environment(self.scenario, seed=drawn, epoch_s=self.epoch_s)
        self._epoch = 0
        self.seen, entropy, _ = self._environment.step()
        return self._observe(self.seen), {"entropy": Entropy(*entropy), "refused": []}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Apply an action, and let one epoch pass.

        Parameters
        ----------
        action : numpy.ndarray of int
            For each app the number of its cores, less one; then of its ways, less one.

        Returns
        -------
        observation, reward, terminated, truncated, info
            `info["entropy"]` is the `lull.Entropy` of the epoch, and `info["refused"]` says
            which settings the machine refused.

        Raises
        ------
        ValueError
            If the action is not in the action space.
        """
        seen, parts, refused = self._environment.step(self.plan(action))
        self._epoch, self.seen = self._epoch + 1, seen
        entropy = Entropy(*parts)
        reward = float(self._reward(seen, entropy))
        info = {"entropy": entropy, "refused": refused}
        return self._observe(seen), reward, False, self._epoch >= self.epochs, info

    def plan(self, action: NDArray[Any]) -> Plan:
        """Return the plan of an action.

        Parameters
        ----------
        action : numpy.ndarray of int
            An element of the action space.

        Returns
        -------
        Plan
            The cores, and ways, of each app.

        Raises
        ------
        ValueError
            If the action is not in the action space.
        """
        if not self.action_space.contains(np.asarray(action, self.action_space.dtype)):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        counts = [int(count) + 1 for count in action]
        plan, apps = Plan(), len(self._apps)
        for app, cores in zip(self._apps, self._runs(counts[:apps], self._machine.cores)):
            plan.set("cores", cores, of=app.name)
        if self._ways:
            for app, ways in zip(self._apps, self._runs(counts[apps:], self._ways)):
                plan.set("cache-ways", ways, of=app.name)
        return plan

    def _runs(self, counts: list[int], size: int) -> list[range]:
        """Return a run of `count` units for each app."""
        runs, low, high = [], 0, size
        for app, count in zip(self._apps, counts):
            if app.latency_critical:
                first = min(low, size - count)
                low = first + count
            else:
                first = max(high - count, 0)
                high = first if first > 0 else size
            runs.append(range(first, first + count))
        return runs

    def _observe(self, seen: Observation) -> NDArray[Any]:
        values: list[float] = []
        for spec, app in zip(self._apps, seen.apps):
            if spec.latency_critical:
                values.append((app.tail_ms or 0.0) / (spec.bound_ms or 1.0))
                values.append((app.offered_per_s or 0.0) / (spec.max_load_per_s or 1e3))
                values.append((app.outstanding or 0) / self._machine.cores)
            else:
                values.append((app.progress_per_s or 0.0) / (spec.solo_per_s or 1.0))
        values += [core.utilisation or 0.0 for core in seen.cores]
        return np.clip(np.asarray(values, np.float32), 0.0, CEILING)
