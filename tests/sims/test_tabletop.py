"""The suite's vector environment: chunks, seeds, ends, snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied import tree
from embodied.sims import tabletop
from embodied.sims.tabletop import Tabletop
from embodied.types import ChunkResult, Observation

N = 4
ALL = np.arange(N)


@pytest.fixture
def env() -> Iterator[Tabletop]:
    made = tabletop.make(["reach"], N, threads=2)
    made.reset(seed=7)
    yield made
    made.close()


def noise(env: Tabletop, frames: int, lanes: int = N, seed: int = 0) -> np.ndarray:
    high = np.array(env.embodiment.action_high)
    return (np.random.default_rng(seed).normal(size=(lanes, frames, 6)) * high).astype(np.float32)


def play(env: Tabletop, frames: int = 64) -> None:
    """Let the experts play until every lane has ended."""
    live = np.arange(env.num_envs)
    for _ in range(frames):
        result = env.step_chunk(env.expert(live), live)
        live = live[~(result.terminated | result.truncated)]
        if not len(live):
            return


def same(a: Observation, b: Observation) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def one(env: Tabletop, lane: int, result: ChunkResult) -> ChunkResult:
    return tree.index(result, np.array([lane]))


# -------------------------------------------------------------------- chunks


def test_a_chunk_equals_its_frames(env: Tabletop) -> None:
    start, actions = env.snapshot(ALL), noise(env, 5)
    chunk = env.step_chunk(actions, ALL)
    after = env.snapshot(ALL)
    env.restore(ALL, start)
    for h in range(5):
        frame = env.step_chunk(actions[:, h : h + 1], ALL)
    assert same(frame.observation, chunk.observation)
    np.testing.assert_array_equal(env.snapshot(ALL), after)


def test_success_inside_a_chunk_ends_it_there(env: Tabletop) -> None:
    """Chunk of 4, success at its third frame: reward [0, 0, 1, 0], 3 executed, the fourth never happened."""
    start = env.snapshot(ALL)
    actions, lengths = [], np.zeros(N, int)
    live = ALL
    while len(live):
        action = np.zeros((N, 6), np.float32)
        action[live] = env.expert(live)[:, 0]
        actions.append(action)
        result = env.step_chunk(action[live][:, None], live)
        lengths[live] += 1
        assert not result.truncated.any()
        live = live[~result.terminated]
    lane, solved = int(lengths.argmax()), int(lengths.max())
    script = np.stack(actions, axis=1)  # [N, T, 6]
    env.restore(ALL, start)
    env.step_chunk(script[[lane], : solved - 3], np.array([lane]))
    tail = np.concatenate([script[[lane], solved - 3 :], np.full((1, 1, 6), 9.0, np.float32)], axis=1)
    result = env.step_chunk(tail, np.array([lane]))
    assert result.executed[0] == 3 and result.terminated[0] and result.success[0] and not result.truncated[0]
    np.testing.assert_array_equal(result.reward, [[0, 0, 1, 0]])
    time = result.observation.time[0]
    assert time == pytest.approx(0.1 * solved)


def test_one_lane_ends_and_the_others_go_on(env: Tabletop) -> None:
    lane = np.array([1])
    while True:
        before = env.snapshot(lane)
        if env.step_chunk(env.expert(lane), lane).terminated[0]:
            break
    env.restore(lane, before)  # lane 1 is one frame from success
    actions = np.zeros((N, 4, 6), np.float32)
    actions[1] = env.expert(lane)[0]
    result = env.step_chunk(actions, ALL)
    np.testing.assert_array_equal(result.executed, [4, 1, 4, 4])
    np.testing.assert_array_equal(result.terminated, ALL == 1)
    assert not result.truncated.any()


def test_the_last_chunk_is_cut_at_the_time_limit(env: Tabletop) -> None:
    still = np.zeros((N, env.time_limit - 2, 6), np.float32)
    assert not env.step_chunk(still, ALL).truncated.any()
    result = env.step_chunk(np.zeros((N, 4, 6), np.float32), ALL)
    np.testing.assert_array_equal(result.executed, 2)
    assert result.truncated.all() and not result.terminated.any() and not result.success.any()
    np.testing.assert_allclose(result.observation.time, 0.1 * env.time_limit)


def test_actions_beyond_the_limits_act_like_the_limits(env: Tabletop) -> None:
    start, high = env.snapshot(ALL), np.array(env.embodiment.action_high)
    far = env.step_chunk(np.full((N, 2, 6), 1e6), ALL)
    env.restore(ALL, start)
    assert same(env.step_chunk(np.tile(high, (N, 2, 1)), ALL).observation, far.observation)


def test_joint_actions_reach_the_same_targets_as_the_displacements_behind_them() -> None:
    envs = [tabletop.make(["reach"], N, action=kind) for kind in ("end_effector", "joint")]
    moves = noise(envs[0], 3)
    for env in envs:
        env.reset(seed=3)
    targets = envs[0].transform.targets(envs[0].command, moves)
    results = [envs[0].step_chunk(moves, ALL), envs[1].step_chunk(targets, ALL)]
    assert same(results[0].observation, results[1].observation)


# -------------------------------------------------------------------- observations


def test_observations_are_those_after_the_step(env: Tabletop) -> None:
    """Names, order and freshness: every entry recomputed by MuJoCo's own kinematics of the state after the step."""
    obs = env.step_chunk(noise(env, 3), ALL).observation
    data = mujoco.MjData(env.engine.model)
    for lane in ALL:
        mujoco.mj_setState(env.engine.model, data, env.engine.state[lane], mujoco.mjtState.mjSTATE_FULLPHYSICS)
        mujoco.mj_forward(env.engine.model, data)
        value = dict(zip(env.embodiment.state_names, obs.state[lane], strict=True))
        tip = data.site("tip").xpos
        np.testing.assert_allclose([value[f"tip.{a}"] for a in "xyz"], tip, atol=1e-6)
        colours = [list(tabletop.scene.COLOURS)[int(c)] for c in env.scene[lane, tabletop.scene.COLOUR]]
        words = str(obs.prompt[lane])
        named = next(i for i in range(3) if colours[i] in words)
        assert tabletop.scene.SHAPES[named] in words
        place = data.geom(f"object_{named}").xpos
        np.testing.assert_allclose([value[f"named.d{a}"] for a in "xyz"], place - tip, atol=1e-6)
        assert value["gripper.vel"] == pytest.approx(data.joint("gripper").qvel[0] / 1.92, rel=1e-5)
        assert obs.time[lane] == pytest.approx(0.3)


