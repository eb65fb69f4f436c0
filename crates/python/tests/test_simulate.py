"""Results are the command's, to the last bit, and leave as Arrow tables."""

from __future__ import annotations

import copy
import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
from conftest import NODE, TIERS

import lull

pyarrow = pytest.importorskip("pyarrow")


def test_every_value_is_the_one_that_the_command_writes(text, run, tmp_path):
    file, out = tmp_path / "a.toml", tmp_path / "a.csv"
    file.write_text(text)
    run("sim", str(file), "--seed", "11", "--csv", str(out))
    with out.open() as rows:
        wanted = [
            (row["policy"], int(row["replication"]), row["figure"], row["unit"],
             float(row["value"]) if row["value"] else None)
            for row in csv.DictReader(rows)
        ]
    got = lull.simulate(lull.Scenario.from_toml(file), seeds=[11]).figures().to_dict()
    names = ("policy", "replication", "figure", "unit", "value")
    assert list(zip(*(got[name] for name in names))) == wanted
    assert len(wanted) > 20 and set(got["seed"]) == {11}


def test_estimates_are_those_of_the_commands_json(text, run, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(text)
    printed, _ = run("sim", str(file), "--json")
    wanted = json.loads(printed)
    got = lull.simulate(lull.Scenario.from_toml(file)).estimates().to_dict()
    rows = [dict(zip(got, row)) for row in zip(*got.values())]
    figures = [
        (policy["label"], figure["figure"], figure["mean"], figure["ci95"])
        for policy in wanted["policies"]
        for figure in policy["figures"]
    ]
    ends = [None if row["low"] is None else [row["low"], row["high"]] for row in rows]
    assert [(r["policy"], r["figure"], r["mean"], e) for r, e in zip(rows, ends)] == figures


def test_the_table_has_a_row_for_each_subject_with_units_in_its_columns(node):
    results = lull.simulate(node, seeds=[1, 2])
    table = results.table().to_dict()
    assert list(table)[:4] == ["policy", "seed", "replication", "subject"]
    wanted = {"throughput_per_s", "p95_ms", "progress_percent", "entropy", "utilisation_percent"}
    assert wanted <= set(table), list(table)
    # Two policies, two seeds, three replications; search, batch and the machine.
    assert len(results.table()) == 2 * 2 * 3 * 3
    rows = [dict(zip(table, row)) for row in zip(*table.values())]
    for row in rows:
        assert (row["p95_ms"] is not None) == (row["subject"] == "search")
        assert (row["progress_percent"] is not None) == (row["subject"] == "batch")
        assert (row["entropy"] is not None) == (row["subject"] is None)
    long = results.figures().to_dict()
    tails = [value for name, value in zip(long["figure"], long["value"]) if name == "p95[search]"]
    assert tails == [row["p95_ms"] for row in rows if row["subject"] == "search"]


def test_arrow_libraries_take_the_results_without_a_copy(node):
    results = lull.simulate(node, policies=["unmanaged"])
    table = pyarrow.table(results)
    assert table.schema.field("p95_ms").type == pyarrow.float64()
    assert table.to_pydict() == results.table().to_dict()
    assert str(results.table()).splitlines()[0].split() == table.column_names
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(results.figures())
    assert frame.to_dict(as_series=False) == results.figures().to_dict()


def test_the_buffers_of_a_table_are_shared():
    table = lull.simulate(lull.Scenario.from_toml(NODE), policies=["unmanaged"]).figures()
    addresses = [pyarrow.table(table)["value"].chunk(0).buffers()[1].address for _ in range(2)]
    assert addresses[0] == addresses[1]


def test_a_seed_gives_one_result_on_any_number_of_threads(text):
    scenario = lull.Scenario.from_toml(text)
    one, four = (lull.simulate(scenario, seeds=[3, 4], threads=count) for count in (1, 4))
    assert one.figures().to_dict() == four.figures().to_dict()
    both = [lull.simulate(scenario, seeds=[seed]).figures().to_dict()["value"] for seed in (3, 4)]
    assert one.figures().to_dict()["value"] == both[0] + both[1] and both[0] != both[1]


def test_policies_replications_and_notices(node):
    results = lull.simulate(node, policies=["even", "lc-first"], replications=1)
    assert results.policies == ["even", "lc-first"]
    assert any("one replication has no interval" in notice for notice in results.notices)
    assert results.warmup_s == [2.0]


def test_a_scenario_is_built_from_a_dictionary_and_pickled():
    tomllib = pytest.importorskip("tomllib")
    built = lull.Scenario.from_dict(tomllib.loads(NODE))
    again = pickle.loads(pickle.dumps(built))
    wanted = lull.simulate(lull.Scenario.from_toml(NODE), policies=["arq"]).figures().to_dict()
    for scenario in (built, again):
        assert scenario.title == "search beside batch"
        assert scenario.policies == ["unmanaged", "arq"]
        assert lull.simulate(scenario, policies=["arq"]).figures().to_dict() == wanted


def test_tables_plans_and_exceptions_are_pickled_and_results_say_what_is():
    columns = {"name": ["a", None], "count": [1, None], "mean": [0.5, None], "none": [None, None]}
    table = lull.Table.from_dict(columns)
    again = pickle.loads(pickle.dumps(table))
    assert again.to_dict() == columns and again.column_names == list(columns)
    assert pyarrow.table(again).schema == pyarrow.table(table).schema
    plan = lull.Plan()
    plan.set("cores", range(2), of="search")
    plan.set("frequency", "2GHz")
    for copied in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert repr(copied) == repr(plan) and len(copied) == 2
    with pytest.raises(lull.ConfigError) as raised:
        lull.Scenario.from_toml(NODE.replace("cores = 4", "cores = 0"))
    error = pickle.loads(pickle.dumps(raised.value))
    assert str(error) == str(raised.value)
    assert (error.file, error.line, error.key) == ("scenario", raised.value.line, raised.value.key)
    replayed = pickle.loads(pickle.dumps(lull.ReplayError("off", table)))
    assert replayed.reproduction.to_dict() == columns
    results = lull.simulate(lull.Scenario.from_toml(NODE), ["unmanaged"], replications=1)
    with pytest.raises(TypeError, match="send or store its tables"):
        pickle.dumps(results)
    # A figure without an interval has columns that have a type and no value.
    estimates = results.estimates()
    again = pickle.loads(pickle.dumps(estimates))
    assert again.to_dict() == estimates.to_dict()
    assert pyarrow.table(again).schema == pyarrow.table(estimates).schema


def test_a_scenario_without_policies_runs_those_that_are_given():
    scenario = lull.Scenario.from_toml(NODE[: NODE.index("[[policy]]")])
    assert scenario.policies == []
    assert lull.simulate(scenario, policies=["arq"]).policies == ["arq"]
    with pytest.raises(lull.ConfigError, match="there is none"):
        lull.simulate(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        NODE.replace("cores = 4", "cores = 0"),
        NODE.replace("threads = 2", 'threads = "two"'),
        NODE.replace("ideal =", "idael ="),
        NODE.replace('name = "arq"', 'name = "arqq"'),
        NODE.replace("cores = 4", "cores = = 4"),
        TIERS.replace('machine = "dvfs"', 'machine = "none"'),
    ],
    ids=["value", "type", "key", "policy", "toml", "machine"],
)
def test_errors_are_the_commands_with_file_line_and_key(wrong, run, tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text(wrong)
    _, printed = run("sim", str(file), "--check", status=2)
    with pytest.raises(lull.ConfigError) as raised:
        lull.Scenario.from_toml(file)
    error = raised.value
    assert printed.strip() == f"lull: {error}"
    assert error.file == str(file) and error.line is not None and error.message in str(error)
    assert isinstance(error, ValueError) and isinstance(error, lull.LullError)
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.line, same.key) == (str(error), error.line, error.key)


