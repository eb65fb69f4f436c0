"""The lab: tables of papers beside our measurements, and the papers' claims."""

from __future__ import annotations

import os
from typing import Any

from . import _lull
from ._lull import LabReport, Table

__all__ = ["LabReport", "claims", "experiments", "run", "run_cells"]


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
    path: str | os.PathLike[str] | None = None,
) -> LabReport:
    """Run an experiment, with the numbers of `lull lab run`.

    It runs on one seed after another until each compared row has five independent values and a
    verdict that is not open. The interpreter's lock is released; Ctrl-C ends the call at once.

    Parameters
    ----------
    name : str
        One of `experiments()`.
    seed : int
        The first seed.
    seeds : int, optional
        Seeds at most; by default 5, of a quick run 1.
    quick : bool
        Cut lengths down, to see that the experiment works; tolerances then need not hold.
    threads : int, optional
        Threads at most; by default one for each core.
    path : str or os.PathLike, optional
        A directory that gets a file for each finished seed. Seeds that are in it, from this call
        before it was killed, from `run_cells` or from `lull lab run --parts`, are not run again.

    Returns
    -------
    LabReport
        `rows()` has a row a figure, with the printed and the measured number, its 95 % interval,
        the tolerance and the verdict. Fewer values than 5 decide nothing.

    Raises
    ------
    ValueError
        If there is no such experiment, its own parameters were found on this seed, or `path` is
        of another experiment, seed or version.
    SimulationError
        If a simulation fails, or a file of `path` cannot be read or written.
    """
    return _lull.lab_run(name, _options(seed, seeds, quick, threads, path))


def run_cells(
    name: str,
    path: str | os.PathLike[str],
    cells: str,
    *,
    seed: int = 1,
    seeds: int | None = None,
    quick: bool = False,
    threads: int | None = None,
) -> str:
    """Run some seeds of an experiment into a directory, as `lull lab run --parts --cells`.

    Processes and machines divide an experiment so; `run` with the same `path` makes one report
    of all of them.

    Parameters
    ----------
    name : str
        One of `experiments()`.
    path : str or os.PathLike
        The directory, which gets a file for each finished seed.
    cells : str
        "K/N" for the K-th of N equal parts, or numbers from 1 such as "1,3-5".
    seed, seeds, quick, threads
        As in `run`; there are as many cells as `seeds`.

    Returns
    -------
    str
        How many cells were run and how many were there.

    Raises
    ------
    ValueError
        As `run`, or if there is no such cell.
    SimulationError
        As `run`.
    """
    return _lull.lab_run_cells(name, cells, _options(seed, seeds, quick, threads, path))


def _options(
    seed: int,
    seeds: int | None,
    quick: bool,
    threads: int | None,
    path: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds = {seeds}: give one at least, or leave it out")
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}: give one at least, or leave it out")
    return {
        "seed": seed,
        "most": seeds if seeds is not None else 1 if quick else 5,
        "quick": quick,
        "threads": threads,
        "path": None if path is None else os.fspath(path),
    }


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
