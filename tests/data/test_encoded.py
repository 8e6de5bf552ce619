"""Encoded demonstrations: every frame once, each with the context of its own observation."""

from __future__ import annotations

import numpy as np

from embodied.data.encoded import Encoded
from embodied.rollout.record import expert, record
from embodied.sims.tabletop import make


def test_contexts_belong_to_their_rows_and_the_stream_resumes() -> None:
    env = make(["reach"], 4)
    episodes = list(record(env, expert(env, noise=0.1, seed=0), episodes=4, source="script", seed=0))
    made = [Encoded(episodes, lambda obs: 2 * obs.state, horizon=4, batch_size=32, seed=1) for _ in range(2)]
    batches = [next(made[0]) for _ in range(3)]
    for batch in batches:
        np.testing.assert_array_equal(batch.chunk.context, 2 * batch.obs.state)
    made[1].load_state_dict({"batch": 2})
    np.testing.assert_array_equal(next(made[1]).obs.state, batches[2].obs.state)
    every = {tuple(row) for e in episodes for row in e.state[:-1]}
    drawn = {tuple(row) for _ in range(200) for row in next(made[0]).obs.state}
    assert drawn == every
