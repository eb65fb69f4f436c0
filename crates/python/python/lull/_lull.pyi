import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from typing_extensions import disjoint_base

__all__ = [
    "AgentObservation",
    "AgentRun",
    "App",
    "AppObservation",
    "CoreObservation",
    "Environment",
    "LabReport",
    "Machine",
    "Observation",
    "Plan",
    "PolicyRng",
    "Record",
    "Replay",
    "Results",
    "Scenario",
    "Search",
    "Table",
    "VERSION",
    "agent_start",
    "end_calls",
    "entropy",
    "equivalence",
    "estimate",
    "forget_calls",
    "holm",
    "lab_claims",
    "lab_experiments",
    "lab_run",
    "lab_run_cells",
    "mg1",
    "mm1",
    "mmc",
    "mmck",
    "mva",
    "paired_difference",
    "paired_ratio",
    "policies",
    "proportion_lower",
    "proportion_upper",
    "quantile_lower",
    "quantile_upper",
    "replay",
    "sign_flip_chance",
    "simulate",
    "studentised_interval",
    "tlt",
]

VERSION: str
"""The version of the package."""

@final
class Table:
    @staticmethod
    def from_dict(columns: dict[str, list[Any]]) -> Table: ...
    @staticmethod
    def from_columns(columns: list[tuple[str, str, list[Any]]]) -> Table: ...
    @property
    def column_names(self) -> list[str]: ...
    def column(self, name: str) -> list[Any]:
        """Return the values of a column, with None where one is missing.

        Parameters
        ----------
        name : str
            One of `column_names`.

        Returns
        -------
        list of str, int or float
            One value for each row.

        Raises
        ------
        KeyError
            If there is no such column.
        """
    def to_dict(self) -> dict[str, list[Any]]: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class Results:
    def table(self) -> Table: ...
    def figures(self) -> Table: ...
    def estimates(self) -> Table: ...
    @property
    def policies(self) -> list[str]: ...
    @property
    def notices(self) -> list[str]: ...
    @property
    def warmup_s(self) -> list[float]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class LabReport:
    """The result of an experiment; `lull.lab.run` makes one."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
    @property
    def title(self) -> str:
        """What it shows."""
    @property
    def seeds(self) -> list[int]:
        """The seeds that it ran on."""
    @property
    def quick(self) -> bool:
        """Whether lengths were cut down, so that tolerances need not hold."""
    @property
    def misses(self) -> int:
        """Number of held rows that miss their tolerance."""
    @property
    def remarks(self) -> list[str]:
        """Choices that the paper does not print, and remarks on rows."""
    def rows(self) -> Table:
        """Return a row a figure: printed and measured, with tolerance and verdict.

        Returns
        -------
        Table
            `row`, `paper` (a printed number) or `claim` (in words), `ours` with its interval
            `low` to `high`, independent `values`, `unit`, `tolerance`, `held` (1 if a miss
            fails the experiment), `verdict` and `why`.
        """

@final
class Replay:
    """A recorded run, replayed, and other policies predicted for it; `lull.replay` makes one."""

    @property
    def policy(self) -> str:
        """The policy that acted in the record."""
    @property
    def error(self) -> float:
        """The largest relative error of the reproduction."""
    @property
    def error_of(self) -> str:
        """The figure with that error."""
    @property
    def share(self) -> float:
        """Share of the recorded epochs that was simulated."""
    @property
    def demand_error(self) -> float:
        """Possible error of the demand of requests, as a share of the demand."""
    @property
    def notices(self) -> list[str]:
        """Notices about the record and about how far the figures are valid."""
    @property
    def results(self) -> Results:
        """The predicted figures; the recorded policy is the first."""
    def reproduction(self) -> Table:
        """Return a row a figure: as measured, as replayed, and the relative error.

        Returns
        -------
        Table
            `figure`, `unit`, `measured`, `replayed` and `error`, which is missing for figures
            that are not judged.
        """

@final
class Scenario:
    @staticmethod
    def from_toml(text_or_path: str | os.PathLike[str]) -> Scenario: ...
    @staticmethod
    def from_dict(sections: dict[str, Any]) -> Scenario: ...
    def with_values(self, values: dict[str, Any]) -> Scenario: ...
    def with_precision(
        self, relative: float, figure: str | None, replications: int | None
    ) -> Scenario: ...
    @classmethod
    def from_text(cls, text: str, name: str, base: str | os.PathLike[str]) -> Scenario: ...
    @property
    def toml(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def policies(self) -> list[str]: ...
    @property
    def notices(self) -> list[str]: ...

@final
class Machine:
    @property
    def name(self) -> str: ...
    @property
    def cores(self) -> int: ...
    @property
    def cache_ways(self) -> int | None: ...
    @property
    def frequencies_hz(self) -> list[list[int]]: ...
    @property
    def knobs(self) -> list[tuple[str, str | int | None]]: ...

@final
class App:
    @property
    def name(self) -> str: ...
    @property
    def latency_critical(self) -> bool: ...
    @property
    def percentile(self) -> float | None: ...
    @property
    def bound_ms(self) -> float | None: ...
    @property
    def ideal_ms(self) -> float | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def max_load_per_s(self) -> float | None: ...
    @property
    def solo_per_s(self) -> float | None: ...

@final
class AppObservation:
    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def tail_ms(self) -> float | None: ...
    @property
    def mean_ms(self) -> float | None: ...
    @property
    def p50_ms(self) -> float | None: ...
    @property
    def p95_ms(self) -> float | None: ...
    @property
    def p99_ms(self) -> float | None: ...
    @property
    def offered_per_s(self) -> float | None: ...
    @property
    def completed_per_s(self) -> float | None: ...
    @property
    def errors_per_s(self) -> float | None: ...
    @property
    def outstanding(self) -> int | None: ...
    @property
    def oldest_ms(self) -> float | None: ...
    @property
    def progress_per_s(self) -> float | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def readings(self) -> dict[str, float | None]: ...

@final
class CoreObservation:
    @property
    def utilisation(self) -> float | None: ...
    @property
    def idle_residency(self) -> float | None: ...
    @property
    def frequency_hz(self) -> int | None: ...

@disjoint_base
class Observation:
    @property
    def time_s(self) -> float: ...
    @property
    def epoch_s(self) -> float: ...
    @property
    def apps(self) -> tuple[AppObservation, ...]: ...
    @property
    def cores(self) -> tuple[CoreObservation, ...]: ...
    @property
    def energy_j(self) -> float | None: ...
    @property
    def cpu_pressure(self) -> float | None: ...
    @property
    def interrupts_per_s(self) -> float | None: ...
    @property
    def packets_per_s(self) -> float | None: ...
    def app(self, name: str) -> AppObservation:
        """Return what was seen of an app.

        Parameters
        ----------
        name : str
            The name of the app.

        Returns
        -------
        AppObservation
            Its latencies, load and progress in the epoch.

        Raises
        ------
        KeyError
            If there is no such app.
        """

@final
class AgentObservation(Observation):
    @property
    def number(self) -> int: ...
    @property
    def entropy(self) -> float: ...
    @property
    def entropy_lc(self) -> float | None: ...
    @property
    def entropy_be(self) -> float | None: ...
    @property
    def policy(self) -> str: ...
    @property
    def safe(self) -> bool: ...
    @property
    def journal(self) -> list[str]: ...
    @property
    def shadow(self) -> list[str]: ...
    @property
    def settings(self) -> dict[tuple[str, str | int | None], str]: ...

@final
class AgentRun:
    @property
    def record(self) -> Path: ...
    @property
    def page(self) -> str | None: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def apps(self) -> list[App]: ...
    @property
    def dropped(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def take_notices(self) -> list[str]: ...
    def fileno(self) -> int: ...
    def take(self) -> AgentObservation | None: ...
    def wait(self) -> AgentObservation | None: ...
    def stop(self) -> str: ...

@final
class PolicyRng:
    def random(self) -> float: ...
    def integers(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, without `high`.

        Parameters
        ----------
        low, high : int
            The range, as of `numpy.random.Generator.integers`.

        Returns
        -------
        int
            The number.

        Raises
        ------
        ValueError
            If `low` is not below `high`.
        """
    def seed(self) -> int: ...

