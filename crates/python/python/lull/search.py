"""Searches for good settings by ask and tell."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import _lull

__all__ = ["Best", "Candidate", "Evidence", "FrontSetting", "Search", "Trial"]


class Candidate(NamedTuple):
    """Settings to try."""

    number: int
    """Its number among the trials."""
    params: dict[str, float]
    """The value of each knob, in the unit of the space."""
    expected_gain: float | None
    """Share by which power is expected to fall, where a model chose the candidate."""


class Trial(NamedTuple):
    """Settings that were tried; a refused trial has no reading."""

    params: dict[str, float]
    """The value of each knob, in the unit of the space."""
    tail_us: float | None
    """The measured tail latency, in us."""
    watts: float | None
    """The measured mean power, in W."""
    refused: str | None
    """Why the settings could not be measured."""


class Evidence(NamedTuple):
    """What the trials of a setting show about its bound."""

    trials: int
    """Trials of the setting."""
    requests: int
    """Requests in these trials."""
    late: int
    """Requests over the bound."""
    at_least: float
    """Lower limit of the share of late requests, with 99 % confidence."""
    at_most: float
    """Upper limit of the share of late requests, with 99 % confidence."""
    allowed: float
    """Share of requests that may be late: 0.01 for the percentile 99."""
    probability: float
    """Probability that one more trial meets the bound."""


class FrontSetting(NamedTuple):
    """A tried setting within the bound that no other one beats."""

    params: dict[str, float]
    """The value of each knob, in the unit of the space."""
    tail_us: float
    """Its predicted tail latency, in us."""
    watts: float
    """Its predicted mean power, in W."""
    progress_per_s: float | None
    """Its predicted progress of best-effort work per second; None unless the method is "front"
    and each reading has it."""


class Best(NamedTuple):
    """The incumbent."""

    params: dict[str, float]
    """The value of each knob, in the unit of the space."""
    meets: bool
    """Whether its trials show that it meets the bound."""
    evidence: Evidence
    """What its trials show."""
    tail_us: float
    """Its predicted tail latency, in us."""
    watts: float
    """Its predicted mean power, in W."""


class Search:
    """A search for the settings of least power whose tail latency stays within a bound.

    The caller measures: `ask` proposes settings, `tell` takes what was measured there. Several
    candidates may be measured at once: ask for them, and tell each in any order. The same seed,
    and the same calls in the same order, give the same candidates.

    Parameters
    ----------
    space : mapping of str to sequence of float
        The values of each knob, in its unit: `coalescing`, `gate-delay` and `idle-latency` in us,
        `frequency` and `uncore-frequency` in GHz, `cores`, `cache-ways`, `gate-cap` and
        `gate-batch` as counts, and `energy-preference` from 0 (performance) to 255.
    bound_us : float
        The bound on the tail latency, in us.
    trials : int
        Trials at most.
    percentile : float
        The percentile of the tail.
    method : {"apart", "penalty", "front", "random"}
        Latency and power modelled apart (ours), the penalty of BayOp (Dong et al., CCDS 2026),
        the front of power, latency below the bound and, where readings have it, best-effort
        progress, or candidates drawn at random.
    safe : bool
        Whether no new setting is proposed whose trial is predicted to exceed twice the bound
        with a probability of more than 5 %; methods "apart" and "front" only.
    harm_max : float
        Share of late requests from which on only settings are proposed that are nearly certain
        to meet the bound.
    begin_with : mapping of str to float, optional
        A setting that was good before, such as that of another load: it is tried early.
    seed : int, optional
        Seed of its random numbers; by default every search has another one.

    Attributes
    ----------
    seed : int
        The seed that repeats the search.

    Raises
    ------
    ValueError
        If the space is empty, a knob is unknown, the bound is not above 0, or the method
        predicts no tail that a safe search could avoid.

    Examples
    --------
    >>> search = lull.Search({"frequency": [1.2, 1.8, 2.4]}, bound_us=500.0, trials=12)
    >>> while (candidate := search.ask()) is not None:
    ...     tail_us, watts, requests, late = measure(candidate.params)
    ...     search.tell(candidate, tail_us=tail_us, watts=watts, requests=requests, late=late)
    >>> search.best.params
    """

    def __init__(
        self,
        space: Mapping[str, Sequence[float]],
        bound_us: float,
        *,
        trials: int = 30,
        percentile: float = 99.0,
        method: str = "apart",
        safe: bool = False,
        harm_max: float = 1.0,
        begin_with: Mapping[str, float] | None = None,
        seed: int | None = None,
    ) -> None:
        levels = {name: list(values) for name, values in space.items()}
        self.seed = secrets.randbits(32) if seed is None else seed
        options = {
            "trials": trials,
            "percentile": percentile,
            "method": method,
            "safe": safe,
            "harm_max": harm_max,
            "begin_with": None if begin_with is None else dict(begin_with),
            "seed": self.seed,
        }
        self._search = _lull.Search(levels, bound_us, options)

    def ask(self) -> Candidate | None:
        """Return the next candidate.

        Candidates without a reading count as trials, and are not explored a second time.

        Returns
        -------
        Candidate or None
            The settings to measure; None when the search is over, or, while candidates have no
            reading, until one of them has.
        """
        parts = self._search.ask()
        return None if parts is None else Candidate(*parts)

    def tell(
        self,
        candidate: Candidate | int,
        *,
        tail_us: float | None = None,
        watts: float | None = None,
        requests: int | None = None,
        late: int | None = None,
        progress_per_s: float | None = None,
        refused: str | None = None,
        knob: str | None = None,
    ) -> None:
        """Take the reading of a candidate, or why there is none.

        Parameters
        ----------
        candidate : Candidate or int
            What `ask` returned, or its number.
        tail_us, watts : float
            The tail latency in us and the mean power in W of the trial.
        requests, late : int
            Requests of the trial, and how many of them were over the bound: the evidence on
            which a setting is shown to meet the bound.
        progress_per_s : float, optional
            The progress of best-effort work per second, the third objective of the method
            "front" if each reading has it; of several apps, the geometric mean of their rates.
        refused : str, optional
            Why the settings could not be measured; the candidate is then not proposed again.
        knob : str, optional
            The knob that refused its value, which is then not proposed with other values of the
            other knobs either.

        Raises
        ------
        TypeError
            If the reading is not complete.
        ValueError
            If a number of the reading is impossible, or the search has no such knob.
        KeyError
            If there is no such candidate, or it has a reading already.
        """
        number = candidate.number if isinstance(candidate, Candidate) else candidate
        if refused is not None:
            self._search.refuse(number, refused, knob)
            return
        if tail_us is None or watts is None or requests is None or late is None:
            raise TypeError("a reading has tail_us, watts, requests and late; or give refused=WHY")
        measured = {
            "tail_us": tail_us,
            "watts": watts,
            "requests": requests,
            "late": late,
            "progress_per_s": progress_per_s,
        }
        self._search.tell(number, measured)

    @property
    def best(self) -> Best | None:
        """The incumbent; None before the first reading."""
        best = self._search.best()
        if best is None:
            return None
        params, meets, evidence, tail_us, watts = best
        return Best(params, meets, Evidence(**evidence), tail_us, watts)

    @property
    def front(self) -> list[FrontSetting]:
        """The tried settings within the bound that no other one beats in power, tail and progress.

        Power, tail and progress are those that the models predict. The settings are sorted by
        power; the list is empty before the second reading.
        """
        return [FrontSetting(*parts) for parts in self._search.front()]

    @property
    def stayed(self) -> str | None:
        """Why a safe search proposed nothing but the fastest setting; None if it did."""
        return self._search.stayed

    @property
    def trials(self) -> list[Trial]:
        """All trials in order."""
        return [Trial(*parts) for parts in self._search.trials()]

    @property
    def harm(self) -> float:
        """Share of all requests so far that were over the bound."""
        return self._search.harm

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self._search.size

    @property
    def least_requests(self) -> int:
        """Requests that a trial takes at least: with fewer, no setting is shown to meet the bound.

        It grows with the percentile: about 100 for 99 and 1,000 for 99.9, with 30 trials.
        """
        return self._search.least_requests
