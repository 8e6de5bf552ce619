"""Worlds of plain NumPy, whose right answers can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied.rollout.lanes import observe
from embodied.types import ChunkResult, Observation, Spec


class FramewisePointMass:
    """Points in a plane, moved by the action; success within `radius` of the origin, divergence beyond `limit`.

    A vector environment that knows neither chunks nor snapshots.
    """

    def __init__(
        self, lanes: int = 1, *, time_limit: int = 8, radius: float = 0.3, limit: float = 5.0,
        ends_on_success: bool = True, reward: float = 1.0,
    ) -> None:  # fmt: skip
        self.num_envs, self.time_limit = lanes, time_limit
        self.radius, self.limit, self.ends_on_success, self.reward = radius, limit, ends_on_success, reward
        self.embodiment = Spec(
            robot="point", tasks=("reach",), state_names=("x", "y"), action_names=("dx", "dy"),
            action_low=(-1.0, -1.0), action_high=(1.0, 1.0), control_hz=10.0, privileged_names=("distance", "frames_left"),
        )  # fmt: skip
        self.position = np.zeros((lanes, 2))
        self.frame = np.zeros(lanes, np.int64)
        self.seed = np.zeros(lanes, np.int64)
        self.episode = np.zeros(lanes, np.int64)
        self.over = np.ones(lanes, bool)
        self.resets = np.zeros(lanes, np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        for lane in np.flatnonzero(mask):
            if seed is not None:
                self.seed[lane], self.episode[lane] = seed + lane, 0
            rng = np.random.default_rng([self.seed[lane], self.episode[lane]])
            angle = rng.uniform(0, 2 * np.pi)
            self.position[lane] = np.cos(angle), np.sin(angle)
            self.episode[lane] += 1
            self.frame[lane], self.over[lane] = 0, False
            self.resets[lane] += 1
        return self.see(), {}

    def see(self) -> dict[str, Any]:
        distance, left = np.linalg.norm(self.position, axis=1), self.time_limit - self.frame
        return {
            "state": self.position.astype(np.float32),
            "privileged": np.stack([distance, left], 1).astype(np.float32),
            "time": self.frame / 10,
        }

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self.over.any():
            raise RuntimeError("A finished lane must be reset before it is stepped.")
        reward, terminated, truncated, success, invalid = self.advance(np.arange(self.num_envs), actions)
        return self.see(), reward, terminated, truncated, {"success": success, "invalid": invalid}

    def advance(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """One frame of some lanes."""
        self.position[lanes] += actions
        self.frame[lanes] += 1
        distance = np.linalg.norm(self.position[lanes], axis=1)
        success, invalid = distance < self.radius, ~(distance < self.limit)
        terminated = success & self.ends_on_success
        truncated = ~terminated & ((self.frame[lanes] >= self.time_limit) | invalid)
        self.over[lanes] = terminated | truncated
        return np.where(success, self.reward, 0.0), terminated, truncated, success, invalid

    def task_names(self, lanes: np.ndarray) -> list[str]:
        return ["reach"] * len(lanes)

    def close(self) -> None: ...


class PointMass(FramewisePointMass):
    """The same world in chunks, with snapshots."""

    def step_chunk(self, actions: np.ndarray, lanes: np.ndarray) -> ChunkResult:
        if self.over[lanes].any() or not len(lanes):
            raise RuntimeError("A chunk needs lanes that are running.")
        count, horizon = actions.shape[:2]
        reward = np.zeros((count, horizon), np.float32)
        executed = np.zeros(count, np.int64)
        terminated, truncated, success, invalid = (np.zeros(count, bool) for _ in range(4))
        before = self.position[lanes].copy()
        for frame in range(horizon):
            run = ~(terminated | truncated)
            if run.any():
                earned, end, cut, solved, lost = self.advance(lanes[run], actions[run, frame])
                reward[run, frame], executed[run] = earned, frame + 1
                terminated[run], truncated[run], invalid[run] = end, cut, lost
                success[run] |= solved
        self.position[lanes[invalid]] = before[invalid]
        executed[invalid], reward[invalid] = 0, 0
        return ChunkResult(
            reward=reward, executed=executed, terminated=terminated, truncated=truncated, success=success, invalid=invalid,
            observation=self.observe(lanes),
        )  # fmt: skip

    def observe(self, lanes: np.ndarray) -> Observation:
        return observe({key: value[lanes] for key, value in self.see().items()})

    def snapshot(self, lanes: np.ndarray) -> np.ndarray:
        counters = np.stack([self.frame, self.seed, self.episode, self.over], 1)[lanes]
        return np.concatenate([self.position[lanes], counters], 1)

    def restore(self, lanes: np.ndarray, snapshot: np.ndarray) -> Observation:
        self.position[lanes] = snapshot[:, :2]
        self.frame[lanes], self.seed[lanes], self.episode[lanes] = snapshot[:, 2:5].T.astype(np.int64)
        self.over[lanes] = snapshot[:, 5] > 0
        return self.observe(lanes)