def test_objects_are_seen_only_where_asked_for_but_critics_always_see_them() -> None:
    blind, seeing = (tabletop.make(["reach"], 1, state_objects=flag).embodiment for flag in (False, True))
    assert not [name for name in blind.state_names if name.startswith(("named", "other"))]
    assert blind.privileged_names == seeing.privileged_names
    assert set(seeing.state_names) < set(seeing.privileged_names)


def test_kept_observations_do_not_change_later(env: Tabletop) -> None:
    first = env.step_chunk(noise(env, 1), ALL).observation
    kept = tree.map(np.copy, first)
    seen, *_ = env.step(noise(env, 1, seed=1)[:, 0])
    copies = {key: value.copy() for key, value in seen.items()}
    env.step_chunk(noise(env, 2, seed=2), ALL)
    env.reset()
    assert same(first, kept)
    assert all(np.array_equal(seen[key], copies[key]) for key in seen)


# -------------------------------------------------------------------- seeds and lanes


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_lanes_equal_one_lane_each_seed_by_seed(threads: int) -> None:
    many = tabletop.make(["reach"], N, threads=threads)
    many.reset(seed=7)
    alone = [tabletop.make(["reach"], 1, threads=1) for _ in ALL]
    for lane, env in enumerate(alone):
        env.reset(seed=7 + lane)
    for episode in range(2):
        actions = noise(many, 6, seed=episode)
        whole = many.step_chunk(actions, ALL)
        for lane, env in enumerate(alone):
            single = env.step_chunk(actions[[lane]], np.array([0]))
            assert same(single.observation, one(many, lane, whole).observation)
        many.reset()
        for env in alone:
            env.reset()


def test_an_episode_is_a_function_of_lane_seed_and_number(env: Tabletop) -> None:
    """Lane 3 of seed 7 is lane 0 of seed 10, also in its third episode and whatever happened before."""
    play(env)
    env.reset(options={"reset_mask": ALL == 3})
    env.reset(options={"reset_mask": ALL == 3})
    other = tabletop.make(["reach"], 1)
    for _ in range(3):
        other.reset(seed=10) if _ == 0 else other.reset()
    np.testing.assert_array_equal(other.snapshot(np.array([0])), env.snapshot(np.array([3])))


def test_resetting_with_a_seed_starts_over(env: Tabletop) -> None:
    start = env.snapshot(ALL)
    play(env)
    env.reset()
    env.reset(seed=7)
    np.testing.assert_array_equal(env.snapshot(ALL), start)


def test_episodes_without_a_seed_differ() -> None:
    a, b = (tabletop.make(["reach"], 1) for _ in range(2))
    a.reset()
    b.reset()
    assert (a.snapshot(np.array([0])) != b.snapshot(np.array([0]))).any()


