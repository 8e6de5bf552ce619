"""Recorded episodes hold what was asked for, what was done, and one more observation than frames."""

from __future__ import annotations

import numpy as np

from embodied.rollout.record import expert, record
from embodied.sims.tabletop import make


def test_episodes_of_every_task_have_aligned_tables_and_clipped_actions() -> None:
    env = make(["reach", "lift"], 6)
    episodes = list(record(env, expert(env, noise=0.5, seed=0), episodes=2, source="script", seed=11))
    assert sorted(e.task for e in episodes) == ["lift", "lift", "reach", "reach"]
    high = np.float32(env.embodiment.action_high)
    for episode in episodes:
        assert episode.success and episode.terminated and episode.reason == "success"
        assert len(episode.state) == episode.length + 1 == len(episode.reward) + 1
        assert episode.reward.sum() == 1 and episode.reward[-1] == 1
        assert (np.abs(episode.action) <= high + 1e-7).all()
        np.testing.assert_allclose(np.diff(episode.time), 0.1, atol=1e-9)


def test_equal_seeds_record_equal_episodes() -> None:
    first, second = (
        next(record(env, expert(env, noise=0.2, seed=1), episodes=1, source="script", seed=5))
        for env in (make(["reach"], 2), make(["reach"], 2))
    )
    np.testing.assert_array_equal(first.action, second.action)
    np.testing.assert_array_equal(first.state, second.state)
