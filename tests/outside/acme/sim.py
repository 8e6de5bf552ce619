"""A cart on a rail, to be moved to the middle: a vector environment in NumPy that steps frame by frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied.types import Spec


def spec(control_hz: float = 10.0) -> Spec:
    """What the simulated and the real cart have in common."""
    return Spec(
        robot="cart",
        tasks=("centre",),
        state_names=("position",),
        action_names=("velocity",),
        action_low=(-1.0,),
        action_high=(1.0,),
        control_hz=control_hz,
    )


class Rail:
    """N carts; an episode succeeds within 5 cm of the middle."""

    def __init__(self, lanes: int = 1, *, length: float = 1.0, time_limit: int = 6) -> None:
        self.num_envs, self.length, self.time_limit = lanes, length, time_limit
        self.embodiment = spec()
        self._position, self._frame = np.zeros(lanes), np.zeros(lanes, np.int64)
        self._rng = [np.random.default_rng(lane) for lane in range(lanes)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        for lane in np.flatnonzero(mask):
            if seed is not None:
                self._rng[lane] = np.random.default_rng(seed + lane)
            self._position[lane] = self._rng[lane].uniform(0.1, self.length / 2) * self._rng[lane].choice([-1, 1])
            self._frame[lane] = 0
        return self._see(), {}

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._position += np.clip(actions[:, 0], -1, 1) / self.embodiment.control_hz
        self._frame += 1
        success = np.abs(self._position) < 0.05
        truncated = ~success & (self._frame >= self.time_limit)
        infos = {"success": success, "invalid": np.zeros(self.num_envs, bool)}
        return self._see(), success.astype(np.float64), success, truncated, infos

    def expert(self, lanes: np.ndarray) -> np.ndarray:
        return np.clip(-10 * self._position[lanes], -1, 1).astype(np.float32)[:, None, None]

    def task_names(self, lanes: np.ndarray) -> list[str]:
        return ["centre"] * len(lanes)

    def close(self) -> None: ...

    def _see(self) -> dict[str, Any]:
        return {"state": self._position[:, None].astype(np.float32)}
