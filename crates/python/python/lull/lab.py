"""The lab: tables of papers beside our measurements, and the papers' claims."""

from __future__ import annotations

from . import _lull
from ._lull import LabReport, Table

__all__ = ["LabReport", "claims", "experiments", "run"]


def experiments() -> Table:
    """Return the experiments, as `lull lab list` has them.

    Returns
    -------
    Table
        A row an experiment: `experiment`, `paper` and `summary`.
    """
    return _lull.lab_experiments()


def run(
    name: str,
    *,
    seed: int = 1,
    seeds: int | None = None,
    quick: bool = False,
    threads: int | None = None,
) -> LabReport:
    """Run an experiment, with the numbers of `lull lab run`.

    It runs on one seed after another until each compared row has enough independent values. The
    interpreter's lock is released; Ctrl-C ends the call at once.

    Parameters
    ----------
    name : str
        One of `experiments()`.
    seed : int
        The first seed.
    seeds : int, optional
        Independent values that each compared row needs, and seeds at most; by default 5, of a
        quick run 1.
    quick : bool
        Cut lengths down, to see that the experiment works; tolerances then need not hold.
    threads : int, optional
        Threads at most; by default one for each core.

    Returns
    -------
    LabReport
        `rows()` has a row a figure, with the printed and the measured number, its 95 % interval,
        the tolerance and the verdict. Fewer values than 5 decide nothing.

    Raises
    ------
    ValueError
        If there is no such experiment, or its own parameters were found on this seed.
    SimulationError
        If a simulation fails.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds = {seeds}: give one at least, or leave it out")
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}: give one at least, or leave it out")
    values = seeds if seeds is not None else 1 if quick else 5
    return _lull.lab_run(name, seed, values, quick, threads)


def claims() -> Table:
    """Return the papers' claims with the verdicts of the measured rows of this version.

    Returns
    -------
    Table
        A row a claim: `paper`, `claim`, `place`, the `printed` number and its `unit`, the
        `experiment` and `row` that answer it, `ours` with the `half_width` of its 95 % interval,
        and `verdict`, which is missing where too little was measured or no row answers.
    """
    return _lull.lab_claims()