@final
class Plan:
    def __new__(cls) -> Plan: ...
    def set(
        self,
        knob: str,
        value: str | float | bool | Iterable[int],
        of: str | int | None = None,
    ) -> None:
        """Want a setting of a knob; a later one of the same knob replaces it.

        The knob and the value are checked when the plan is applied.

        Parameters
        ----------
        knob : str
            `cores`, `cache-ways`, `memory-bandwidth`, `frequency`, `scheduling` or `coalescing`,
            as far as `Machine.knobs` has them.
        value : str, float, bool or iterable of int
            Numbers of cores or ways (`"0-2"`), percent of the memory bandwidth, Hz or `"2.2GHz"`, a
            class (`"idle"`, `"normal 5"`, `"round-robin 10"`), seconds or `"50us"`.
        of : str or int, optional
            The app, or the number of the frequency domain or card; without it, the machine.
        """
    def __len__(self) -> int: ...

@final
class Environment:
    def __new__(
        cls,
        scenario: Scenario,
        seed: int | None = None,
        replication: int = 0,
        epoch_s: float = 0.5,
    ) -> Environment: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def apps(self) -> list[App]: ...
    def step(
        self, plan: Plan | None = None
    ) -> tuple[Observation, tuple[float, float | None, float | None], list[str]]:
        """Apply a plan, and let one epoch pass.

        Parameters
        ----------
        plan : Plan, optional
            The wanted settings; without it all stay as they are.

        Returns
        -------
        tuple of Observation, tuple of float, list of str
            What was measured; E_S with E_LC and E_BE; and the settings that were refused, with why.

        Raises
        ------
        PlanError
            If the plan names a knob or a value that the machine does not have.
        SimulationError
            If the simulation reaches a bound.
        """

