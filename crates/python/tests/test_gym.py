"""The environment passes Gymnasium's checker and reaches what a policy reaches."""

from __future__ import annotations

import pytest
from conftest import NODE, TIERS

import lull

gymnasium = pytest.importorskip("gymnasium")
numpy = pytest.importorskip("numpy")
checker = pytest.importorskip("gymnasium.utils.env_checker")

from lull.gym import ColocationEnv  # noqa: E402


@pytest.fixture
def env():
    return ColocationEnv(NODE, epochs=8)


def test_gymnasium_finds_nothing_wrong(env):
    checker.check_env(env, skip_render_check=True)


def test_spaces_are_those_of_the_scenario(env):
    # Cores and ways of two apps; tail, load and queue of search, progress of batch, four cores.
    assert env.action_space.nvec.tolist() == [4, 4, 8, 8]
    assert env.observation_space.shape == (3 + 1 + 4,)


def test_an_episode_is_as_long_as_it_was_made_and_repeats_with_its_seed(env):
    def play(seed):
        env.reset(seed=seed)
        steps = [env.step(numpy.array([1, 1, 3, 3])) for _ in range(8)]
        assert [step[3] for step in steps] == [False] * 7 + [True]
        return [(step[0].tolist(), step[1]) for step in steps]

    assert play(5) == play(5) != play(6)


def test_cores_that_are_given_show_in_the_reward(env):
    def mean(action):
        env.reset(seed=1)
        return sum(env.step(numpy.array(action))[1] for _ in range(8)) / 8

    shared, apart = mean([3, 3, 7, 7]), mean([1, 1, 3, 3])
    assert 0.0 <= shared < apart <= 1.0


def test_an_action_is_a_plan(env):
    assert repr(env.plan(numpy.array([1, 0, 3, 3]))) == (
        "<lull.Plan cores of search: range(0, 2), cores of batch: range(3, 4), "
        "cache-ways of search: range(0, 4), cache-ways of batch: range(4, 8)>"
    )
    with pytest.raises(ValueError, match="is not in"):
        env.plan(numpy.array([4, 0, 0, 0]))


def test_the_reward_may_be_the_callers(env):
    env = ColocationEnv(NODE, epochs=2, reward=lambda seen, entropy: -seen.app("search").p95_ms)
    env.reset(seed=1)
    _, reward, _, _, info = env.step(env.action_space.sample())
    assert reward == -env.seen.app("search").p95_ms and info["refused"] == []


def test_only_apps_that_share_a_machine_have_one():
    with pytest.raises(lull.SimulationError, match=r"a scenario with \[node\]"):
        ColocationEnv(TIERS)
    with pytest.raises(ValueError, match="epochs = 0"):
        ColocationEnv(NODE, epochs=0)
    with pytest.raises(ValueError, match="epoch_s = 0"):
        ColocationEnv(NODE, epoch_s=0.0)
