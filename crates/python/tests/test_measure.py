"""Entropy, bounds, statistics and theory agree with values that are known."""

from __future__ import annotations

import math

import pytest

import lull
from lull import statistics, theory


def test_entropy_is_that_of_the_definition():
    # Q = 1 - bound / measured where the bound is missed, and 0 where it is kept.
    missed = lull.entropy(latency_critical=[(2.0, 8.0, 4.0)])
    assert missed.latency_critical == missed.system == pytest.approx(0.5)
    assert lull.entropy(latency_critical=[(2.0, 3.0, 4.0)]).system == 0.0
    both = lull.entropy([(2.0, 8.0, 4.0)], [(4.0, 2.0)], importance=0.8)
    assert both.best_effort == pytest.approx(0.5)
    assert both.system == pytest.approx(0.8 * 0.5 + 0.2 * 0.5)
    for wrong in ([(2.0, -1.0, 4.0)], [(0.0, 1.0, 4.0)]):
        with pytest.raises(ValueError, match="are above 0"):
            lull.entropy(wrong)
    for wrong in ([(4.0, math.inf)], [(math.nan, 2.0)]):
        with pytest.raises(ValueError, match="progress alone is a number above 0"):
            lull.entropy([(2.0, 3.0, 4.0)], wrong)
    with pytest.raises(ValueError, match="no app"):
        lull.entropy()
    with pytest.raises(ValueError):
        lull.entropy([(2.0, 3.0, 4.0)], importance=2.0)


def test_equivalence_of_resources_interpolates():
    first, second = [(6, 0.55), (7, 0.19), (8, 0.0)], [(5, 0.5), (6, 0.0)]
    assert lull.equivalence(0.25, first, second) == pytest.approx(1.3333, abs=1e-4)
    assert lull.equivalence(0.9, first, second) is None


def test_the_tail_bounds_the_throughput():
    bound = lull.tlt([1.0] * 99 + [100.0], 99.0)
    assert bound.tail_ms == 1.0 and bound.ratio <= bound.ratio_max * (1 + 1e-12)
    for none in ([], [0.0, 0.0]):
        with pytest.raises(ValueError, match="no latency above 0 ms"):
            lull.tlt(none, 99.0)
    with pytest.raises(ValueError):
        lull.tlt([1.0], 100.0)


def test_intervals_are_students():
    one = statistics.estimate([1.0, 2.0, 3.0])
    # t of 97.5 % with two degrees of freedom over the square root of three.
    assert (one.mean, one.values) == (2.0, 3)
    assert one.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert one.excludes_zero is False and one.low == one.mean - one.half_width
    assert statistics.estimate([]) is None
    assert math.isinf(statistics.estimate([1.0]).half_width)
    paired = statistics.paired_difference([2.0, 3.0, 4.1], [1.0, 2.0, 3.0])
    assert paired.mean == pytest.approx(1.0333, abs=1e-3) and paired.excludes_zero
    ratio = statistics.paired_ratio([2.0, 4.0, 6.2], [1.0, 2.0, 3.0])
    assert ratio.low < ratio.ratio < ratio.high and ratio.ratio == pytest.approx(2.02, abs=0.01)
    with pytest.raises(ValueError, match="are not pairs"):
        statistics.paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not a number"):
        statistics.estimate([math.nan])


def test_bounds_of_shares_and_quantiles_hold():
    # None of n events: 1 - alpha^(1/n).
    assert statistics.proportion_upper(0, 59, 0.05) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert statistics.proportion_lower(0, 59) == 0.0
    assert statistics.quantile_upper(range(1, 60), 0.95) == 59.0
    assert statistics.quantile_upper(range(1, 10), 0.95) is None
    assert statistics.quantile_lower(range(1, 60), 0.95) < 57.0
    with pytest.raises(ValueError, match="3 events of 2 trials"):
        statistics.proportion_upper(3, 2)
    with pytest.raises(ValueError, match="alpha = 1"):
        statistics.proportion_upper(1, 2, 1.0)


def test_tests_of_differences_and_of_several_claims():
    assert statistics.sign_flip_chance([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9]) < 0.02
    assert statistics.sign_flip_chance([1.0, -1.0, 1.0, -1.0]) > 0.5
    assert statistics.holm([0.001, 0.04, 0.03]) == [True, False, False]
    low, high = statistics.studentised_interval([1.0, 1.2, 0.9, 1.1, 1.0, 3.0, 1.1], seed=1)
    assert low < 1.33 < high
    assert statistics.studentised_interval([1.0]) is None


def test_theory_is_the_textbooks():
    queue = theory.mm1(80.0, 0.01)
    assert queue.utilisation == pytest.approx(0.8)
    assert queue.response_s == pytest.approx(0.05) and queue.present == pytest.approx(4.0)
    assert theory.mm1(100.0, 0.01) is None
    assert theory.mmc(80.0, 0.01, 1).response_s == pytest.approx(queue.response_s)
    assert theory.mg1(80.0, 0.01, 1.0).response_s == pytest.approx(queue.response_s)
    assert theory.mg1(80.0, 0.01, 0.0).response_s == pytest.approx(0.03)
    assert theory.mmck(80.0, 0.01, 1, 1).lost == pytest.approx(0.8 / 1.8)
    closed = theory.mva(1.0, [(0.1, 1)], 1)
    assert closed.throughput_per_s == pytest.approx(1 / 1.1)
    with pytest.raises(ValueError, match="above 0"):
        theory.mm1(-1.0, 0.01)
    with pytest.raises(ValueError, match="room = 1"):
        theory.mmck(1.0, 1.0, 2, 1)


def test_names_of_policies_are_those_of_the_command(run):
    import json

    printed, _ = run("policies", "--json")
    listed = json.dumps(json.loads(printed))
    assert "arq" in lull.policies()
    assert all(f'"{name}"' in listed for name in lull.policies())