def test_bad_arguments_are_refused_by_name(node, tmp_path):
    with pytest.raises(lull.ConfigError, match="Did you mean `parties`"):
        lull.simulate(node, policies=["partys"])
    with pytest.raises(lull.ConfigError, match="cannot be read"):
        lull.Scenario.from_toml(tmp_path / "missing.toml")
    with pytest.raises(TypeError, match=r"policies=\[...\]"):
        lull.simulate(node, policies="arq")
    with pytest.raises(ValueError, match="seeds is empty"):
        lull.simulate(node, seeds=[])
    with pytest.raises(ValueError, match="threads = 0"):
        lull.simulate(node, threads=0)
    with pytest.raises(TypeError, match="'a.toml' is not a scenario: give lull.Scenario.from_toml"):
        lull.simulate("a.toml")
    with pytest.raises(OverflowError):
        lull.simulate(node, seeds=[-1])
    with pytest.raises(TypeError, match="has no form in TOML"):
        lull.Scenario.from_dict({"title": object()})
    with pytest.raises(KeyError, match="there is no column `p95`"):
        lull.simulate(node, policies=["arq"], replications=2).table().column("p95")


def test_a_simulation_that_reaches_a_bound_is_an_error(tiers):
    scenario = lull.Scenario.from_toml(TIERS + "\n[limits]\nin_flight = 2\n")
    with pytest.raises(lull.SimulationError, match="policy `full-speed`: replication 0"):
        lull.simulate(scenario)


