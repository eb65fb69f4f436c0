"""Lull: slack of latency-critical servers, simulated, compared and measured.

Examples
--------
>>> import lull
>>> scenario = lull.Scenario.from_toml("examples/sim/colocation.toml")
>>> results = lull.simulate(scenario, policies=["unmanaged", "arq"], seeds=[1, 2])
>>> polars.DataFrame(results)                                      # doctest: +SKIP

The modules `lull.statistics`, `lull.theory` and `lull.records` hold intervals and tests,
queueing theory, and records of runs; `lull.agent` runs the agent in this process, and `lull.gym`
is an environment for reinforcement learning.
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
    Replay,
    Results,
    Scenario,
    Table,
    policies,
)
from ._measure import Entropy, TailBound, entropy, equivalence, tlt
from ._replay import replay
from ._simulate import Policy, simulate
from ._sweep import sweep
from .errors import (
    AgentError,
    ConfigError,
    DatasetError,
    LullError,
    PlanError,
    RecordError,
    ReplayError,
    RestoreError,
    SimulationError,
    WorkerLostError,
)
from .search import Best, Candidate, Evidence, FrontSetting, Search

from . import agent, lab, records, statistics, theory

__all__ = [
    "AgentError",
    "App",
    "AppObservation",
    "Best",
    "Candidate",
    "ConfigError",
    "CoreObservation",
    "DatasetError",
    "Entropy",
    "Environment",
    "Evidence",
    "FrontSetting",
    "LullError",
    "Machine",
    "Observation",
    "Plan",
    "PlanError",
    "Policy",
    "PolicyRng",
    "RecordError",
    "Replay",
    "ReplayError",
    "RestoreError",
    "Results",
    "Scenario",
    "Search",
    "SimulationError",
    "Table",
    "TailBound",
    "WorkerLostError",
    "__version__",
    "agent",
    "entropy",
    "equivalence",
    "lab",
    "policies",
    "records",
    "replay",
    "simulate",
    "statistics",
    "sweep",
    "theory",
    "tlt",
]
