"""Windows stay within their episode and say which of their actions are real."""

from __future__ import annotations

import numpy as np

from embodied import tree
from embodied.data.experience import Demonstrations
from embodied.data.sampling import window

from .episodes import make_episode


def test_window_repeats_the_last_row_and_marks_it() -> None:
    rows, valid = window(np.array([13, 20]), np.array([15, 21]), 4)
    np.testing.assert_array_equal(rows, [[13, 14, 14, 14], [20, 20, 20, 20]])
    np.testing.assert_array_equal(valid, [[True, True, False, False], [True, False, False, False]])


def test_windows_hold_the_actions_that_followed_their_observation() -> None:
    episodes = [make_episode(n, seed=n) for n in (3, 2, 4)]
    source = Demonstrations(episodes, horizon=2, batch_size=9, seed=0)
    batch = next(source)
    frame, number = batch.obs.state[:, 0], batch.obs.state[:, 1]
    np.testing.assert_array_equal(batch.executed, np.minimum(2, number - frame))
    np.testing.assert_array_equal(batch.chunk.actions[:, 0, 0], frame)
    np.testing.assert_array_equal(batch.chunk.actions[:, 1, 0], np.minimum(frame + 1, number - 1))
    np.testing.assert_array_equal(batch.chunk.actions[:, :, 1], np.repeat(number[:, None], 2, 1))
    np.testing.assert_array_equal(batch.next_obs.state[:, 0], frame + batch.executed)
    np.testing.assert_array_equal(batch.done, frame + batch.executed == number)
    for i in range(9):
        taken = episodes[[3, 2, 4].index(int(number[i]))]
        np.testing.assert_array_equal(batch.obs.images["wrist"][i], taken.images["wrist"][int(frame[i])])
        assert batch.obs.prompt[i] == taken.prompt


def test_a_pass_visits_every_frame_once() -> None:
    source = Demonstrations([make_episode(n, seed=n) for n in (3, 2, 4)], horizon=4, batch_size=3, seed=0)
    for _ in range(2):
        seen = [tuple(row[:2]) for _ in range(3) for row in next(source).obs.state]
        assert sorted(seen) == [(f, n) for f in range(4) for n in (2, 3, 4) if f < n]


def test_resumed_batches_are_bit_identical() -> None:
    episodes = [make_episode(n, seed=n) for n in (3, 2, 4)]
    straight = Demonstrations(episodes, horizon=4, batch_size=4, seed=5)
    for _ in range(7):
        next(straight)
    resumed = Demonstrations(episodes, horizon=4, batch_size=4, seed=5)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(5):
        tree.map(np.testing.assert_array_equal, next(straight), next(resumed))
