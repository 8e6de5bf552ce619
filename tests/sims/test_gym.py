"""Gymnasium's environments under this project's convention."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from embodied.sims import gym

SPACES = gymnasium.spaces


class Reuser(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Draws a number at reset, counts steps, ends with success at the second, and always returns the same arrays."""

    def __init__(self, success: bool = True) -> None:
        self.observation_space = SPACES.Dict(
            inner=SPACES.Dict(count=SPACES.Box(0, 9, (1,)), draw=SPACES.Box(0, 1, ())),
            view=SPACES.Box(0, 255, (4, 5, 3), np.uint8),
            text=SPACES.Text(20),
        )
        self.action_space = SPACES.Box(-1, 1, (2, 1))
        self.success = success
        self.taken: list[np.ndarray] = []
        self.count, self.draw = np.zeros(1, np.float32), np.zeros((), np.float32)
        self.view = np.zeros((4, 5, 3), np.uint8)

    def seen(self) -> dict[str, Any]:
        self.view[:] = int(self.count[0])
        return {
            "inner": {"count": self.count, "draw": self.draw},
            "view": self.view,
            "text": f"step {int(self.count[0])}",
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.count[0], self.draw[()] = 0, self.np_random.random()
        return self.seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.count += 1
        done = bool(self.count[0] == 2)
        return self.seen(), float(done and self.success), done, False, {}


def lanes(n: int = 4, **settings: Any) -> gym.GymLanes:
    return gym.GymLanes([Reuser(**settings) for _ in range(n)], "reuser", time_limit=10)


def test_entries_are_sorted_into_state_pictures_and_prompt() -> None:
    env = lanes(2)
    assert env.embodiment.state_names == ("inner.count", "inner.draw")
    assert env.embodiment.cameras == (("view", 4, 5),) and env.embodiment.prompts
    observation, _ = env.reset(seed=0)
    assert observation["images/view"].shape == (2, 4, 5, 3) and list(observation["prompt"]) == ["step 0"] * 2
    result = env.step_chunk(np.zeros((2, 1, 2)), np.arange(2))
    assert (result.observation.images["view"] == 1).all() and result.observation.prompt[0] == "step 1"


def test_lane_i_draws_from_seed_plus_i() -> None:
    """Seed 7 over 4 lanes is seeds 7, 8, 9, 10; the numbers are those of Gymnasium's own generator."""
    env = lanes(4)
    observation, _ = env.reset(seed=7)
    drawn = observation["state"][:, 1]
    expected = [gymnasium.utils.seeding.np_random(7 + lane)[0].random() for lane in range(4)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-6)
    np.testing.assert_allclose(drawn, [0.62509547, 0.32697228, 0.8702492, 0.95600171], rtol=1e-6)
    one = lanes(1)
    assert one.reset(seed=10)[0]["state"][0, 1] == drawn[3]


def test_a_lane_that_ends_inside_a_chunk_takes_no_further_action() -> None:
    env = lanes(2)
    env.reset(seed=0)
    env.step_chunk(np.zeros((1, 1, 2)), np.array([0]))
    result = env.step_chunk(np.full((2, 4, 2), 0.5), np.arange(2))
    np.testing.assert_array_equal(result.executed, [1, 2])
    np.testing.assert_array_equal(result.reward, [[1, 0, 0, 0], [0, 1, 0, 0]])
    assert result.terminated.all() and result.success.all()
    assert [len(inner.taken) for inner in env.envs] == [2, 2]
    assert env.envs[0].taken[1].shape == (2, 1)


def test_the_last_observation_survives_arrays_that_are_reused() -> None:
    env = lanes(2)
    env.reset(seed=0)
    result = env.step_chunk(np.zeros((2, 2, 2)), np.arange(2))
    env.reset(options={"reset_mask": np.array([True, True])})
    np.testing.assert_array_equal(result.observation.state[:, 0], 2)
    assert (result.observation.images["view"] == 2).all()


def test_termination_without_reward_is_no_success() -> None:
    env = lanes(1, success=False)
    env.reset(seed=0)
    result = env.step_chunk(np.zeros((1, 2, 2)), np.array([0]))
    assert result.terminated[0] and not result.success[0]


def test_actions_are_clipped_to_the_space() -> None:
    env = lanes(1)
    env.reset(seed=0)
    env.step_chunk(np.array([[[5.0, -5.0]]]), np.array([0]))
    np.testing.assert_array_equal(env.envs[0].taken[0].ravel(), [1, -1])


def test_a_broken_observation_is_an_error_that_names_it() -> None:
    env = lanes(2)
    env.reset(seed=0)
    env.envs[1].draw[()] = np.nan
    with pytest.raises(RuntimeError, match=r"'inner.draw' of lane 1 is nan"):
        env.step_chunk(np.zeros((2, 1, 2)), np.arange(2))


def test_what_cannot_be_used_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="only bounded Box actions"):
        gym.make("CartPole-v1", 1)
    with pytest.raises(ValueError, match="lanes is 0"):
        gym.make("Pendulum-v1", 0)
    with pytest.raises(ValueError, match="observes 'observation' as Discrete"):
        inner = Reuser()
        inner.observation_space = SPACES.Discrete(3)
        gym.GymLanes([inner], "odd", time_limit=5)


def test_a_time_limit_given_here_replaces_the_environments_own() -> None:
    env = gym.make("Pendulum-v1", 1, time_limit=7)
    env.reset(seed=0)
    result = env.step_chunk(np.zeros((1, 20, 1)), np.array([0]))
    assert result.executed[0] == env.time_limit == 7 and result.truncated[0]


def test_no_step_is_lost_or_invented_between_episodes() -> None:
    """Episodes of 3 frames, reset when they end: 12 frames are 12 transitions in 4 episodes of length and return 3."""
    env = gym.GymLanes([gymnasium.wrappers.TimeLimit(Endless(), 3)], "endless", time_limit=3)
    env.reset(seed=0)
    counts, rewards, ends = [], [], 0
    for _ in range(12):
        observation, reward, _, truncated, _ = env.step(np.zeros((1, 1), np.float32))
        counts.append(int(observation["state"][0, 0]))
        rewards.append(float(reward[0]))
        if truncated[0]:
            ends += 1
            env.reset(options={"reset_mask": np.array([True])})
    assert counts == [1, 2, 3] * 4 and rewards == [1.0] * 12 and ends == 4


class Endless(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observes how many steps it took; pays 1 for each."""

    def __init__(self) -> None:
        self.observation_space = SPACES.Box(0, np.inf, (1,))
        self.action_space = SPACES.Box(-1, 1, (1,))
        self.count = np.zeros(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count[0] = 0
        return self.count, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.count, 1.0, False, False, {}
