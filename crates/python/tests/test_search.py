"""A search by ask and tell finds the least power within the bound, and repeats."""

from __future__ import annotations

import pytest

import lull

SPACE = {"coalescing": [0.0, 20.0, 50.0, 100.0, 200.0], "frequency": [1.2, 1.6, 2.0, 2.4]}
BOUND_US = 500.0


def measure(params):
    """A server whose tail grows with the delay, and whose power with the frequency."""
    tail_us = 400.0 / params["frequency"] + 2.0 * params["coalescing"]
    watts = 5.0 + 2.0 * params["frequency"] ** 2 + 3.0 / (1.0 + params["coalescing"] / 20.0)
    return tail_us, watts


def play(**options):
    search = lull.Search(SPACE, BOUND_US, trials=24, **options)
    proposed = []
    while (candidate := search.ask()) is not None:
        tail_us, watts = measure(candidate.params)
        late = 0 if tail_us <= BOUND_US else 100
        search.tell(candidate, tail_us=tail_us, watts=watts, requests=1000, late=late)
        proposed.append(candidate)
    return search, proposed


def test_the_best_setting_within_the_bound_is_found():
    search, proposed = play()
    grid = [
        {"coalescing": delay, "frequency": ghz}
        for delay in SPACE["coalescing"]
        for ghz in SPACE["frequency"]
    ]
    good = [measure(params)[1] for params in grid if measure(params)[0] <= BOUND_US]
    best = search.best
    assert best.meets and best.probability > 0.9
    assert measure(best.params)[1] == min(good)
    assert search.size == len(grid) and len(search.trials) == len(proposed) <= 24
    assert proposed[0].params == {"coalescing": 20.0, "frequency": 2.4}, "the fastest one first"


@pytest.mark.parametrize("method", ["apart", "penalty", "front", "random"])
def test_the_same_seed_asks_the_same(method):
    one, two, other = (play(method=method, seed=seed)[1] for seed in (1, 1, 2))
    assert one == two
    draws = method in ("penalty", "random")
    assert (one != other) == draws, "ours draws nothing in a small space"


def test_what_is_refused_is_not_proposed_again():
    search = lull.Search(SPACE, BOUND_US, trials=6)
    assert search.best is None and search.harm == 0.0
    first = search.ask()
    search.tell(first, refused="the card has no such delay")
    assert search.trials == [(first.params, None, None, "the card has no such delay")]
    second = search.ask()
    assert second.params != first.params and second.number == first.number + 1


def test_several_candidates_are_measured_at_once():
    search = lull.Search(SPACE, BOUND_US, trials=24)
    batches = []
    while batch := [it for it in (search.ask() for _ in range(3)) if it is not None]:
        batches.append(batch)
        # In another order than they were proposed.
        for candidate in reversed(batch):
            tail_us, watts = measure(candidate.params)
            late = 0 if tail_us <= BOUND_US else 100
            search.tell(candidate, tail_us=tail_us, watts=watts, requests=1000, late=late)
    first = batches[0]
    assert all(first.count(it) == 1 for it in first) and len(first) == 3
    assert len({tuple(it.params.values()) for it in first}) == 3, "each another setting"
    assert 3 < len(search.trials) <= 24 and search.best.meets
    # Open candidates count as trials, so that no more are proposed than were wanted.
    search = lull.Search(SPACE, BOUND_US, trials=4)
    proposed = [search.ask() for _ in range(5)]
    assert proposed[4] is None and None not in proposed[:4] and search.trials == []


def test_bad_spaces_and_readings_are_refused():
    for space, message in [
        ({"turbo": [1.0, 2.0]}, "no knob `turbo`"),
        ({"scheduling": [1.0, 2.0]}, "is no number"),
        ({"frequency": [2.0]}, "2 to 65,535"),
        ({"cores": [0.0, 1.0]}, "cannot be set to"),
        ({}, "nothing to search"),
    ]:
        with pytest.raises(ValueError, match=message):
            lull.Search(space, BOUND_US)
    with pytest.raises(ValueError, match="bound_us = -1"):
        lull.Search(SPACE, -1.0)
    with pytest.raises(ValueError, match='method = "best"'):
        lull.Search(SPACE, BOUND_US, method="best")
    search = lull.Search(SPACE, BOUND_US)
    candidate = search.ask()
    with pytest.raises(TypeError, match="tail_us, watts, requests and late"):
        search.tell(candidate, tail_us=1.0, watts=1.0)
    with pytest.raises(ValueError, match="both are above 0"):
        search.tell(candidate, tail_us=float("nan"), watts=1.0, requests=1, late=0)
    with pytest.raises(ValueError, match="2 of 1 requests"):
        search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=2)
    search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=0)
    with pytest.raises(KeyError, match="has a reading already"):
        search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=0)
