"""Record episodes frame by frame: scripted experts with action noise, or a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .. import tree
from ..interfaces import HasExpert, VectorEnv
from ..types import SOURCES, ChunkResult, Episode, Observation, Source
from .lanes import Lanes

Act = Callable[[Observation, np.ndarray], np.ndarray]
"""(observation [n], lanes [n]) -> actions [n, A] for one frame."""


def expert(env: VectorEnv, *, noise: float, seed: int) -> Act:
    """The environment's scripted expert, with Gaussian action noise of std `noise` x half the action range."""
    if not isinstance(env, HasExpert):
        raise ValueError(f"{type(env).__name__} has no scripted expert; record a policy or teleoperate instead.")
    rng = np.random.default_rng(seed)
    low, high = np.asarray(env.embodiment.action_low), np.asarray(env.embodiment.action_high)

    def act(obs: Observation, lanes: np.ndarray) -> np.ndarray:
        action = env.expert(lanes)[:, 0]
        noisy = action + rng.normal(size=action.shape) * noise * (high - low) / 2
        return np.clip(noisy, low, high).astype(np.float32)

    return act


def record(
    env: VectorEnv, act: Act, *, episodes: int, source: Source, seed: int, version: int = -1, only_success: bool = True
) -> Iterator[Episode]:
    """Record `episodes` episodes of every task, lanes side by side, each given as it ends.

    With `only_success` failures are thrown away.
    """
    lanes = Lanes(env, seed=seed)
    columns: list[list[tuple[Observation, np.ndarray, ChunkResult, int]]] = [[] for _ in range(env.num_envs)]
    kept = dict.fromkeys(env.embodiment.tasks, 0)
    attempts = 0
    while any(done < episodes for done in kept.values()):
        seen, index = lanes.observation, np.arange(env.num_envs)
        tasks = env.task_names(index)
        actions = act(seen, index)
        result = lanes.advance(actions[:, None])
        for lane in map(int, index):
            columns[lane].append((tree.index(seen, lane), actions[lane], _row(result, lane), lane))
        ended = np.flatnonzero(~lanes.active)
        attempts += len(ended)
        for lane in ended:
            episode = _episode(columns[lane], env, tasks[lane], source, version, seed + int(lane))
            columns[lane] = []
            wanted = episode.success or (not only_success and episode.reason != "diverged")
            if wanted and kept[tasks[lane]] < episodes:
                kept[tasks[lane]] += 1
                yield episode
        if attempts > 100 * episodes * len(kept):
            short = {task: done for task, done in kept.items() if done < episodes}
            raise RuntimeError(f"After {attempts} attempts there are only {short} successful episodes of {episodes}; lower the noise.")
        lanes.restart(~lanes.active)


def _row(result: ChunkResult, lane: int) -> ChunkResult:
    return ChunkResult(
        reward=result.reward[lane], executed=result.executed[lane], terminated=result.terminated[lane],
        truncated=result.truncated[lane], success=result.success[lane], invalid=result.invalid[lane],
        observation=tree.index(result.observation, lane),
    )  # fmt: skip


def _episode(
    rows: list[tuple[Observation, np.ndarray, ChunkResult, int]], env: VectorEnv, task: str, source: Source, version: int, seed: int
) -> Episode:
    """Lay the frames of one lane side by side."""
    results = [row[2] for row in rows]
    last = results[-1]
    observations = tree.stack([row[0] for row in rows] + [last.observation])  # [T + 1]
    actions = np.stack([row[1] for row in rows]).astype(np.float32)
    limited = np.clip(actions, env.embodiment.action_low, env.embodiment.action_high).astype(np.float32)
    frames = len(rows)
    reason = "diverged" if last.invalid else "success" if last.success else "terminated" if last.terminated else "time limit"
    return Episode(
        requested=actions, action=limited,
        reward=np.array([r.reward[0] for r in results], np.float32),
        source=np.full(frames, SOURCES.index(source), np.uint8),
        version=np.full(frames, version, np.int64), governed=np.zeros(frames, np.uint8),
        state=observations.state, time=observations.time, images=observations.images,
        image_rows=np.arange(frames + 1) if observations.images else np.zeros(0, np.int64),
        frame=np.zeros(0, np.int64), executed=np.zeros(0, np.int64),
        chunk=np.zeros((0, 1, actions.shape[1]), np.float32), trace=None,
        terminated=bool(last.terminated), truncated=bool(last.truncated), success=bool(last.success),
        reason=reason, task=task, prompt=str(observations.prompt[0]), seed=seed, schema=env.embodiment.schema,
    )  # fmt: skip
