"""A sweep gives what single simulations give, on any number of processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from conftest import NODE

import lull

LOAD = "app[search].activity.requests.load[0].rate-per-s"


class Halves(lull.Policy):
    """Gives each app half of the cores."""

    def start(self, machine, apps):
        self.cores = machine.cores

    def decide(self, seen, rng):
        plan = lull.Plan()
        plan.set("cores", range(self.cores // 2), of="search")
        plan.set("cores", range(self.cores // 2, self.cores), of="batch")
        return plan


class Broken(lull.Policy):
    def decide(self, seen, rng):
        raise LookupError("no idea")


def test_rows_are_those_of_single_simulations_in_the_order_of_the_grid(node):
    grid = {LOAD: [500.0, 900.0], "app[batch].threads": [2, 4]}
    done = []
    options = {"policies": ["unmanaged", Halves], "seeds": [1, 2], "replications": 2}
    table = lull.sweep(
        node, grid, **options, processes=2, progress=lambda *counts: done.append(counts)
    )
    assert done == [(at + 1, 8) for at in range(8)]
    rows = table.to_dict()
    assert list(rows)[:4] == [LOAD, "app[batch].threads", "policy", "seed"]
    wanted = {name: [] for name in rows}
    for load in grid[LOAD]:
        for threads in grid["app[batch].threads"]:
            changed = node.with_values({LOAD: load, "app[batch].threads": threads})
            one = lull.simulate(changed, **options).estimates().to_dict()
            count = len(one["policy"])
            one |= {LOAD: [load] * count, "app[batch].threads": [threads] * count}
            for name, values in one.items():
                wanted[name] += values
    assert rows == wanted
    assert lull.sweep(node, grid, **options, processes=1).to_dict() == rows


def test_a_wanted_precision_decides_how_often_each_cell_is_replicated(node):
    options = {"policies": ["unmanaged"], "precision": 0.1, "figure": "p95[search]"}
    grid = {LOAD: [300.0, 500.0]}
    rows = lull.sweep(node, grid, **options, processes=2).to_dict()
    one = lull.simulate(node.with_values({LOAD: 300.0}), **options).estimates().to_dict()
    assert rows["mean"][: len(one["mean"])] == one["mean"]
    tails = [at for at, figure in enumerate(rows["figure"]) if figure == "p95[search]"]
    assert len(tails) == 2
    for at in tails:
        assert (rows["high"][at] - rows["low"][at]) / 2 <= 0.1 * rows["mean"][at]
    with pytest.raises(ValueError, match="of a precision"):
        lull.sweep(node, grid, figure="p95")


def test_a_grid_of_nothing_is_the_scenario_and_columns_have_types(node):
    pyarrow = pytest.importorskip("pyarrow")
    alone = lull.sweep(node, {}, policies=["unmanaged"], replications=1)
    wanted = lull.simulate(node, policies=["unmanaged"], replications=1)
    assert alone.to_dict() == wanted.estimates().to_dict()
    grid = {"run.length": ["4s", "6s"], "app[1].threads": [1], "node.cores": [2]}
    table = pyarrow.table(lull.sweep(node, grid, policies=["unmanaged"], replications=1))
    kinds = [str(table.schema.field(name).type) for name in [*grid, "seed", "low"]]
    assert kinds == ["string", "int64", "int64", "int64", "double"]


def test_a_failed_run_is_named_and_ends_the_sweep(node):
    grid = {"node.cores": [4, 0]}
    with pytest.raises(lull.ConfigError, match=r"node\.cores") as raised:
        lull.sweep(node, grid, policies=["unmanaged"], replications=1)
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["in the run with node.cores = 0"]
    with pytest.raises(LookupError, match="no idea"):
        lull.sweep(node, {}, policies=[Broken])


def test_bad_arguments_are_refused_before_a_run(node):
    class Local(lull.Policy):
        pass

    with pytest.raises(TypeError, match="policy `Local` cannot be sent to another process"):
        lull.sweep(node, {}, policies=[Local])
    with pytest.raises(ValueError, match="node.cores has no value"):
        lull.sweep(node, {"node.cores": []})
    with pytest.raises(ValueError, match="seeds has no value"):
        lull.sweep(node, {}, seeds=[])
    with pytest.raises(ValueError, match="processes = 0"):
        lull.sweep(node, {}, processes=0)
    with pytest.raises(ValueError, match="`seed` is a column"):
        lull.sweep(node, {"seed": [1]})
    with pytest.raises(TypeError, match=r"policies=\[...\]"):
        lull.sweep(node, {}, policies="arq")


def test_other_values_make_another_scenario(node):
    changed = node.with_values({"app[search].threads": 3, "run.seed": 8, "title": "more"})
    assert changed.title == "more" and node.title == "search beside batch"
    assert lull.Scenario.from_toml(changed.toml).title == "more"
    assert pickle.loads(pickle.dumps(changed)).toml == changed.toml
    for key, message in [
        ("app[5].threads", "has 2 entries"),
        ("app[web].threads", "no entry with the name `web`"),
        ("app[-1]x", "write a key such as"),
        ("title.text", "is not a section"),
        ("node.turbo", "turbo"),
    ]:
        with pytest.raises(lull.ConfigError, match=message):
            node.with_values({key: 1})


INTERRUPTED = """
import os, signal, sys, threading, time
import lull
# It is ignored where a shell began the tests in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
scenario = lull.Scenario.from_toml(sys.argv[1])
def has_begun():
    return len(open(f"/proc/self/task/{os.getpid()}/children").read().split()) == 2
def interrupt():
    while not has_begun():
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    lull.sweep(scenario, {}, policies=["arq"], seeds=[1, 2], processes=2)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_the_workers():
    text = NODE.replace('length = "10s"', 'length = "100h"')
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, text],
        capture_output=True, text=True, check=False, timeout=120,
    )
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
