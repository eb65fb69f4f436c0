"""M/M/1 and the closed network in Ciw 3, as its documentation writes them.

Usage: ciw_models.py mm1|closed SEED; prints one line of JSON.
"""

import json
import sys
import time

import ciw

# As in models.rs.
ARRIVALS_PER_S, WORK_S = 800.0, 0.001
CLIENTS, THINK_S, DEMANDS_S = 100, 10.0, (0.100, 0.120, 0.080)


def mm1():
    """Returns the network, warm-up and length, and the node where requests begin."""
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=ARRIVALS_PER_S)],
        service_distributions=[ciw.dists.Exponential(rate=1.0 / WORK_S)],
        number_of_servers=[1],
    )
    return network, 10.0, 110.0, 1


def closed():
    """The clients come once, all together, to think; they go round for ever."""
    nodes = 1 + len(DEMANDS_S)
    once = ciw.dists.Sequential([1e-9, float("inf")])
    network = ciw.create_network(
        arrival_distributions=[once] + [None] * len(DEMANDS_S),
        batching_distributions=[ciw.dists.Deterministic(CLIENTS)]
        + [ciw.dists.Deterministic(1)] * len(DEMANDS_S),
        service_distributions=[
            ciw.dists.Exponential(rate=1.0 / mean) for mean in (THINK_S, *DEMANDS_S)
        ],
        routing=[[float(to == (at + 1) % nodes) for to in range(nodes)] for at in range(nodes)],
        number_of_servers=[float("inf")] + [1] * len(DEMANDS_S),
    )
    return network, 500.0, 4_000.0, 2


def main():
    model, seed = sys.argv[1:]
    ciw.seed(int(seed))
    network, warmup_s, length_s, first = {"mm1": mm1, "closed": closed}[model]()
    simulation = ciw.Simulation(network)
    started = time.process_time()
    simulation.simulate_until_max_time(warmup_s + length_s)
    cpu_s = time.process_time() - started
    records = simulation.get_all_records(only=["service"])
    last = network.number_of_nodes
    ends = [r for r in records if r.node == last and r.exit_date > warmup_s]
    # Time at the stations: what all visits of the counted time took together.
    visits = [r for r in records if r.node >= first and r.exit_date > warmup_s]
    response_s = sum(r.exit_date - r.arrival_date for r in visits)
    print(json.dumps({
        # Ciw cannot be stopped and go on, so that its warm-up is timed with the rest.
        "cpu_s": cpu_s,
        "answered": len([r for r in records if r.node == last]),
        "mean_response_s": response_s / len(ends),
        "throughput_per_s": len(ends) / length_s,
    }))


if __name__ == "__main__":
    main()
