"""Policies in Python meet those of the registry; exceptions and nonsense end a run clearly."""

from __future__ import annotations

import re
import threading
import traceback

import pytest
from conftest import NODE

import lull


class Keep(lull.Policy):
    def decide(self, seen, rng):
        return None


class Split(lull.Policy):
    """Gives the first cores to latency-critical apps and the last to the others."""

    def __init__(self, critical=2):
        self.critical = critical

    def start(self, machine, apps):
        self.machine, self.apps = machine, apps

    def decide(self, seen, rng):
        plan = lull.Plan()
        for app in self.apps:
            first = range(self.critical)
            rest = range(self.critical, self.machine.cores)
            plan.set("cores", first if app.latency_critical else rest, of=app.name)
        return plan


def figure(results, name, policy):
    long = results.figures().to_dict()
    rows = zip(long["policy"], long["figure"], long["value"])
    return [value for by, figure, value in rows if (by, figure) == (policy, name)]


def test_a_policy_that_keeps_everything_is_as_no_policy(node):
    results = lull.simulate(node, policies=["unmanaged", Keep, Keep()])
    assert results.policies == ["unmanaged", "Keep", "Keep 2"]
    for name in ("p95[search]", "progress[batch]", "entropy"):
        wanted = figure(results, name, "unmanaged")
        assert figure(results, name, "Keep") == figure(results, name, "Keep 2") == wanted


def test_a_policy_moves_cores_and_beats_no_policy(node):
    results = lull.simulate(node, policies=["unmanaged", Split(), "arq"])
    alone, split = (figure(results, "p95[search]", name) for name in ("unmanaged", "Split"))
    assert all(ours < theirs for ours, theirs in zip(split, alone))
    # Batch has two of its four cores.
    assert all(45.0 < value < 55.0 for value in figure(results, "progress[batch]", "Split"))


def test_a_policy_sets_frequencies_of_the_servers_of_a_tier(tiers):
    class Slow(lull.Policy):
        def start(self, machine, apps):
            self.lowest = machine.frequencies_hz[0][0]
            assert ("frequency", 0) in machine.knobs

        def decide(self, seen, rng):
            plan = lull.Plan()
            plan.set("frequency", self.lowest)
            return plan

    results = lull.simulate(tiers, policies=["full-speed", Slow, "powersave"])
    watts = {name: figure(results, "power", name) for name in results.policies}
    assert all(slow < full for slow, full in zip(watts["Slow"], watts["full-speed"]))
    for slow, powersave in zip(watts["Slow"], watts["powersave"]):
        assert slow == pytest.approx(powersave, rel=0.05)


def test_what_a_policy_sees_is_what_is_measured(node):
    seen_all = []

    class Look(lull.Policy):
        def start(self, machine, apps):
            assert (machine.cores, machine.cache_ways) == (4, 8)
            assert ("cores", "search") in machine.knobs
            search, batch = apps
            assert (search.name, search.latency_critical) == ("search", True)
            assert search.percentile == 95.0
            assert (search.bound_ms, search.ideal_ms, search.threads) == (8.0, 3.0, 2)
            assert (batch.latency_critical, batch.solo_per_s, batch.bound_ms) == (False, 4.0, None)

        def decide(self, seen, rng):
            seen_all.append(seen)

    lull.simulate(node, policies=[Look], replications=1)
    # Two and ten seconds in epochs of half a second.
    assert [seen.time_s for seen in seen_all] == [0.5 * (at + 1) for at in range(24)]
    last = seen_all[-1]
    search, batch = last.apps
    assert last.app("search").name == "search" and len(last.cores) == 4
    assert search.tail_ms == search.p95_ms > search.p50_ms > 0.0
    assert search.completed_per_s == pytest.approx(900.0, rel=0.3) and search.alive
    assert batch.progress_per_s > 0.0 and batch.tail_ms is None
    assert any(value is not None and value > 0.0 for value in search.readings.values())
    with pytest.raises(KeyError, match="no app `web`"):
        last.app("web")


def test_every_replication_has_its_own_object_and_random_numbers():
    class Count(lull.Policy):
        log: list = []

        def __init__(self):
            self.drawn = []

        def decide(self, seen, rng):
            self.drawn.append((rng.random(), rng.integers(0, 10), rng.seed()))
            if len(self.drawn) == 24:
                Count.log.append(self.drawn)

    scenario = lull.Scenario.from_toml(NODE)
    for policy in (Count, Count()):
        Count.log = []
        lull.simulate(scenario, policies=[policy], threads=1)
        first, Count.log = Count.log, []
        lull.simulate(scenario, policies=[policy], threads=3)
        assert len(first) == 3 and sorted(first) == sorted(Count.log)
        assert len({run[0] for run in first}) == 3
        assert all(0 <= small < 10 for run in first for _, small, _ in run)


