"""What the package `lull` costs; one part a run, figures as `NAME VALUE` lines.

measure.py simulate SCENARIO REPLICATIONS   the simulation of `lull sim`, and its figures
measure.py call                             CPU time of a policy's call, in us
measure.py rows COUNT                       CPU time of handing a table to polars, in s
measure.py interrupt                        from Ctrl-C to its exception at most, in ms
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import lull


#: Two apps with little to do, so that the calls of 5,000 s are a large part of the whole.
SCENARIO = """
title = "calls of a policy"
[run]
warmup = "1s"
length = "5000s"
[node]
cores = 4
frequency = "2GHz"
[[app]]
name = "search"
class = "latency-critical"
threads = 2
objectives = [{ p95 = "8ms" }]
ideal = "3ms"
activity.requests.work = { mean = "1ms" }
activity.requests.load = [{ from = "0s", rate-per-s = 4.0 }]
[[app]]
name = "report"
class = "latency-critical"
threads = 2
objectives = [{ p95 = "8ms" }]
ideal = "3ms"
activity.requests.work = { mean = "1ms" }
activity.requests.load = [{ from = "0s", rate-per-s = 4.0 }]
"""


class Idle(lull.Policy):
    """Keeps all settings, as `unmanaged` does."""

    calls = 0

    def decide(self, seen: lull.Observation, rng: lull.PolicyRng) -> None:
        Idle.calls += 1


class Looks(Idle):
    """Reads the tail of every app."""

    def decide(self, seen: lull.Observation, rng: lull.PolicyRng) -> None:
        Idle.calls += 1
        self.tails = [app.tail_ms for app in seen.apps]


def simulate(path: str, replications: str) -> None:
    scenario = lull.Scenario.from_toml(path)
    results = lull.simulate(scenario, seeds=[1], replications=int(replications))
    print("rows", len(results.figures()), len(results.estimates()))


def cpu_s(act: Callable[[], object]) -> float:
    """CPU time of all threads, so that other work on the machine does not count."""
    before = time.process_time()
    act()
    return time.process_time() - before


def call() -> None:
    scenario = lull.Scenario.from_toml(SCENARIO)

    def run(policy: lull.Policy | type[lull.Policy] | str) -> None:
        lull.simulate(scenario, [policy], seeds=[1], replications=1, threads=1)

    run("unmanaged")
    bare = cpu_s(lambda: run("unmanaged"))
    for name, policy in (("idle", Idle), ("looks", Looks)):
        Idle.calls = 0
        took = cpu_s(lambda: run(policy))
        print(f"{name}_us", (took - bare) / Idle.calls * 1e6)
    print("calls", Idle.calls)


def rows(count: str) -> None:
    import polars

    number = int(count)
    columns = {
        "policy": ["unmanaged"] * number,
        "replication": [1] * number,
        "p95_ms": [1.5] * number,
        "throughput_per_s": [1000.0] * number,
    }
    table = lull.Table.from_dict(columns)
    frames = []
    print("polars_s", cpu_s(lambda: frames.append(polars.DataFrame(table))))
    assert frames[0].shape == (number, len(columns)) and frames[0]["p95_ms"].sum() == 1.5 * number


#: How long a simulation runs before it is interrupted, and how often each is.
RUN_S = 0.2
INTERRUPTS = 2


def interrupt() -> None:
    # It is ignored where a shell has begun this in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    scenario = lull.Scenario.from_toml(SCENARIO).with_values({"run.length": "1000h"})
    waits_ms = []
    for policy in ("unmanaged", Idle) * INTERRUPTS:
        sent: list[float] = []

        def press() -> None:
            time.sleep(RUN_S)
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        try:
            lull.simulate(scenario, [policy], seeds=[1], replications=2)
        except KeyboardInterrupt:
            waits_ms.append((time.perf_counter() - sent[0]) * 1e3)
    print("interrupt_ms", max(waits_ms))
    assert len(waits_ms) == 2 * INTERRUPTS


PARTS = {"simulate": simulate, "call": call, "rows": rows, "interrupt": interrupt}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
