"""A search by Optuna's TPE, SMAC3, Ax or Sobol points, one question and one answer a line.

Usage: peer_search.py NAME TRIALS SEED, with one line of JSON on standard input:
{"knobs": [[value, ...], ...], "bound_us": ...}. Each trial's line of output is
{"place": [level, ...]}, the number of the level of each knob, and its answer
{"tail_us", "watts"}. The last line is {"took_ms", "chosen"}: CPU time of all
suggestions over their number, and the levels that the search takes for the best.

TPE has the tail as a constraint, and Ax as an outcome constraint. SMAC3 knows no
constraints: it minimises the penalty of Dong et al. 2026, equation 4, by its logarithm. Sobol
points are scrambled by the seed and do not depend on what was measured.
"""

import json
import logging
import math
import sys
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)


def say(what):
    print(json.dumps(what), flush=True)


class Caller:
    """The server at the other end of the pipe."""

    def __init__(self):
        setup = json.loads(sys.stdin.readline())
        self.knobs = setup["knobs"]
        self.bound_us = setup["bound_us"]
        self.tried = []

    def names(self):
        return [f"knob{number}" for number in range(len(self.knobs))]

    def measure(self, place):
        say({"place": place})
        answer = json.loads(sys.stdin.readline())
        self.tried.append((place, answer))
        return answer

    def best(self):
        """The least power of the trials that met the bound, or the fastest one."""
        met = [it for it in self.tried if it[1]["tail_us"] <= self.bound_us]
        if met:
            return min(met, key=lambda it: it[1]["watts"])[0]
        return min(self.tried, key=lambda it: it[1]["tail_us"])[0]


def optuna_tpe(caller, trials, seed):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    constraints = lambda trial: trial.user_attrs["over"]
    sampler = optuna.samplers.TPESampler(seed=seed, constraints_func=constraints)
    study = optuna.create_study(sampler=sampler)
    took = 0.0
    for _ in range(trials):
        begun = time.process_time()
        trial = study.ask()
        pairs = zip(caller.names(), caller.knobs)
        place = [trial.suggest_int(name, 0, len(levels) - 1) for name, levels in pairs]
        took += time.process_time() - begun
        answer = caller.measure(place)
        trial.set_user_attr("over", [math.log(answer["tail_us"] / caller.bound_us)])
        study.tell(trial, math.log(answer["watts"]))
    return took


def smac(caller, trials, seed):
    from ConfigSpace import ConfigurationSpace, UniformIntegerHyperparameter
    from smac import BlackBoxFacade, Scenario

    space = ConfigurationSpace(seed=seed)
    for name, levels in zip(caller.names(), caller.knobs):
        space.add(UniformIntegerHyperparameter(name, 0, len(levels) - 1))
    measured = [0.0]

    def penalty(config, seed=0):
        begun = time.process_time()
        answer = caller.measure([int(config[name]) for name in caller.names()])
        over = max(answer["tail_us"] - caller.bound_us + 1, 1)
        measured[0] += time.process_time() - begun
        return math.log(answer["watts"] * over)

    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        scenario = Scenario(
            space, n_trials=trials, seed=seed, deterministic=True, output_directory=directory
        )
        begun = time.process_time()
        BlackBoxFacade(scenario, penalty, overwrite=True, logging_level=False).optimize()
        return time.process_time() - begun - measured[0]


def ax(caller, trials, seed):
    import torch
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    # Ours is timed on one thread, too.
    torch.set_num_threads(1)
    client = Client(random_seed=seed)
    knob = lambda name, levels: RangeParameterConfig(
        name=name, parameter_type="int", bounds=(0, len(levels) - 1)
    )
    client.configure_experiment(
        parameters=[knob(name, levels) for name, levels in zip(caller.names(), caller.knobs)]
    )
    client.configure_optimization(
        objective="-watts", outcome_constraints=[f"tail_us <= {caller.bound_us}"]
    )
    took = 0.0
    for _ in range(trials):
        begun = time.process_time()
        ((index, place),) = client.get_next_trials(max_trials=1).items()
        took += time.process_time() - begun
        answer = caller.measure([int(place[name]) for name in caller.names()])
        client.complete_trial(trial_index=index, raw_data=answer)
    return took


def sobol(caller, trials, seed):
    from scipy.stats import qmc

    begun = time.process_time()
    points = qmc.Sobol(d=len(caller.knobs), seed=seed).random(trials)
    took = time.process_time() - begun
    for point in points:
        pairs = zip(point, caller.knobs)
        caller.measure([min(int(at * len(levels)), len(levels) - 1) for at, levels in pairs])
    return took


SEARCHES = {"optuna": optuna_tpe, "smac": smac, "ax": ax, "sobol": sobol}


def main(name, trials, seed):
    caller = Caller()
    took = SEARCHES[name](caller, trials, seed)
    say({"took_ms": took / trials * 1e3, "chosen": caller.best()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
