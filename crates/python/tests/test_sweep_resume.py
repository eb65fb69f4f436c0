"""A sweep survives the death of its workers, and goes on after its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeping import GRID, LOAD, OPTIONS, Kills, KillsOnce, Slow, rows_of

import lull

pytest.importorskip("pyarrow")
SMALL = {LOAD: [500.0, 900.0], "node.cores": [3, 4]}


def test_a_killed_worker_costs_its_cell_a_second_run(node, tmp_path, monkeypatch):
    monkeypatch.setenv("MARKS", str(tmp_path))
    options = {"policies": ["unmanaged", KillsOnce], "replications": 1, "processes": 2}
    after_a_kill = lull.sweep(node, SMALL, **options).to_dict()
    assert (tmp_path / "killed").exists()
    assert lull.sweep(node, SMALL, **options).to_dict() == after_a_kill


def test_a_cell_that_kills_its_workers_is_named_and_the_others_are_kept(node, tmp_path):
    options = {"policies": [Kills], "replications": 1, "processes": 2, "path": tmp_path}
    with pytest.raises(lull.WorkerLostError, match="ended 2 times before the run with") as raised:
        lull.sweep(node, SMALL, **options, retries=1)
    assert raised.value.cell.endswith("node.cores = 3") and raised.value.deaths == 2
    assert "exit code -9" in str(raised.value)
    lull.sweep(node, SMALL | {"node.cores": [4]}, **options)
    assert len({row[2] for row in rows_of(tmp_path)}) == 2, "cells"


def test_a_sweep_whose_driver_was_killed_ends_as_one_that_was_not(node, tmp_path):
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    driver = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("sweeping.py"), torn, "processes"]
    )
    while not list(torn.glob("*.parquet")):
        assert driver.poll() is None, "it ended before it wrote a file"
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL, "it ended before it was killed"
    done = []
    options = {"policies": [Slow], **OPTIONS, "processes": 2}
    rest = {"path": torn, "progress": lambda *counts: done.append(counts)}
    resumed = lull.sweep(node, GRID, **options, **rest).to_dict()
    assert 0 < done[0][0] < 18 and done[-1] == (18, 18), done
    assert lull.sweep(node, GRID, **options, path=whole).to_dict() == resumed
    assert rows_of(torn) == rows_of(whole)
    # All cells are there: nothing is simulated, and a wider grid runs what is new only.
    done.clear()
    assert lull.sweep(node, GRID, **options, **rest).to_dict() == resumed
    assert done == [(18, 18)]
    done.clear()
    lull.sweep(node, GRID | {LOAD: [*GRID[LOAD], 950.0]}, **options, **rest)
    assert done[0] == (18, 24) and done[-1] == (24, 24)


def test_a_path_of_another_sweep_is_refused_and_both_are_named(node, tmp_path):
    options = {"policies": ["unmanaged"], "replications": 1, "processes": 1, "path": tmp_path}
    grid = {"node.cores": [4]}
    lull.sweep(node, grid, **options)
    other = node.with_values({"run.length": "5s"})
    there = r"is of scenario (\w{16}) by lull .*; this sweep is of scenario (?!\1)\w{16} by lull "
    with pytest.raises(lull.DatasetError, match=there):
        lull.sweep(other, grid, **options)
    with pytest.raises(lull.DatasetError, match=r"is of another grid.*threads \(int64\)"):
        lull.sweep(node, {"app[batch].threads": [2]}, **options)
    (tmp_path / "part-x.parquet").write_bytes(b"PAR1")
    with pytest.raises(lull.DatasetError, match=r"part-x\.parquet: cannot be read as Parquet"):
        lull.sweep(node, grid, **options)


def test_missing_packages_and_bad_options_are_named(node, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'engine="ray" needs .*pip install "lull\[ray\]"'):
        lull.sweep(node, {}, engine="ray")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="path= writes Parquet, which needs the package pyarrow"):
        lull.sweep(node, {}, path=tmp_path)
    with pytest.raises(ValueError, match="engine = 'dask'"):
        lull.sweep(node, {}, engine="dask")
    with pytest.raises(ValueError, match="retries = -1"):
        lull.sweep(node, {}, retries=-1)
