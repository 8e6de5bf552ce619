"""N worlds, one chunk at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embodied.rollout.lanes import Lanes, observe
from embodied.types import ChunkResult

from ..worlds import FramewisePointMass, PointMass


def toward(lanes: Lanes, step: float, horizon: int = 4) -> np.ndarray:
    """Actions of length `step` towards the origin for every lane, [N, H, 2]."""
    position = lanes.observation.state
    direction = -position / np.linalg.norm(position, axis=1, keepdims=True)
    return np.repeat(step * direction[:, None], horizon, 1)


def placed(env: FramewisePointMass, *positions: tuple[float, float]) -> Lanes:
    """Lanes whose points stand where the test wants them."""
    lanes = Lanes(env, seed=0)
    env.position[:] = positions
    lanes.observation = observe(env.see())
    return lanes


@pytest.mark.parametrize("world", [PointMass, FramewisePointMass])
def test_a_chunk_ends_with_its_episode(world: Any) -> None:
    # from distance 1 in steps of .4: .6, .2 < .3, so 2 of 4 actions run, and the reward is the success's
    lanes = placed(world(1), (1.0, 0.0))
    result = lanes.advance(toward(lanes, 0.4))
    assert result.reward.tolist() == [[0, 1, 0, 0]]
    assert result.executed.tolist() == [2] and result.terminated.all() and not result.truncated.any()
    assert result.observation.state[0].tolist() == pytest.approx([0.2, 0])
    (end,) = lanes.take_finished()
    assert (end.lane, end.success, end.ret, end.length, end.invalid) == (0, True, 1.0, 2, False)


def test_n3_lanes_end_on_their_own() -> None:
    lanes = placed(PointMass(2), (1.0, 0.0), (4.0, 0.0))
    result = lanes.advance(toward(lanes, 0.4))
    assert result.executed.tolist() == [2, 4]
    assert lanes.active.tolist() == [False, True]


def test_n3_the_last_chunk_is_cut_by_the_time_limit() -> None:
    lanes = placed(PointMass(1, time_limit=10), (4.0, 0.0))
    ran = [lanes.advance(np.zeros((1, 4, 2))) for _ in range(3)]
    assert [int(result.executed[0]) for result in ran] == [4, 4, 2]
    assert [bool(result.truncated[0]) for result in ran] == [False, False, True]
    (end,) = lanes.take_finished()
    assert (end.success, end.length) == (False, 10)


def test_without_chunks_the_first_lane_that_ends_cuts_the_chunk_of_all() -> None:
    lanes = placed(FramewisePointMass(2), (1.0, 0.0), (4.0, 0.0))
    result = lanes.advance(toward(lanes, 0.4))
    assert result.executed.tolist() == [2, 2] and result.terminated.tolist() == [True, False]


@pytest.mark.parametrize("world", [PointMass, FramewisePointMass])
def test_a_diverged_world_did_not_decide(world: Any) -> None:
    lanes = placed(world(2), (4.9, 0.0), (1.0, 0.0))
    result = lanes.advance(np.full((2, 4, 2), (0.06, 0.0)))  # the first lane leaves its world in frame 2
    assert result.invalid.tolist() == [True, False] and result.truncated[0] and not result.terminated.any()
    assert result.executed[0] == 0 and result.executed[1] > 0 and result.reward[0].tolist() == [0] * 4
    assert result.observation.state[0].tolist() == pytest.approx([4.9, 0.0])  # of its start
    (end,) = lanes.take_finished()
    assert end.invalid and not end.success


def test_waiting_lanes_stay_as_they_are() -> None:
    lanes = placed(PointMass(2, time_limit=20), (1.0, 0.0), (4.0, 0.0))
    first = lanes.advance(toward(lanes, 0.4))
    second = lanes.advance(toward(lanes, 0.4))
    assert second.executed.tolist() == [0, 4]
    assert second.observation.state[0].tolist() == first.observation.state[0].tolist()
    assert not second.terminated[0] and not second.success[0] and second.reward[0].tolist() == [0] * 4
    assert len(lanes.take_finished()) == 1


def test_without_chunks_lanes_cannot_wait() -> None:
    lanes = placed(FramewisePointMass(2), (1.0, 0.0), (4.0, 0.0))
    lanes.advance(toward(lanes, 0.4))
    with pytest.raises(RuntimeError, match="cannot leave finished lanes waiting"):
        lanes.advance(toward(lanes, 0.4))


def test_a_restart_touches_only_its_lanes() -> None:
    env = PointMass(2)
    lanes = placed(env, (1.0, 0.0), (4.0, 0.0))
    lanes.advance(toward(lanes, 0.4))
    before = lanes.observation.state[1].copy()
    lanes.restart(~lanes.active)
    assert env.resets.tolist() == [2, 1] and lanes.observation.state[1].tolist() == before.tolist()
    assert np.linalg.norm(lanes.observation.state[0]) == pytest.approx(1, abs=1e-6)
    assert lanes.length.tolist() == [0, 4] and lanes.active.all()


@pytest.mark.parametrize("world", [PointMass, FramewisePointMass])
def test_b25_a_solved_task_pays_once_though_the_world_goes_on_paying(world: Any) -> None:
    lanes = placed(world(1, ends_on_success=False), (0.5, 0.0))
    rewards = [float(lanes.advance(toward(lanes, 0.3, horizon=1)).reward.sum()) for _ in range(4)]
    assert rewards == [1, 0, 0, 0]  # distances .2, .1, .2, .1: a success every time


def test_b17_without_chunks_a_success_inside_the_chunk_is_kept_and_paid_once() -> None:
    # distances .2 (success), .7, 1.2: the last frame of the chunk is none
    lanes = placed(FramewisePointMass(1, ends_on_success=False), (-0.3, 0.0))
    result = lanes.advance(np.full((1, 3, 2), (0.5, 0.0)))
    assert result.reward.tolist() == [[1, 0, 0]] and result.success.tolist() == [True]


def test_an_earlier_success_makes_the_episode_a_success() -> None:
    lanes = placed(PointMass(1, time_limit=3, ends_on_success=False), (0.5, 0.0))
    for action in (-0.3, 1.0, 1.0):
        lanes.advance(np.full((1, 1, 2), (action, 0.0)))
    (end,) = lanes.take_finished()
    assert end.success and end.ret == 1 and end.length == 3


class BrokenSensor(PointMass):
    """A world whose second lane loses its second coordinate at its third frame."""

    def see(self) -> dict[str, Any]:
        values = super().see()
        values["state"][1, 1] = np.nan if self.frame[1] == 3 else values["state"][1, 1]
        return values


def test_nan_in_an_observation_stops_with_lane_and_field() -> None:
    lanes = placed(BrokenSensor(3), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0))
    still = np.zeros((3, 1, 2))
    lanes.advance(still)
    lanes.advance(still)
    with pytest.raises(RuntimeError, match=r"state 'y' of lane 1 is nan"):
        lanes.advance(still)


def test_nan_in_a_reward_stops_with_lane_and_frame() -> None:
    lanes = placed(PointMass(2, reward=float("nan")), (4.0, 0.0), (1.0, 0.0))
    with pytest.raises(RuntimeError, match="reward of lane 1, frame 1 of the chunk, is nan"):
        lanes.advance(toward(lanes, 0.4))


def test_b36_observations_own_their_memory() -> None:
    values = {"state": np.zeros((2, 3), np.float32), "images/top": np.zeros((2, 4, 4, 3), np.uint8)}
    seen = observe(values)
    values["state"][:], values["images/top"][:] = 1, 1
    assert seen.state.sum() == 0 and seen.images["top"].sum() == 0


def test_an_observation_without_words_or_clock_has_empty_ones() -> None:
    seen = observe({"state": np.zeros((2, 3))})
    assert seen.prompt.tolist() == ["", ""] and seen.time.tolist() == [0, 0]
    assert seen.state.dtype == np.float32 and seen.privileged is None and seen.images == {}


class Padding(PointMass):
    """A world whose instruction grows longer."""

    def see(self) -> dict[str, Any]:
        return {**super().see(), "prompt": np.array([f"go {'on ' * int(frame)}" for frame in self.frame])}


def test_a_longer_instruction_is_not_cut_where_lanes_wait() -> None:
    lanes = placed(Padding(2), (1.0, 0.0), (4.0, 0.0))
    lanes.advance(toward(lanes, 0.4))
    lanes.advance(toward(lanes, 0.4))
    assert lanes.observation.prompt.tolist() == ["go on on ", "go " + "on " * 8]


def test_results_are_plain_arrays_of_the_declared_types() -> None:
    for world in (PointMass, FramewisePointMass):
        lanes = placed(world(2), (1.0, 0.0), (4.0, 0.0))
        result: ChunkResult = lanes.advance(toward(lanes, 0.4).astype(np.float32))
        assert result.reward.dtype == np.float32 and result.executed.dtype == np.int64
        for flag in (result.terminated, result.truncated, result.success, result.invalid):
            assert flag.dtype == bool and flag.shape == (2,)
