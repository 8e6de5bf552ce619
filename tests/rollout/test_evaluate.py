"""Measuring a policy: a quota per lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embodied.rollout.evaluate import evaluate
from embodied.types import ActionChunk, Observation

from ..worlds import FramewisePointMass, PointMass


class Homing:
    """Steps of `pace` towards the origin; even rows of the first call's batch do nothing if `lame`."""

    def __init__(self, pace: float = 0.3) -> None:
        self.pace = pace
        self.explored: set[bool] = set()

    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        self.explored.add(explore)
        position = obs.state
        step = -self.pace * position / np.linalg.norm(position, axis=1, keepdims=True)
        step[position[:, 0] < 0] = 0  # the left half never arrives
        return ActionChunk(actions=np.repeat(step[:, None], 4, 1), version=np.zeros(len(position), np.int64))


@pytest.mark.parametrize("world", [PointMass, FramewisePointMass])
def test_every_lane_plays_the_same_number_of_episodes(world: Any) -> None:
    ends = evaluate(world(4), Homing(), episodes=12, seed=0)
    assert sorted(end.lane for end in ends) == sorted([0, 1, 2, 3] * 3)
    # successes take 3 frames, failures all 8: counting the first 12 to finish would favour success
    assert {(end.success, end.length) for end in ends} == {(True, 3), (False, 8)}


def test_waiting_and_playing_on_count_the_same_episodes() -> None:
    chunked, framewise = (
        {(end.lane, end.success, end.length) for end in evaluate(world(4), Homing(), episodes=8, seed=3)}
        for world in (PointMass, FramewisePointMass)
    )
    assert chunked == framewise


def test_a_finished_lane_is_not_reset_beyond_its_quota() -> None:
    env = PointMass(4)
    evaluate(env, Homing(), episodes=12, seed=0)
    assert env.resets.tolist() == [3] * 4  # B40, B132: one reset an episode


def test_scenes_depend_on_the_seed_and_not_on_the_policy() -> None:
    starts = []
    for pace in (0.3, 0.0):
        env = PointMass(2)
        evaluate(env, Homing(pace), episodes=4, seed=5)
        starts.append(env.episode.tolist() + env.seed.tolist())
    assert starts[0] == starts[1]


def test_evaluation_does_not_explore_unless_asked() -> None:
    policy = Homing()
    evaluate(PointMass(2), policy, episodes=2, seed=0)
    assert policy.explored == {False}
    evaluate(PointMass(2), policy, episodes=2, seed=0, explore=True)
    assert policy.explored == {False, True}


def test_only_the_first_actions_of_a_chunk_run_if_so_asked() -> None:
    env = PointMass(1, time_limit=6)
    env.reset(seed=0)
    ends = evaluate(env, Homing(0.0), episodes=1, seed=0, execute=1)
    assert ends[0].length == 6


@pytest.mark.parametrize("episodes", [0, 6, 3])
def test_a_quota_that_lanes_cannot_share_is_refused(episodes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        evaluate(PointMass(4), Homing(), episodes=episodes, seed=0)
