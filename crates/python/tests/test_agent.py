"""The agent in this process: it steers real processes, and restores what it has changed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT

import lull

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided"
)

#: Epochs until something must have happened; the waits below end with what they wait for.
EPOCHS = 200


@pytest.fixture
def app():
    """A process that may use all cores and does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def config(app, tmp_path):
    return f"""
[agent]
state = "{tmp_path}/state"
record = "{tmp_path}/records"
epoch = "100ms"

[policy]
name = "unmanaged"

[[app]]
name = "batch"
class = "best-effort"
progress = "cpu-time"
solo = 1.0
pid = {app.pid}
"""


@pytest.fixture
def start(config, program):
    """Starts an agent of the config; a busy machine makes no decision of its policy late."""

    def start(text=config, **options):
        if "policy" in options:
            options.setdefault("time_limit_s", 1.0)
        return lull.agent.start(text, program=program, **options)

    return start


class OneCore(lull.Policy):
    """Gives the app one core."""

    def start(self, machine, apps):
        self.cores = machine.cores

    def decide(self, seen, rng):
        plan = lull.Plan()
        plan.set("cores", [0], of="batch")
        return plan


class Raises(OneCore):
    """Raises in every decision but the first."""

    calls = 0

    def decide(self, seen, rng):
        self.calls += 1
        if self.calls > 1:
            raise ZeroDivisionError("no share")
        return super().decide(seen, rng)


class Nonsense(lull.Policy):
    def decide(self, seen, rng):
        return {"cores": 1}


class NoSuchKnob(lull.Policy):
    def decide(self, seen, rng):
        plan = lull.Plan()
        plan.set("turbo", True)
        return plan


class Hangs(OneCore):
    """Does not return from its second decision until it is released."""

    released = threading.Event()
    calls = 0

    def decide(self, seen, rng):
        Hangs.calls += 1
        if Hangs.calls == 2:
            self.released.wait()
        return super().decide(seen, rng)


def cores(app):
    return os.sched_getaffinity(app.pid)


def until(agent, condition):
    """The first observation for which the condition holds."""
    for observation in itertools.islice(agent, EPOCHS):
        if condition(observation):
            return observation
    raise AssertionError("it did not happen")


def says(text):
    return lambda observation: any(text in line for line in observation.journal)


def test_a_policy_in_python_steers_a_process_and_its_knobs_are_restored(app, start):
    before = cores(app)
    with start(policy=OneCore, steer=True) as agent:
        seen = until(agent, lambda _: cores(app) == {0})
        assert agent.machine.cores == os.cpu_count() and [it.name for it in agent.apps] == ["batch"]
        seen = until(agent, lambda seen: ("cores", "batch") in seen.settings)
        assert seen.settings["cores", "batch"] == "0" and seen.policy == "OneCore"
        assert seen.app("batch").alive and seen.app("batch").threads == 1
        assert isinstance(seen, lull.Observation) and not seen.safe and 0 <= seen.entropy <= 1
    assert agent.ended and cores(app) == before
    assert agent.stop() == "knobs are as they were"
    record = lull.records.open(agent.record)
    events = record.table("journal").to_dict()["event"]
    assert any('"decision"' in event for event in events)


def test_a_policy_without_the_flag_decides_beside_that_of_the_config(app, start):
    before = cores(app)
    with start(policy=OneCore()) as agent:
        seen = until(agent, lambda seen: seen.shadow)
        assert "OneCore would: batch: cores 0" in seen.shadow[0], seen.shadow
        assert seen.policy == "unmanaged" and cores(app) == before


def test_a_dry_run_writes_no_knob(app, start):
    before = cores(app)
    with start(policy=OneCore, steer=True, dry_run=True) as agent:
        assert until(agent, says("not done (dry run)")) and cores(app) == before


@pytest.mark.parametrize(
    "policy, cause",
    [
        (Raises, "ZeroDivisionError: no share ("),
        (Nonsense, "returned {'cores': 1}, a dict: return a lull.Plan"),
        (NoSuchKnob, "there is no knob `turbo`"),
    ],
)
def test_a_policy_that_fails_is_replaced_by_the_safe_state_and_named(policy, cause, app, start):
    before = cores(app)
    with start(policy=policy, steer=True) as agent:
        name = policy.__name__
        seen = until(agent, says(f"SLO-safe state: policy `{name}` cannot be followed: "))
        assert seen.safe and any(cause in line for line in seen.journal), seen.journal
        until(agent, lambda _: cores(app) == before)
    assert agent.stop() == "knobs are as they were"


def test_an_exception_is_named_with_its_line_and_one_in_shadow_leaves_the_run_alone(app, start):
    with start(policy=Raises) as agent:
        seen = until(agent, lambda seen: any("cannot be followed" in it for it in seen.shadow))
        assert f"{__file__}:" in " ".join(seen.shadow) and not seen.safe


def test_a_policy_that_does_not_return_neither_stops_the_agent_nor_its_end(app, start):
    before = cores(app)
    Hangs.calls = 0
    try:
        with start(policy=Hangs, steer=True, time_limit_s=0.05) as agent:
            seen = until(agent, says("policy `Hangs` did not decide within 0.05 s"))
            assert seen.safe
            assert until(agent, lambda it: it.number > seen.number + 2).safe
            until(agent, lambda _: cores(app) == before)
            Hangs.released.set()
            until(agent, says("the policy is followed again"))
            until(agent, lambda _: cores(app) == {0})
            # A policy that hangs at the end does not keep the knobs.
            Hangs.released.clear()
            Hangs.calls = 1
        assert cores(app) == before
    finally:
        Hangs.released.set()