# A simulation of hours. The signal is sent by another thread of Python once the simulation has
# its thread, which shows that the interpreter's lock is released.
INTERRUPTED = """
import glob, os, signal, sys, threading, time
import lull
# It is ignored where a shell began the tests in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
scenario = lull.Scenario.from_toml(sys.argv[1])
class Own(lull.Policy):
    # Long enough that the interpreter ends during a call.
    def decide(self, seen, rng):
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
def name_of(file):
    try:
        return open(file).read().strip()
    except OSError:
        # The thread has ended since it was listed.
        return ""
def has_begun():
    return "lull" in map(name_of, glob.glob("/proc/self/task/*/comm"))
def interrupt():
    while not has_begun():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
# The thread that has read the scenario may not have ended yet.
while has_begun():
    time.sleep(0.001)
threading.Thread(target=interrupt).start()
try:
    lull.simulate(scenario, policies=[Own if sys.argv[2] == "own" else sys.argv[2]])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("policy", ["own", "arq"])
def test_ctrl_c_ends_a_simulation_of_hours(text, policy):
    is_node = "[node]" in text
    for old in ('length = "10s"', 'length = "6s"'):
        text = text.replace(old, 'length = "100h"')
    if not is_node:
        # A scenario has ten thousand million events at most unless it says otherwise.
        text = text.replace("[run]", "[limits]\nevents = 100000000000\n\n[run]")
    name = policy if policy == "own" or is_node else "powersave"
    code = [sys.executable, "-c", INTERRUPTED, text, name]
    done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_threads_of_python_simulate_at_the_same_time(node):
    results: list[object] = []
    work = lambda: results.append(lull.simulate(node).figures().to_dict())  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and results[0] == results[1] == results[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_simulates_as_its_parent(node):
    wanted = lull.simulate(node).figures().to_dict()
    code = f"""
import os, lull
class Keep(lull.Policy):
    def decide(self, seen, rng):
        pass
scenario = lull.Scenario.from_toml({NODE!r})
lull.simulate(scenario, ["unmanaged", Keep])
child = os.fork()
if child == 0:
    lull.simulate(scenario, ["unmanaged", Keep])
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert wanted["value"]


def test_signals_of_the_caller_are_its_own(node):
    before = signal.getsignal(signal.SIGINT)
    lull.simulate(node, policies=["unmanaged"], replications=1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_precision_gives_the_numbers_of_the_scenario_that_wants_it(text, run, tmp_path):
    file, out = tmp_path / "a.toml", tmp_path / "a.csv"
    wish = 'precision = { figure = "p95", relative = 0.05, most = 9 }'
    file.write_text(text.replace("[run]", f"[run]\n{wish}"))
    run("sim", str(file), "--csv", str(out))
    with out.open() as rows:
        wanted = [float(row["value"]) if row["value"] else None for row in csv.DictReader(rows)]
    written = lull.Scenario.from_toml(file)
    assert lull.simulate(written).figures().to_dict()["value"] == wanted
    assert lull.simulate(written, precision=0.05).figures().to_dict()["value"] == wanted
    results = lull.simulate(written, precision=1e-6, figure="p50")
    assert max(results.table().to_dict()["replication"]) == 8
    assert any("after 9 replications p50" in notice for notice in results.notices)


def test_a_precision_begins_with_the_replications_and_names_its_figure(node):
    loose = lull.simulate(node, precision=0.9, replications=2)
    assert max(loose.table().to_dict()["replication"]) == 1
    with pytest.raises(lull.ConfigError, match="there is no figure `p42`; there are: ") as raised:
        lull.simulate(node, precision=0.02, figure="p42")
    assert raised.value.key == "run.precision.figure"
    for share in (0.0, -1.0, 1.0, float("nan")):
        with pytest.raises(lull.ConfigError, match="write a share such as 0.02"):
            lull.simulate(node, precision=share)
    with pytest.raises(lull.ConfigError, match="must be from 101"):
        lull.simulate(node, precision=0.02, replications=101)
    with pytest.raises(ValueError, match="figure = 'p95' is of a precision"):
        lull.simulate(node, figure="p95")