def test_a_partial_reset_touches_only_its_lanes(env: Tabletop) -> None:
    env.step_chunk(noise(env, 3), ALL)
    before = env.snapshot(ALL)
    seen = env.step_chunk(np.zeros((N, 1, 6), np.float32), ALL).observation
    env.restore(ALL, before)
    observation, _ = env.reset(options={"reset_mask": ALL == 1})
    after = env.snapshot(ALL)
    np.testing.assert_array_equal(after[ALL != 1], before[ALL != 1])
    assert (after[1] != before[1]).any() and env.snapshot(np.array([1]))[0, 0] == 0
    assert observation["time"][0, 0] == pytest.approx(0.3) and observation["time"][1, 0] == 0
    again = env.step_chunk(np.zeros((N, 1, 6), np.float32), ALL).observation
    assert same(tree.index(again, ALL != 1), tree.index(seen, ALL != 1))


def test_no_start_is_a_success_already() -> None:
    env = tabletop.make(["reach"], 64)
    env.reset(seed=0)
    for _ in range(5):
        view = env._view(np.arange(64))
        assert not env.tasks[0].achieved(view).any()
        env.reset()


def test_a_global_random_seed_means_nothing(env: Tabletop) -> None:
    start = env.snapshot(ALL)
    np.random.seed(0)
    env.reset(seed=7)
    np.testing.assert_array_equal(env.snapshot(ALL), start)


# -------------------------------------------------------------------- snapshots


def test_restore_brings_back_everything(env: Tabletop) -> None:
    env.step_chunk(noise(env, 2), ALL)
    saved, actions = env.snapshot(ALL), noise(env, 8, seed=5)
    first = env.step_chunk(actions, ALL)
    play(env)
    env.reset()
    env.restore(ALL, saved)
    second = env.step_chunk(actions, ALL)
    assert all(np.array_equal(a, b) for a, b in zip(tree.leaves(first), tree.leaves(second), strict=True))


def test_one_start_may_be_restored_into_many_lanes(env: Tabletop) -> None:
    env.restore(ALL, np.repeat(env.snapshot(np.array([2])), N, axis=0))
    obs = env.step_chunk(np.repeat(noise(env, 3, lanes=1), N, axis=0), ALL).observation
    assert all(np.array_equal(leaf, np.repeat(leaf[:1], N, axis=0)) for leaf in tree.leaves(obs))


def test_a_snapshot_of_another_suite_is_refused(env: Tabletop) -> None:
    with pytest.raises(ValueError, match="snapshot has shape"):
        env.restore(ALL, np.zeros((N, 3)))


# -------------------------------------------------------------------- faults


@pytest.mark.parametrize("value", [np.nan, 9e9])
def test_a_diverged_lane_ends_as_invalid_and_touches_no_other(
    env: Tabletop, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log where it diverges
    env.step_chunk(noise(env, 2), ALL)
    saved = env.snapshot(ALL)
    sane = env.step_chunk(noise(env, 4, seed=1), ALL)
    at = env.restore(ALL, saved)
    env.engine.qvel(env.engine.state)[2, 1] = value
    result = env.step_chunk(noise(env, 4, seed=1), ALL)
    np.testing.assert_array_equal(result.invalid, ALL == 2)
    np.testing.assert_array_equal(result.truncated, ALL == 2)
    assert result.executed[2] == 0 and result.reward[2].sum() == 0 and not result.success[2]
    assert same(tree.index(result.observation, ALL == 2), tree.index(at, ALL == 2))
    assert same(tree.index(result.observation, ALL != 2), tree.index(sane.observation, ALL != 2))
    with pytest.raises(RuntimeError, match="Lane 2"):
        env.step_chunk(noise(env, 1), ALL)
    env.reset(options={"reset_mask": ALL == 2})
    assert not env.step_chunk(noise(env, 1), ALL).invalid.any()


def test_unknown_tasks_actions_and_numbers_of_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'reach'"):
        tabletop.make(["reahc"], 1)
    with pytest.raises(ValueError, match="lanes is 0"):
        tabletop.make(["reach"], 0)
    with pytest.raises(ValueError, match="tasks is empty"):
        tabletop.make([], 1)


def test_closing_is_idempotent_and_a_closed_suite_starts_again(env: Tabletop) -> None:
    env.close()
    env.close()
    env.reset(seed=7)
    assert env.step_chunk(noise(env, 1), ALL).executed.all()


def test_a_start_that_was_left_out_is_the_one_that_a_reset_would_have_begun() -> None:
    lane = np.array([1])
    envs = [tabletop.make(["reach", "push", "lift"], N) for _ in range(2)]
    for env in envs:
        env.reset(seed=7)
    mask = {"reset_mask": np.isin(ALL, lane)}
    foreseen = []
    for _ in range(2):
        foreseen += envs[0].next_tasks(lane)
        envs[0].leave_out(lane)
    envs[0].reset(options=mask)
    played = []
    for _ in range(3):
        envs[1].reset(options=mask)
        played += envs[1].task_names(lane)
    assert foreseen == played[:2] and envs[0].task_names(lane) == played[2:]
    np.testing.assert_array_equal(envs[0].snapshot(lane), envs[1].snapshot(lane))
