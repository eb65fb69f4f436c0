"""A search by Ax with its defaults, one question and one answer a line.

Usage: ax_search.py TRIALS SEED, with one line of JSON on standard input:
{"delays": [...], "frequencies": [...], "bound_us": ...}. Each trial's line of
output is {"place": [delay, frequency]}, and its answer {"tail_us", "watts"}.
The last line is {"took_ms", "chosen"}: CPU time of the suggestion after the
last trial, and what Ax takes for the best point.
"""

import json
import logging
import sys
import time
import warnings

import torch

warnings.filterwarnings("ignore")
from ax.api.client import Client  # noqa: E402
from ax.api.configs import RangeParameterConfig  # noqa: E402

logging.disable(logging.CRITICAL)
# Ours is timed on one thread, too.
torch.set_num_threads(1)


def say(what):
    print(json.dumps(what), flush=True)


def stepped(name, values):
    """A knob with evenly spaced values."""
    step = (values[-1] - values[0]) / (len(values) - 1)
    return RangeParameterConfig(
        name=name,
        parameter_type="float",
        bounds=(values[0], values[-1]),
        step_size=step,
    )


def main(trials, seed):
    knobs = json.loads(sys.stdin.readline())
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            stepped("delay", knobs["delays"]),
            stepped("frequency", knobs["frequencies"]),
        ]
    )
    client.configure_optimization(
        objective="-watts",
        outcome_constraints=[f"tail_us <= {knobs['bound_us']}"],
    )
    for _ in range(trials):
        ((index, place),) = client.get_next_trials(max_trials=1).items()
        say({"place": [place["delay"], place["frequency"]]})
        answer = json.loads(sys.stdin.readline())
        client.complete_trial(trial_index=index, raw_data=answer)
    begun = time.process_time()
    client.get_next_trials(max_trials=1)
    took_ms = (time.process_time() - begun) * 1e3
    best, *_ = client.get_best_parameterization()
    say({"took_ms": took_ms, "chosen": [best["delay"], best["frequency"]]})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
