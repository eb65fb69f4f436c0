"""A sweep on a Ray cluster gives the rows of one on processes, and survives its parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeping import GRID, LOAD, OPTIONS, KillsOnce, Slow, rows_of

import lull

pytest.importorskip("pyarrow")
pytest.importorskip("ray")
pytestmark = pytest.mark.ray
SMALL = {LOAD: [500.0, 900.0], "node.cores": [3, 4]}


@pytest.fixture
def connected(cluster, tmp_path):
    """This process as a driver of the cluster."""
    import ray

    tests = str(Path(__file__).parent)
    environment = {"env_vars": {"PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}",
                                "MARKS": str(tmp_path)}}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=environment)
    yield cluster
    ray.shutdown()


def test_rows_are_those_of_processes_even_if_a_worker_is_killed(
    node, connected, tmp_path, monkeypatch
):
    monkeypatch.setenv("MARKS", str(tmp_path))
    options = {"policies": ["unmanaged", KillsOnce], "replications": 1}
    on_ray = lull.sweep(node, SMALL, **options, engine="ray").to_dict()
    assert (tmp_path / "killed").exists()
    assert lull.sweep(node, SMALL, **options).to_dict() == on_ray


def test_a_sweep_whose_driver_was_killed_goes_on_though_a_raylet_is_killed(
    node, connected, tmp_path
):
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    driver = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("sweeping.py"), torn, "ray"],
        env=os.environ | {"RAY_ADDRESS": connected.address},
    )
    while not list(torn.glob("*.parquet")):
        assert driver.poll() is None, "it ended before it wrote a file"
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL, "it ended before it was killed"
    raylet = next(iter(connected.worker_nodes)).all_processes["raylet"][0].process.pid
    done = []

    def kill_raylet(*counts: int) -> None:
        if len(done) == 1:
            os.kill(raylet, signal.SIGKILL)
        done.append(counts)

    options = {"policies": [Slow], **OPTIONS}
    resumed = lull.sweep(
        node, GRID, **options, path=torn, engine="ray", progress=kill_raylet
    ).to_dict()
    assert 0 < done[0][0] < 18 and done[-1] == (18, 18), done
    assert lull.sweep(node, GRID, **options, path=whole).to_dict() == resumed
    assert rows_of(torn) == rows_of(whole)
