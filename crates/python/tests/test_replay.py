"""Replays are the command's, and a policy in Python fails in them as in a simulation."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from conftest import ROOT

import lull

RECORD = ROOT / "docs" / "notebooks" / "day.db"
LOOSE = {"max_error": 1e6, "replications": 2}


class Keep(lull.Policy):
    """Leaves everything as it is, as `unmanaged` does."""

    def decide(self, seen, rng):
        assert [app.name for app in seen.apps] == [app.name for app in self.apps]
        return None

    def start(self, machine, apps):
        self.apps = apps


@pytest.fixture(scope="module")
def replayed():
    return lull.replay(RECORD, ["even", Keep], **LOOSE)


def test_a_replay_has_the_numbers_of_the_command(replayed, run):
    options = ("--policy", "even", "--seeds", "2", "--max-error", "1000000", "--json")
    wanted = json.loads(run("replay", str(RECORD), *options)[0])
    assert (replayed.policy, replayed.error, replayed.error_of) == (
        wanted["policy"], wanted["error"], wanted["error_of"],
    )
    assert (replayed.share, replayed.demand_error) == (wanted["share"], wanted["demand_error"])
    rows = replayed.reproduction().to_dict()
    names = ("figure", "measured", "replayed", "error")
    figures = wanted["reproduction"]
    assert [dict(zip(names, row)) for row in zip(*(rows[name] for name in names))] == [
        {name: figure[name] for name in names} for figure in figures
    ]
    means = replayed.results.estimates().to_dict()
    got = [
        (policy, figure, mean)
        for policy, figure, mean in zip(means["policy"], means["figure"], means["mean"])
        if policy != "Keep"
    ]
    assert got == [
        (policy["label"], figure["figure"], figure["mean"])
        for policy in wanted["prediction"]["policies"]
        for figure in policy["figures"]
    ]


def test_a_policy_in_python_that_keeps_all_is_like_the_recorded_one(replayed):
    assert replayed.results.policies == ["unmanaged (recorded)", "even", "Keep"]
    table = replayed.results.figures().to_dict()
    rows = list(zip(table["policy"], table["replication"], table["figure"], table["value"]))
    def of(policy):
        return {row[1:3]: row[3] for row in rows if row[0] == policy}
    recorded, kept = of("unmanaged (recorded)"), of("Keep")
    # A latency near saturation is not predicted, so it is missing.
    assert all(kept[at] in (None, recorded[at]) for at in recorded)
    assert sum(value is not None for value in kept.values()) > 5


def test_what_is_not_reproduced_is_not_predicted_and_comes_with_its_errors(run):
    with pytest.raises(lull.ReplayError) as raised:
        lull.replay(RECORD, ["even"], max_error=1e-6, replications=2)
    options = ("--policy", "even", "--seeds", "2", "--max-error", "0.000001")
    _, printed = run("replay", str(RECORD), *options, status=2)
    assert str(raised.value) in printed
    errors = raised.value.reproduction.to_dict()["error"]
    assert any(error for error in errors)


def test_errors_are_those_of_the_command(run, tmp_path):
    def refused(error, words, *options, record=RECORD, policy="even", **arguments):
        with pytest.raises(error, match=words) as raised:
            lull.replay(record, [policy], **arguments)
        _, printed = run("replay", str(record), "--policy", policy, *options, status=2)
        assert str(raised.value) in printed
        return raised.value

    refused(lull.RecordError, "missing.db", record=tmp_path / "missing.db")
    refused(lull.RecordError, "no part `tide`", "--part", "tide", part="tide")
    refused(lull.ReplayError, "no epoch is left", "--skip", "1h", skip_s=3600)
    error = refused(lull.ConfigError, "lc-first", policy="lcfirst")
    assert (error.file, error.key) == (str(RECORD), "--policy")
    refused(lull.ConfigError, "bayop", policy="bayop")


def test_bad_arguments_are_refused():
    for arguments in (
        {"max_error": 0.0}, {"replications": 1}, {"skip_s": -1.0}, {"threads": 0},
        {"max_error": float("nan")},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            lull.replay(RECORD, ["even"], **arguments)
    with pytest.raises(ValueError, match="policies is empty"):
        lull.replay(RECORD, [])
    with pytest.raises(TypeError, match="policies is a list"):
        lull.replay(RECORD, "even")


def failing(answer):
    class Failing(Keep):
        def decide(self, seen, rng):
            return answer()

    return Failing


def test_a_policy_that_raises_or_answers_nonsense_gives_its_exception():
    def raises():
        raise LookupError("no idea")

    def plan(knob, value, **of):
        made = lull.Plan()
        made.set(knob, value, **of)
        return made

    for error, words, answer in (
        (LookupError, "no idea", raises),
        (lull.PlanError, "return a lull.Plan", lambda: 7),
        (lull.PlanError, "volume", lambda: plan("volume", 11)),
        (lull.PlanError, "web", lambda: plan("cores", "0", of="web")),
    ):
        with pytest.raises(error, match=words):
            lull.replay(RECORD, [failing(answer)], **LOOSE)

    class Unready(Keep):
        def start(self, machine, apps):
            raise OSError("no model file")

    with pytest.raises(OSError, match="no model file"):
        lull.replay(RECORD, [Unready], **LOOSE)


def test_an_interrupt_ends_a_replay_at_once():
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lull.replay(RECORD, [Keep], **{**LOOSE, "replications": 1000})
    timer.join()


def test_replays_run_in_threads_and_give_the_same():
    got = []

    def one(threads):
        table = lull.replay(RECORD, ["even"], **LOOSE, threads=threads).results.figures()
        got.append(table.to_dict())

    threads = [threading.Thread(target=one, args=(count,)) for count in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 2 and got[0] == got[1]
