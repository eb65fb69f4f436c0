"""A sweep on a Ray cluster gives the rows of one on processes, and survives its parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeping import GRID, LOAD, OPTIONS, KillsOnce, Slow, many_cells, rows_of

import lull

pytest.importorskip("pyarrow")
pytest.importorskip("ray")
pytestmark = pytest.mark.ray
SMALL = {LOAD: [500.0, 900.0], "node.cores": [3, 4]}
#: Cells of the sweep that loses a worker, a raylet and its driver.
CELLS = int(os.environ.get("LULL_SWEEP_CELLS", "300"))


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
    driver = start_driver(connected, torn)
    wait_for(lambda: list(torn.glob("*.parquet")), driver)
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


def start_driver(cluster, path: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """A process that sweeps on the cluster into a directory."""
    script = Path(__file__).with_name("sweeping.py")
    return subprocess.Popen(
        [sys.executable, script, path, "ray", *map(str, arguments)],
        env=os.environ | {"RAY_ADDRESS": cluster.address},
    )


def wait_for(found, driver):
    """What `found` returns, once that is something; the driver must not end before."""
    while not (value := found()):
        assert driver.poll() is None, "the sweep ended before it was disturbed"
        time.sleep(0.005)
    return value


def workers_of(raylet: int) -> list[int]:
    """The processes of a node that run cells at this moment."""
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
            title = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == raylet and title.startswith(b"ray::_run"):
            workers.append(int(process.name))
    return workers


def test_a_sweep_survives_a_worker_a_raylet_and_its_driver_with_the_rows_of_one_machine(
    connected, tmp_path
):
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    scenario, grid, options = many_cells(CELLS)
    node = connected.add_node(num_cpus=1, object_store_memory=80 << 20)
    raylets = [it.all_processes["raylet"][0].process.pid for it in (connected.head_node, node)]
    files = lambda: len(list(torn.glob("part-*.parquet")))  # noqa: E731
    driver = start_driver(connected, torn, CELLS)
    wait_for(files, driver)
    os.kill(wait_for(lambda: workers_of(raylets[0]), driver)[0], signal.SIGKILL)
    before = files()
    wait_for(lambda: files() > before, driver)
    os.kill(raylets[1], signal.SIGKILL)
    before = files()
    wait_for(lambda: files() > before, driver)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL, "it ended before it was killed"
    done: list[tuple[int, ...]] = []
    resumed = lull.sweep(
        scenario, grid, **options, path=torn, engine="ray",
        progress=lambda *counts: done.append(counts),
    ).to_dict()
    assert 0 < done[0][0] < CELLS and done[-1] == (CELLS, CELLS), (done[0], done[-1])
    assert lull.sweep(scenario, grid, **options, path=whole).to_dict() == resumed
    assert rows_of(torn) == rows_of(whole)
    print(f"{done[0][0]} of {CELLS} cells were there, {len(rows_of(whole))} rows are equal")