def test_a_busy_interpreter_delays_no_epoch(app, start):
    with start() as agent:
        first = next(agent)
        # A loop that never releases the lock of its own accord.
        while sum(range(1000)) and agent._run.take() is None:
            pass
        numbers = [it.number for it in itertools.islice(agent, 3)]
        assert numbers == list(range(numbers[0], numbers[0] + 3)) and numbers[0] > first.number


def test_observations_are_awaited(app, start):
    before = cores(app)

    async def main():
        seen = []
        async with start(policy=OneCore, steer=True) as agent:
            async for observation in agent:
                seen.append(observation.number)
                if cores(app) == {0} and len(seen) > 2:
                    break
            # A wait that is cancelled takes no observation with it.
            waiting = asyncio.ensure_future(anext(agent))
            await asyncio.sleep(0)
            waiting.cancel()
            seen.append((await anext(agent)).number)
        with pytest.raises(StopAsyncIteration):
            while True:
                await anext(agent)
        return seen

    seen = asyncio.run(main())
    assert seen == list(range(seen[0], seen[0] + len(seen))) and cores(app) == before


def test_ctrl_c_ends_the_wait_and_the_block_restores_the_knobs(app, start):
    before = cores(app)
    with pytest.raises(KeyboardInterrupt):
        with start(policy=OneCore, steer=True) as agent:
            until(agent, lambda _: cores(app) == {0})
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            for _ in agent:
                pass
    assert agent.ended and cores(app) == before


def test_an_agent_that_is_dropped_or_outlives_the_script_restores_the_knobs(
    app, config, program, start
):
    before = cores(app)
    agent = start(policy=OneCore, steer=True)
    until(agent, lambda _: cores(app) == {0})
    del agent
    gc.collect()
    deadline = time.monotonic() + 60
    while cores(app) != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    script = f"""
import itertools, os, lull
class OneCore(lull.Policy):
    def decide(self, seen, rng):
        plan = lull.Plan()
        plan.set("cores", [0], of="batch")
        return plan
agent = lull.agent.start({config!r}, program={os.fspath(program)!r}, policy=OneCore, steer=True)
while os.sched_getaffinity({app.pid}) != {{0}}:
    next(agent)
if os.environ["END"] == "kill":
    os.kill(os.getpid(), 9)
"""
    for end, status in [("exit", 0), ("kill", -9)]:
        environment = {**os.environ, "END": end}
        done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=120)
        assert done.returncode == status
        while cores(app) != before:
            assert time.monotonic() < deadline + 60
            time.sleep(0.01)


def test_errors_have_the_text_and_the_place_of_the_command(
    app, config, program, start, tmp_path, run
):
    file = tmp_path / "lull.toml"
    file.write_text(config.replace('name = "unmanaged"', 'name = "unmanged"'))
    with pytest.raises(lull.ConfigError) as raised:
        start(file)
    error = raised.value
    assert (error.file, error.key) == (os.fspath(file), "policy.name") and error.line is not None
    assert str(error) in run("run", os.fspath(file), status=2)[1]
    with pytest.raises(lull.ConfigError, match="pid"):
        start(config.replace(f"pid = {app.pid}", f"pid = {os.getpid()}"))
    with start():
        with pytest.raises(lull.AgentError, match="another agent|already"):
            start()
    for program in ("/nowhere/lull", sys.executable):
        with pytest.raises(lull.AgentError, match="lull|version"):
            lull.agent.start(config, program=program)
    with pytest.raises(lull.LullError, match="a policy of Lull has this name"):
        start(policy=type("even", (OneCore,), {}), steer=True)


def test_a_policy_that_cannot_start_raises_its_own_exception(start):
    class Fails(OneCore):
        def start(self, machine, apps):
            raise FileNotFoundError("weights.pt")

    with pytest.raises(FileNotFoundError, match="weights"):
        start(policy=Fails, steer=True)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"steer": True}, "give policy"),
        ({"policy": OneCore, "shadow": "even"}, "give one of them"),
        ({"time_limit_s": 0.5}, "for a policy of yours"),
        ({"policy": OneCore, "time_limit_s": 2.0}, "1 at most"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, text, start):
    with pytest.raises(ValueError, match=text):
        start(**options)


def test_an_app_that_ends_is_reported_and_a_started_one_ends_the_run(config, start, app):
    text = config.replace(f"pid = {app.pid}", 'start = ["sleep", "0.4"]')
    agent = start(text)
    with pytest.raises(lull.AgentError, match="all apps have exited; their output is in"):
        with agent:
            for observation in agent:
                last = observation
    assert not last.app("batch").alive and agent.ended


def test_a_fork_leaves_the_agent_to_its_parent(app, start):
    with start(policy=OneCore, steer=True) as agent:
        until(agent, lambda _: cores(app) == {0})
        child = os.fork()
        if child == 0:
            try:
                agent.stop()
            except RuntimeError:
                del agent
                gc.collect()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert next(agent).number >= 0 and cores(app) == {0}


def test_the_example_of_the_page_runs(config, program, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/python.md").read_text()
    fence = r'^```python title="a policy in shadow"\n(.*?)^```'
    (block,) = re.findall(fence, page, re.DOTALL | re.MULTILINE)
    (tmp_path / "lull.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.fspath(program.parent), prepend=os.pathsep)
    exec(compile(block, "docs/python.md", "exec"), {"lull": lull, "__name__": "docs"})
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 10 and "LastCore would: batch: cores" in printed
