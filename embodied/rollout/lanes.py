"""Run N worlds one chunk at a time: the one loop under collecting, evaluating and recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import tree
from ..agent import require_finite
from ..interfaces import Chunked, VectorEnv
from ..types import ChunkResult, Observation


@dataclass(frozen=True)
class EpisodeEnd:
    """One finished episode, for statistics."""

    lane: int
    task: str
    success: bool
    ret: float
    """Undiscounted sum of rewards."""
    length: int
    """Frames."""
    invalid: bool
    """The world diverged: counted, but neither success nor failure."""


class Lanes:
    """The lanes of a vector environment with their current observations and episode counters."""

    def __init__(self, env: VectorEnv, *, seed: int) -> None:
        self.env = env
        self.observation = self._checked(observe(env.reset(seed=seed)[0]))
        """[N, ...]: what the next decision of each lane sees."""
        self.active: np.ndarray = np.ones(env.num_envs, bool)
        self.succeeded: np.ndarray = np.zeros(env.num_envs, bool)
        """[N]: the running episode was solved; it earns nothing more, whatever the environment goes on paying."""
        self.ret: np.ndarray = np.zeros(env.num_envs)
        self.length: np.ndarray = np.zeros(env.num_envs, np.int64)
        self.finished: list[EpisodeEnd] = []
        """Episodes that ended since somebody took them away."""

    def advance(self, actions: np.ndarray) -> ChunkResult:
        """Run actions [N, H, A] in every active lane; the rows of the others read as executed 0.

        Lanes whose episode ends become inactive until `restart`.
        """
        lanes = np.flatnonzero(self.active)
        if isinstance(self.env, Chunked):
            part = self.env.step_chunk(actions[lanes], lanes)
        elif len(lanes) == len(self.active):
            part = _step_frames(self.env, actions, self.observation)
        else:
            raise RuntimeError("An environment without step_chunk cannot leave finished lanes waiting; restart them first.")
        result = part if len(lanes) == len(self.active) else self._scatter(part, lanes)
        broken = np.argwhere(~np.isfinite(result.reward))
        if len(broken):
            lane, frame = broken[0]
            raise RuntimeError(f"reward of lane {lane}, frame {frame} of the chunk, is {result.reward[lane, frame]}; check the task.")
        result = replace(result, reward=np.where(self.succeeded[:, None], 0, result.reward))
        self.succeeded |= result.success
        self.observation = self._checked(result.observation)
        self.ret += result.reward.sum(1)
        self.length += result.executed
        ended = self.active & (result.terminated | result.truncated)
        if ended.any():
            self._close(np.flatnonzero(ended), result)
        self.active &= ~ended
        return result

    def restart(self, mask: np.ndarray) -> None:
        """Begin new episodes in the lanes of `mask` [N]."""
        if mask.any():
            self.observation = self._checked(observe(self.env.reset(options={"reset_mask": mask})[0]))
            self.ret[mask], self.length[mask] = 0, 0
            self.active[mask], self.succeeded[mask] = True, False

    def take_finished(self) -> list[EpisodeEnd]:
        """Hand over the episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def _close(self, lanes: np.ndarray, result: ChunkResult) -> None:
        for lane, task in zip(lanes, self.env.task_names(lanes), strict=True):
            end = EpisodeEnd(
                lane=int(lane), task=task, success=bool(self.succeeded[lane]), ret=float(self.ret[lane]),
                length=int(self.length[lane]), invalid=bool(result.invalid[lane]),
            )  # fmt: skip
            self.finished.append(end)

    def _checked(self, observation: Observation) -> Observation:
        require_finite(observation, self.env.embodiment.state_names)
        return observation

    def _scatter(self, part: ChunkResult, lanes: np.ndarray) -> ChunkResult:
        def spread(values: np.ndarray) -> np.ndarray:
            full = np.zeros((len(self.active), *values.shape[1:]), values.dtype)
            full[lanes] = values
            return full

        def update(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            merged = old.astype(np.promote_types(old.dtype, new.dtype))
            merged[lanes] = new
            return merged

        return ChunkResult(
            reward=spread(part.reward), executed=spread(part.executed), terminated=spread(part.terminated),
            truncated=spread(part.truncated), success=spread(part.success), invalid=spread(part.invalid),
            observation=tree.map(update, self.observation, part.observation),
        )  # fmt: skip


def observe(values: dict[str, Any]) -> Observation:
    """Read a batched Gymnasium dict observation as ours; arrays are copied, since environments may reuse theirs."""
    state = np.array(values["state"], np.float32)
    lanes = len(state)
    prefix = "images/"
    return Observation(
        images={key.removeprefix(prefix): np.array(value) for key, value in values.items() if key.startswith(prefix)},
        state=state,
        prompt=np.array(values["prompt"] if "prompt" in values else [""] * lanes),
        time=np.array(values["time"], np.float64).reshape(lanes) if "time" in values else np.zeros(lanes),
        privileged=np.array(values["privileged"], np.float32) if "privileged" in values else None,
    )


def _step_frames(env: VectorEnv, actions: np.ndarray, before: Observation) -> ChunkResult:
    """Step frame by frame, until the chunk is done or the first lane ends, which cuts the chunk of every lane."""
    lanes, horizon = actions.shape[:2]
    reward = np.zeros((lanes, horizon), np.float32)
    success, invalid = np.zeros(lanes, bool), np.zeros(lanes, bool)
    for frame in range(horizon):
        values, earned, terminated, truncated, infos = env.step(actions[:, frame])
        reward[:, frame] = np.where(success, 0, earned)
        success = success | infos.get("success", False)
        invalid = invalid | infos.get("invalid", False)
        if (terminated | truncated | invalid).any():
            break
    return ChunkResult(
        reward=np.where(invalid[:, None], 0, reward), executed=np.where(invalid, 0, frame + 1),
        terminated=terminated & ~invalid, truncated=truncated | invalid, success=success & ~invalid, invalid=invalid,
        observation=tree.where(invalid, before, observe(values)),
    )  # fmt: skip
