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


def progress(params):
    """Best-effort work, which interrupts and low frequencies slow down."""
    return params["frequency"] * (1.0 + params["coalescing"]) ** 0.25


def play(bound_us=BOUND_US, progress=None, **options):
    search = lull.Search(SPACE, bound_us, trials=24, **options)
    proposed = []
    while (candidate := search.ask()) is not None:
        tail_us, watts = measure(candidate.params)
        search.tell(
            candidate,
            tail_us=tail_us,
            watts=watts,
            requests=1000,
            late=0 if tail_us <= bound_us else 100,
            progress_per_s=None if progress is None else progress(candidate.params),
        )
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
    assert best.meets and best.evidence.probability > 0.9
    evidence = best.evidence
    assert evidence.trials >= 6 and evidence.requests == 1000 * evidence.trials
    assert evidence.late == 0 and evidence.at_least <= evidence.at_most <= evidence.allowed
    assert evidence.allowed == pytest.approx(0.01)
    assert measure(best.params)[1] == min(good)
    assert search.size == len(grid) and len(search.trials) == len(proposed) <= 24
    assert proposed[0].params == {"coalescing": 20.0, "frequency": 2.4}, "the fastest one first"


@pytest.mark.parametrize("method", ["apart", "penalty", "front", "random"])
def test_the_same_seed_asks_the_same(method):
    one, two, other = (play(method=method, seed=seed)[1] for seed in (1, 1, 2))
    assert one == two
    draws = method in ("penalty", "random")
    assert (one != other) == draws, "ours draws nothing in a small space"


def test_searches_differ_and_can_be_repeated():
    one, proposed = play(method="random")
    others = [play(method="random") for _ in range(3)]
    assert all(other.seed != one.seed for other, _ in others)
    # 24 draws of 20 settings each.
    assert any(other != proposed for _, other in others)
    assert play(method="random", seed=one.seed)[1] == proposed


def test_the_front_is_searched_with_progress_where_readings_have_it():
    search, _ = play(method="front", seed=1)
    front = search.front
    assert len(front) >= 3 and search.best.meets
    assert all(one.progress_per_s is None for one in front)
    for less, more in zip(front, front[1:]):
        assert less.watts < more.watts and less.tail_us > more.tail_us
    assert {tuple(one.params) for one in front} == {tuple(SPACE)}
    search, _ = play(method="front", progress=progress, seed=1)
    front = search.front
    assert all(one.progress_per_s > 0.0 for one in front)
    most = max(front, key=lambda one: one.progress_per_s)
    fastest = min(front, key=lambda one: one.tail_us)
    assert most.params["coalescing"] > fastest.params["coalescing"]
    assert lull.Search(SPACE, BOUND_US).front == [], "nothing is known before the second reading"


def test_a_safe_search_tries_a_setting_of_another_load_only_once_it_can_predict():
    before = {"coalescing": 200.0, "frequency": 1.2}
    for method in ("apart", "front"):
        bold, careful = (
            play(begin_with=before, method=method, safe=safe)[1][1].params
            for safe in (False, True)
        )
        assert bold == before
        assert careful in (
            {"coalescing": 50.0, "frequency": 2.4},
            {"coalescing": 20.0, "frequency": 2.0},
        )
    for method in ("penalty", "random"):
        with pytest.raises(ValueError, match="safe = True: the methods penalty and random"):
            lull.Search(SPACE, BOUND_US, method=method, safe=True)


def test_a_safe_search_without_a_prediction_says_why_it_stays():
    search = lull.Search(SPACE, BOUND_US, trials=24, safe=True)
    first = search.ask()
    assert search.stayed is None
    search.tell(first, tail_us=200.0, watts=9.0, requests=1000, late=0)
    while (candidate := search.ask()) is not None:
        if candidate.params == first.params:
            search.tell(candidate, tail_us=200.0, watts=9.0, requests=1000, late=0)
        else:
            search.tell(candidate, refused="not here")
    assert "every step from the fastest setting was refused (not here)" in search.stayed
    assert search.best.meets and search.best.params == first.params


def test_a_search_that_was_late_often_tries_what_is_nearly_certain():
    def late(search):
        return sum(it.tail_us > BOUND_US for it in search.trials)

    careful, careless = (play(harm_max=most, seed=1)[0] for most in (0.0, 1.0))
    assert late(careful) < late(careless)


def test_a_setting_that_was_good_before_is_tried_early():
    before = {"frequency": 1.6, "coalescing": 50.0}
    proposed = play(begin_with=before)[1]
    assert proposed[1].params == before
    no_number = {**before, "frequency": float("nan")}
    for wrong in ({"frequency": 1.6}, {**before, "cores": 2.0}, no_number):
        with pytest.raises(ValueError, match="a number for each of coalescing, frequency"):
            lull.Search(SPACE, BOUND_US, begin_with=wrong)


def test_a_level_that_a_knob_refuses_is_not_proposed_with_other_levels():
    search = lull.Search(SPACE, BOUND_US, trials=24)
    refused = []
    while (candidate := search.ask()) is not None:
        delay = candidate.params["coalescing"]
        if delay > 20.0:
            refused.append(delay)
            search.tell(candidate, refused="the card has no such delay", knob="coalescing")
            continue
        tail_us, watts = measure(candidate.params)
        search.tell(candidate, tail_us=tail_us, watts=watts, requests=1000, late=0)
    assert refused and len(set(refused)) == len(refused)
    with pytest.raises(ValueError, match="the search has no knob `cores`; it has: coalescing"):
        lull.Search(SPACE, BOUND_US).tell(0, refused="not here", knob="cores")


def test_the_requests_that_a_trial_takes_grow_with_the_percentile():
    percentiles = (90, 95, 99, 99.9, 99.99)
    least = [lull.Search(SPACE, BOUND_US, percentile=it).least_requests for it in percentiles]
    assert least == [10, 20, 100, 1000, 10_000]


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
        ({"scheduling": [1.0, 2.0]}, "is not a number"),
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
    with pytest.raises(ValueError, match="progress_per_s = -1"):
        search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=0, progress_per_s=-1.0)
    with pytest.raises(ValueError, match="harm_max = 2"):
        lull.Search(SPACE, BOUND_US, harm_max=2.0)
    with pytest.raises(ValueError, match="2 of 1 requests"):
        search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=2)
    search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=0)
    with pytest.raises(KeyError, match="has a reading already"):
        search.tell(candidate, tail_us=1.0, watts=1.0, requests=1, late=0)
