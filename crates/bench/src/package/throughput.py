"""Throughput of a sweep on Ray beside that on processes: `throughput.py SCENARIO [CELLS]`.

Both have two workers on this machine, and cells of about a second. The cluster is started and the
workers of both are warmed up before; the engines take turns, each first in every other round. It
needs `lull`, ray and an idle machine. Ray's workers have the priority of the processes, where Ray
itself would run them at nice 15, behind whatever else the machine does. Figures are `NAME VALUE`
lines, one for each round.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import ray

import lull

ROUNDS = 5
CELL_S = 1.0


def cell_replications(scenario: lull.Scenario) -> int:
    """Return the replications that take about a second of CPU time on one thread."""
    replications = 2
    while True:
        begun = time.process_time()
        lull.simulate(scenario, ["unmanaged"], seeds=[1], replications=replications, threads=1)
        took_s = time.process_time() - begun
        if took_s > CELL_S / 4:
            return max(2, round(replications * CELL_S / took_s))
        replications *= 2


def main(path: str, cells: int = 20) -> None:
    scenario = lull.Scenario.from_toml(path)
    replications = cell_replications(scenario)

    def cells_per_s(engine: str, count: int) -> float:
        begun = time.perf_counter()
        lull.sweep(
            scenario, {}, ["unmanaged"], seeds=range(1, count + 1), replications=replications,
            processes=2, engine=engine, progress=lambda done, total: None,
        )
        return count / (time.perf_counter() - begun)

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    rates: dict[str, list[float]] = {"processes": [], "ray": []}
    for engine in rates:
        cells_per_s(engine, 4)
    for number in range(ROUNDS):
        for engine in list(rates) if number % 2 == 0 else reversed(rates):
            rates[engine].append(cells_per_s(engine, cells))
    ray.shutdown()
    print("cells", cells)
    print("replications", replications)
    for engine, found in rates.items():
        for rate in found:
            print(f"{engine}_cells_per_s {rate:.4f}")
    ratios = [ours / theirs for theirs, ours in zip(rates["processes"], rates["ray"])]
    print(f"ratio {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
