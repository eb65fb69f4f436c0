"""Lull: slack of latency-critical servers, simulated, compared and measured.

Quickstart
----------
>>> import lull
>>> scenario = lull.Scenario.from_toml("examples/sim/colocation.toml")
>>> results = lull.simulate(scenario, policies=["unmanaged", "arq"], seeds=[1, 2])
>>> polars.DataFrame(results)                                      # doctest: +SKIP

The modules `lull.statistics`, `lull.theory` and `lull.records` hold intervals and tests,
queueing theory, and records of runs; `lull.gym` is an environment for reinforcement learning.
"""

from __future__ import annotations

from ._lull import (
    VERSION as __version__,
    App,
    AppObservation,
    CoreObservation,
    Environment,
    Machine,
    Observation,
    Plan,
    PolicyRng,
    Results,
    Scenario,
    Table,
    policies,
)
from ._measure import Entropy, TailBound, entropy, equivalence, tlt
from ._simulate import Policy, simulate
from ._sweep import sweep
from .errors import ConfigError, LullError, PlanError, RecordError, SimulationError
from .search import Best, Candidate, Search

from . import records, statistics, theory

__all__ = [
    "App",
    "AppObservation",
    "Best",
    "Candidate",
    "ConfigError",
    "CoreObservation",
    "Entropy",
    "Environment",
    "LullError",
    "Machine",
    "Observation",
    "Plan",
    "PlanError",
    "Policy",
    "PolicyRng",
    "RecordError",
    "Results",
    "Scenario",
    "Search",
    "SimulationError",
    "Table",
    "TailBound",
    "__version__",
    "entropy",
    "equivalence",
    "policies",
    "records",
    "simulate",
    "statistics",
    "sweep",
    "theory",
    "tlt",
]