def test_a_thread_keeps_what_is_local_to_it_between_decisions(node):
    local, calls = threading.local(), []

    class Counts(lull.Policy):
        def decide(self, seen, rng):
            local.calls = getattr(local, "calls", 0) + 1
            calls.append(local.calls)

    # A thread whose state is made for each call has lost it, and pays for that.
    for _ in range(2):
        lull.simulate(node, policies=[Counts], replications=1, threads=1)
    assert calls == [*range(1, 25), *range(1, 25)]


class Broken(lull.Policy):
    def decide(self, seen, rng):
        raise LookupError("no idea")


def test_an_exception_comes_out_with_its_traceback(text):
    with pytest.raises(LookupError, match="no idea") as raised:
        lull.simulate(lull.Scenario.from_toml(text), policies=[Broken])
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert ("decide", 'raise LookupError("no idea")') in [(f.name, f.line) for f in frames]


def test_an_exception_of_the_beginning_comes_out():
    class Late(lull.Policy):
        def start(self, machine, apps):
            raise OSError("no model file")

    with pytest.raises(OSError, match="no model file"):
        lull.simulate(lull.Scenario.from_toml(NODE), policies=[Late])
    with pytest.raises(NotImplementedError, match="Policy has no method `decide`"):
        lull.simulate(lull.Scenario.from_toml(NODE), policies=[lull.Policy])


def planned(*wishes):
    class Planned(lull.Policy):
        def decide(self, seen, rng):
            plan = lull.Plan()
            for knob, value, of in wishes:
                plan.set(knob, value, of=of)
            return plan

    return Planned


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (("turbo", 1, None), "no knob `turbo`; there are: cores, scheduling"),
        (("frequency", 2e9, 0), "`frequency` cannot be set here"),
        (("cores", "0-1", None), "`cores` has several owners: give of=, one of search, batch"),
        (("cores", "0-1", "web"), "`cores` of web\\? There are: search, batch"),
        (("cores", [], "search"), "`cores` cannot be \\[\\]: write cores as"),
        (("cores", 3, "search"), "`cores` cannot be 3: write cores as"),
        (("cores", "0-9", "search"), "cores 0-9, which is refused: the machine has cores 0-3 only"),
        (("cache-ways", [70], "search"), "`cache-ways` cannot be"),
        (("cache-ways", "0,2", "search"), "is refused: .* is not one run of ways"),
        (("scheduling", "fast", "search"), "write \"idle\", \"normal N\""),
        (("scheduling", True, "search"), "`scheduling` cannot be True"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(node, wish, message):
    knob, value, of = wish
    with pytest.raises(lull.PlanError) as raised:
        lull.simulate(node, policies=[planned((knob, value, of))])
    assert re.search(message, str(raised.value)), raised.value


def test_what_is_no_plan_is_refused(node):
    class Number(lull.Policy):
        def decide(self, seen, rng):
            return 7

    message = "policy `Number` returned 7, a int: return a lull.Plan"
    with pytest.raises(lull.PlanError, match=message):
        lull.simulate(node, policies=[Number])
    with pytest.raises(TypeError, match="derive from lull.Policy"):
        lull.simulate(node, policies=[object()])


def test_settings_are_written_in_every_form(node):
    wishes = [
        ("cores", "0-2", "search"),
        ("cores", {3}, "batch"),
        ("cache-ways", range(4), "search"),
        ("scheduling", "idle", "batch"),
        ("scheduling", "round-robin 5", "search"),
    ]
    results = lull.simulate(node, policies=[planned(*wishes)])
    assert all(20.0 < value < 26.0 for value in figure(results, "progress[batch]", "Planned"))
    plan = lull.Plan()
    plan.set("cores", "0-2", of="search")
    assert len(plan) == 1 and repr(plan) == "<lull.Plan cores of search: 0-2>"


def test_a_scenario_of_dispatchers_takes_none():
    from conftest import ROOT

    scenario = lull.Scenario.from_toml(ROOT / "examples/sim/eetl-amp.toml")
    with pytest.raises(lull.ConfigError, match="only those of the registry"):
        lull.simulate(scenario, policies=[Keep])
