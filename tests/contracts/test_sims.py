"""What every simulator keeps: the suite with each installed task, and Gymnasium's own environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import embodied.sims
from embodied import plugins, tree
from embodied.interfaces import Chunked, HasExpert, Snapshots
from embodied.sims import gym, tabletop

N = 3
ALL = np.arange(N)
TASKS = plugins.names("embodied.tasks")
MAKERS: dict[str, Callable[[int], Any]] = {
    **{task: (lambda lanes, task=task: tabletop.make([task], lanes)) for task in TASKS},
    "pictures": lambda lanes: tabletop.make(
        ["reach", "push"], lanes, action="joint", cameras=["front", "wrist"], image_size=16, randomise=1.0
    ),
    "Pendulum-v1": lambda lanes: gym.make("Pendulum-v1", lanes),
    "MountainCarContinuous-v0": lambda lanes: gym.make("MountainCarContinuous-v0", lanes, time_limit=40),
}


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    return MAKERS[request.param]


@pytest.fixture
def env(maker: Callable[[int], Any]) -> Iterator[Any]:
    made = maker(N)
    made.reset(seed=7)
    yield made
    made.close()


def actions(env: Any, frames: int, lanes: int = N, seed: int = 0) -> np.ndarray:
    low, high = np.array(env.embodiment.action_low), np.array(env.embodiment.action_high)
    return np.random.default_rng(seed).uniform(low, high, (lanes, frames, len(low))).astype(np.float32)


class TestEverySim:
    def test_it_describes_what_it_gives(self, env: Any) -> None:
        spec = env.embodiment
        observation, infos = env.reset(seed=1)
        assert observation["state"].shape == (N, spec.state_dim) and observation["state"].dtype == np.float32
        assert env.single_action_space.shape == (spec.action_dim,)
        np.testing.assert_allclose(env.single_action_space.low, spec.action_low, rtol=1e-6)
        np.testing.assert_allclose(env.single_action_space.high, spec.action_high, rtol=1e-6)
        assert ("prompt" in observation) == spec.prompts
        pictures = {name.removeprefix("images/"): value for name, value in observation.items() if "images/" in name}
        assert {name: value.shape for name, value in pictures.items()} == {c: (N, h, w, 3) for c, h, w in spec.cameras}
        assert all(value.dtype == np.uint8 for value in pictures.values())
        if spec.privileged_names:
            assert observation["privileged"].shape == (N, len(spec.privileged_names))
        assert env.observation_space.contains(observation)
        assert infos["success"].dtype == infos["invalid"].dtype == bool
        assert len(env.task_names(ALL)) == N and set(env.task_names(ALL)) <= set(spec.tasks)

    def test_a_step_has_the_shapes_of_gymnasium(self, env: Any) -> None:
        observation, reward, terminated, truncated, infos = env.step(actions(env, 1)[:, 0])
        assert env.observation_space.contains(observation)
        assert reward.shape == terminated.shape == truncated.shape == infos["success"].shape == (N,)
        assert terminated.dtype == truncated.dtype == bool

    def test_it_has_chunks_and_they_equal_frames(self, env: Any, maker: Callable[[int], Any]) -> None:
        assert isinstance(env, Chunked)
        moves = actions(env, 4)
        chunk = env.step_chunk(moves, ALL)
        other = maker(N)
        other.reset(seed=7)
        total = np.zeros(N)
        for h in range(4):
            observation, reward, *_ = other.step(moves[:, h])
            total += reward
        np.testing.assert_array_equal(chunk.observation.state, observation["state"])
        np.testing.assert_allclose(chunk.reward.sum(1), total, rtol=1e-6)
        np.testing.assert_array_equal(chunk.executed, 4)
        other.close()

    def test_lanes_equal_single_environments_seed_by_seed(self, env: Any, maker: Callable[[int], Any]) -> None:
        moves = actions(env, 3)
        whole = env.step_chunk(moves, ALL)
        for lane in ALL:
            alone = maker(1)
            alone.reset(seed=7 + int(lane))
            single = alone.step_chunk(moves[[lane]], np.array([0]))
            np.testing.assert_array_equal(single.observation.state[0], whole.observation.state[lane])
            alone.close()

    def test_some_lanes_may_be_stepped_alone(self, env: Any) -> None:
        before = env.step_chunk(actions(env, 1), ALL).observation
        env.step_chunk(actions(env, 2, lanes=1), np.array([1]))
        after = env.step_chunk(actions(env, 1, lanes=1), np.array([1])).observation
        assert after.time[0] > before.time[1]
        observation, _ = env.reset(options={"reset_mask": ALL == 1})
        np.testing.assert_array_equal(observation["state"][ALL != 1], before.state[ALL != 1])

    def test_a_partial_reset_touches_only_its_lanes(self, env: Any, maker: Callable[[int], Any]) -> None:
        other = maker(N)
        other.reset(seed=7)
        for made in (env, other):
            made.step_chunk(actions(env, 2), ALL)
        env.reset(options={"reset_mask": ALL == 1})
        moves = actions(env, 2, seed=3)
        seen, expected = env.step_chunk(moves, ALL), other.step_chunk(moves, ALL)
        np.testing.assert_array_equal(seen.observation.state[ALL != 1], expected.observation.state[ALL != 1])
        assert (seen.observation.state[1] != expected.observation.state[1]).any()
        other.close()

    def test_the_time_limit_truncates_every_lane_once(self, env: Any) -> None:
        still = np.zeros((N, env.time_limit + 5, env.embodiment.action_dim), np.float32)
        if not isinstance(env, HasExpert):
            result = env.step_chunk(still, ALL)
            np.testing.assert_array_equal(result.executed, env.time_limit)
            assert result.truncated.all() and not result.terminated.any()

    def test_stepping_a_finished_lane_is_an_error_that_names_it(self, env: Any) -> None:
        env.step_chunk(np.zeros((1, env.time_limit, env.embodiment.action_dim), np.float32), np.array([1]))
        with pytest.raises(RuntimeError, match="Lane 1 has ended"):
            env.step_chunk(actions(env, 1), ALL)
        with pytest.raises(RuntimeError, match="Lane 1 has ended"):
            env.step(actions(env, 1)[:, 0])

    def test_stepping_before_the_first_reset_is_an_error(self, maker: Callable[[int], Any]) -> None:
        made = maker(1)
        with pytest.raises(RuntimeError, match="never reset"):
            made.step(actions(made, 1, lanes=1)[:, 0])
        made.close()

    def test_a_nan_action_is_an_error_that_names_lane_and_field(self, env: Any) -> None:
        moves = actions(env, 2)
        moves[2, 1, -1] = np.nan
        with pytest.raises(ValueError, match=rf"'{env.embodiment.action_names[-1]}' of lane 2"):
            env.step_chunk(moves, ALL)

    def test_an_action_of_another_shape_is_an_error(self, env: Any) -> None:
        with pytest.raises(ValueError, match="actions has shape"):
            env.step_chunk(np.zeros((N, 2, env.embodiment.action_dim + 1), np.float32), ALL)

    def test_a_wrong_reset_mask_is_an_error(self, env: Any) -> None:
        with pytest.raises(ValueError, match="reset_mask must be bool"):
            env.reset(options={"reset_mask": np.zeros(N, int)})

    def test_kept_observations_own_their_memory(self, env: Any) -> None:
        first = env.step_chunk(actions(env, 1), ALL).observation
        kept = tree.map(np.copy, first)
        env.step_chunk(actions(env, 1, seed=2), ALL)
        for before, now in zip(tree.leaves(kept), tree.leaves(first), strict=True):
            np.testing.assert_array_equal(before, now)

    def test_snapshots_bring_back_the_future(self, env: Any) -> None:
        if not isinstance(env, Snapshots):
            pytest.skip("has no snapshots")
        saved, moves = env.snapshot(ALL), actions(env, 4)
        first = env.step_chunk(moves, ALL)
        env.restore(ALL, saved)
        np.testing.assert_array_equal(env.snapshot(ALL), saved)
        second = env.step_chunk(moves, ALL)
        for a, b in zip(tree.leaves(first), tree.leaves(second), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_closing_twice_is_allowed(self, env: Any) -> None:
        env.close()
        env.close()


def success_rate(
    task: str, policy: str, episodes: int, noise: float = 0.0, action: Literal["end_effector", "joint"] = "end_effector"
) -> float:
    """Play one episode in each of `episodes` lanes; noise is in units of the largest action."""
    env = tabletop.make([task], episodes, action=action)
    env.reset(seed=0)
    rng, high = np.random.default_rng(0), np.array(env.embodiment.action_high)
    live, solved = np.arange(episodes), 0
    while len(live):
        size = (len(live), 1, len(high))
        if policy == "expert":
            moves = env.expert(live)
        else:
            moves = np.zeros(size) if policy == "still" else rng.uniform(-high, high, size)
        result = env.step_chunk(moves + noise * rng.normal(size=size) * high, live)
        solved += int(result.success.sum())
        live = live[~(result.terminated | result.truncated)]
    env.close()
    return solved / episodes


@pytest.mark.parametrize("task", TASKS)
class TestEveryTask:
    def test_the_expert_solves_it(self, task: str) -> None:
        assert success_rate(task, "expert", 96) >= 0.95

    def test_nobody_solves_it_by_doing_nothing_or_anything(self, task: str) -> None:
        assert success_rate(task, "still", 96) <= 0.05
        assert success_rate(task, "random", 96) <= 0.05

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("policy", "noise", "low", "high"),
        [
            ("expert", 0.0, 0.95, 1),
            ("expert", 0.3, 0.95, 1),
            ("expert", 0.5, 0.9, 1),
            ("still", 0, 0, 0.05),
            ("random", 0, 0, 0.05),
        ],
    )
    def test_success_rates_over_many_episodes(
        self, task: str, policy: str, noise: float, low: float, high: float
    ) -> None:
        assert low <= success_rate(task, policy, 1024, noise) <= high

    def test_the_expert_speaks_joint_targets_too(self, task: str) -> None:
        assert success_rate(task, "expert", 48, action="joint") >= 0.95

    @pytest.mark.parametrize("settings", [{}, {"cameras": ["front"], "image_size": 16}])
    def test_gymnasium_accepts_the_one_lane_environment(self, task: str, settings: dict[str, Any]) -> None:
        made = gymnasium.make(f"embodied/{task}-v0", render_mode="rgb_array", **settings)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Box observation space m.*imum value is -?infinity.*")
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", message=".*Box observation space m.*imum value is -?infinity.*")
            check_env(made.unwrapped)
        made.close()

    def test_gymnasium_makes_the_vector_environment(self, task: str) -> None:
        vector = gymnasium.make_vec(f"embodied/{task}-v0", num_envs=N)
        single = gymnasium.make(f"embodied/{task}-v0")
        many, _ = vector.reset(seed=3)
        for lane in ALL:
            one, _ = single.reset(seed=3 + int(lane))
            np.testing.assert_array_equal(one["state"], many["state"][lane])
            assert one["prompt"] == many["prompt"][lane]
        vector.close()
        single.close()


def test_importing_the_sims_registers_every_task() -> None:
    assert embodied.sims.__doc__
    assert {f"embodied/{task}-v0" for task in TASKS} <= set(gymnasium.registry)
