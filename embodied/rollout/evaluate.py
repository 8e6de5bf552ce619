"""Measure a policy: a fixed quota of episodes per lane, so that short episodes are not over-counted."""

from __future__ import annotations

import numpy as np

from .. import tree
from ..interfaces import Chunked, Policy, VectorEnv
from .lanes import EpisodeEnd, Lanes


def evaluate(
    env: VectorEnv, policy: Policy, *, episodes: int, seed: int, explore: bool = False, execute: int | None = None
) -> list[EpisodeEnd]:
    """Run exactly `episodes` episodes, the same number in every lane, on scenes drawn from `seed`.

    Lanes that have played theirs wait; in an environment without chunks, where they cannot, they play on uncounted.
    """
    quota, rest = divmod(episodes, env.num_envs)
    if rest or quota < 1:
        raise ValueError(f"{episodes} episodes cannot be shared equally by {env.num_envs} lanes; give a multiple of {env.num_envs}.")
    lanes = Lanes(env, seed=seed)
    played = np.zeros(env.num_envs, np.int64)
    counted: list[EpisodeEnd] = []
    while (played < quota).any():
        running = np.flatnonzero(lanes.active)
        proposed = policy.act(tree.index(lanes.observation, running), explore=explore).actions[:, :execute]
        actions = np.zeros((env.num_envs, *proposed.shape[1:]), proposed.dtype)
        actions[running] = proposed
        lanes.advance(actions)
        for end in lanes.take_finished():
            if played[end.lane] < quota:
                counted.append(end)
            played[end.lane] += 1
        lanes.restart(~lanes.active & (played < quota) if isinstance(env, Chunked) else ~lanes.active)
    return counted
