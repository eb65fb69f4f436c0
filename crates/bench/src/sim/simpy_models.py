"""M/M/1 and the closed network in SimPy 4, as its documentation writes them.

Usage: simpy_models.py mm1|closed SEED; prints one line of JSON.
"""

import json
import random
import sys
import time

import simpy

# As in models.rs.
ARRIVALS_PER_S, WORK_S = 800.0, 0.001
CLIENTS, THINK_S, DEMANDS_S = 100, 10.0, (0.100, 0.120, 0.080)


class Seen:
    """Answered requests and the sum of their response times."""

    def __init__(self):
        self.answered = 0
        self.response_s = 0.0

    def add(self, response_s):
        self.answered += 1
        self.response_s += response_s


def customer(env, queue, seen):
    arrived = env.now
    with queue.request() as turn:
        yield turn
        yield env.timeout(random.expovariate(1.0 / WORK_S))
    seen.add(env.now - arrived)


def arrivals(env, queue, seen):
    while True:
        yield env.timeout(random.expovariate(ARRIVALS_PER_S))
        env.process(customer(env, queue, seen))


def client(env, stations, seen):
    while True:
        yield env.timeout(random.expovariate(1.0 / THINK_S))
        requested = env.now
        for station, demand_s in stations:
            with station.request() as turn:
                yield turn
                yield env.timeout(random.expovariate(1.0 / demand_s))
        seen.add(env.now - requested)


def mm1(env, seen):
    env.process(arrivals(env, simpy.Resource(env), seen))
    return 10.0, 250.0


def closed(env, seen):
    stations = [(simpy.Resource(env), demand_s) for demand_s in DEMANDS_S]
    for _ in range(CLIENTS):
        env.process(client(env, stations, seen))
    return 1_000.0, 10_000.0


def main():
    model, seed = sys.argv[1:]
    random.seed(int(seed))
    env, seen = simpy.Environment(), Seen()
    warmup_s, length_s = {"mm1": mm1, "closed": closed}[model](env, seen)
    env.run(until=warmup_s)
    seen.answered, seen.response_s = 0, 0.0
    started = time.process_time()
    env.run(until=warmup_s + length_s)
    cpu_s = time.process_time() - started
    print(json.dumps({
        "cpu_s": cpu_s,
        "answered": seen.answered,
        "mean_response_s": seen.response_s / seen.answered,
        "throughput_per_s": seen.answered / length_s,
    }))


if __name__ == "__main__":
    main()
