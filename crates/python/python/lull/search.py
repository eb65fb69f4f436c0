"""Searches for good settings by ask and tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import _lull

__all__ = ["Best", "Candidate", "Search", "Trial"]


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


class Best(NamedTuple):
    """The incumbent."""

    params: dict[str, float]
    """The value of each knob, in the unit of the space."""
    meets: bool
    """Whether its trials show that it meets the bound."""
    probability: float
    """Probability that one more trial of it meets the bound."""
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
        the front of power and latency below the bound, or candidates drawn at random.
    seed : int
        Seed of its random numbers.

    Raises
    ------
    ValueError
        If the space is empty, a knob is unknown, or the bound is not above 0.

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
        seed: int = 0,
    ) -> None:
        levels = {name: list(values) for name, values in space.items()}
        self._search = _lull.Search(
            levels, bound_us, trials=trials, percentile=percentile, method=method, seed=seed
        )

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
        refused: str | None = None,
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
        refused : str, optional
            Why the settings could not be measured; the candidate is then not proposed again.

        Raises
        ------
        TypeError
            If the reading is not complete.
        KeyError
            If there is no such candidate, or it has a reading already.
        """
        number = candidate.number if isinstance(candidate, Candidate) else candidate
        if refused is not None:
            self._search.refuse(number, refused)
            return
        if tail_us is None or watts is None or requests is None or late is None:
            raise TypeError("a reading has tail_us, watts, requests and late; or give refused=WHY")
        self._search.tell(number, tail_us, watts, requests, late)

    @property
    def best(self) -> Best | None:
        """The incumbent; None before the first reading."""
        best = self._search.best()
        return None if best is None else Best(*best)

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