@final
class Record:
    def __new__(cls, path: str) -> Record: ...
    @property
    def tables(self) -> list[str]: ...
    def table(self, name: str) -> Table:
        """Return a table, with the columns of `lull export`.

        Parameters
        ----------
        name : str
            One of `tables`.

        Returns
        -------
        Table
            All rows that the file has at this moment.

        Raises
        ------
        KeyError
            If there is no such table.
        RecordError
            If the file is damaged.
        """

@final
class Search:
    def __new__(
        cls, space: dict[str, list[float]], bound_us: float, options: dict[str, Any]
    ) -> Search: ...
    def ask(self) -> tuple[int, dict[str, float], float | None] | None: ...
    def tell(self, number: int, measured: dict[str, Any]) -> None: ...
    def refuse(self, number: int, why: str, knob: str | None) -> None: ...
    def best(
        self,
    ) -> tuple[dict[str, float], bool, dict[str, Any], float, float] | None: ...
    def front(self) -> list[tuple[dict[str, float], float, float, float | None]]: ...
    def trials(
        self,
    ) -> list[tuple[dict[str, float], float | None, float | None, str | None]]: ...
    @property
    def stayed(self) -> str | None: ...
    @property
    def harm(self) -> float: ...
    @property
    def size(self) -> int: ...
    @property
    def least_requests(self) -> int: ...

def policies() -> list[str]: ...
def simulate(
    scenario: Scenario,
    policies: Sequence[tuple[str, object]],
    seeds: Sequence[int | None],
    replications: int | None,
    threads: int | None,
) -> Results: ...
def end_calls() -> None: ...
def forget_calls() -> None: ...
def lab_claims() -> Table: ...
def lab_experiments() -> Table: ...
def lab_run(name: str, options: dict[str, Any]) -> LabReport: ...
def lab_run_cells(name: str, cells: str, options: dict[str, Any]) -> str: ...
def agent_start(
    config: str | os.PathLike[str], options: dict[str, Any]
) -> AgentRun: ...
def replay(
    record: str | os.PathLike[str],
    policies: Sequence[tuple[str, object]],
    extent: dict[str, Any],
) -> Replay: ...
def entropy(
    latency_critical: list[tuple[float, float, float]],
    best_effort: list[tuple[float, float]],
    importance: float,
) -> tuple[float, float | None, float | None]: ...
def equivalence(
    target: float, first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> float | None: ...
def tlt(latencies_ms: list[float], percentile: float) -> tuple[float, float, float, float]: ...

_State = tuple[float, float, float, float]

def mm1(arrivals_per_s: float, work_s: float) -> _State | None: ...
def mmc(arrivals_per_s: float, work_s: float, servers: int) -> _State | None: ...
def mg1(arrivals_per_s: float, work_s: float, cv2: float) -> _State | None: ...
def mmck(arrivals_per_s: float, work_s: float, servers: int, room: int) -> _State: ...
def mva(
    think_s: float, stations: list[tuple[float, int]], customers: int
) -> tuple[float, float, list[float], list[float]]: ...

_Estimate = tuple[float, float, int]

def estimate(values: list[float]) -> _Estimate | None: ...
def paired_difference(ours: list[float], theirs: list[float]) -> _Estimate | None: ...
def paired_ratio(
    ours: list[float], theirs: list[float]
) -> tuple[float, float, float] | None: ...
def proportion_upper(events: int, trials: int, alpha: float) -> float: ...
def proportion_lower(events: int, trials: int, alpha: float) -> float: ...
def quantile_upper(values: list[float], at: float, alpha: float) -> float | None: ...
def quantile_lower(values: list[float], at: float, alpha: float) -> float | None: ...
def studentised_interval(
    values: list[float], level: float, seed: int
) -> tuple[float, float] | None: ...
def sign_flip_chance(differences: list[float], seed: int) -> float: ...
def holm(chances: list[float], alpha: float) -> list[bool]: ...
