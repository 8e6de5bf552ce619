"""The suite as Gymnasium knows environments: one lane for `gymnasium.make`, N for `gymnasium.make_vec`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from . import arm, tabletop
from .cameras import Kind


class TabletopEnv(gym.Env[dict[str, Any], np.ndarray]):
    """One lane of the suite. Seeds mean the same as in the vector environment: lane 0 of a reset with this seed."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(
        self,
        tasks: Sequence[str] = ("reach",),
        action: arm.Action = "end_effector",
        *,
        substeps: int = tabletop.SUBSTEPS,
        state_objects: bool = True,
        cameras: Sequence[str] = (),
        image_size: int = 64,
        renderer: Kind = "ray",
        randomise: float = 0.0,
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.vector = tabletop.make(
            tasks,
            1,
            action=action,
            substeps=substeps,
            threads=0,
            state_objects=state_objects,
            cameras=cameras,
            image_size=image_size,
            renderer=renderer,
            randomise=randomise,
        )
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        observation, infos = self.vector.reset(seed=seed)
        return _first(observation), _first(infos)

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(infos)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        return self.vector.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.vector.close()


def _first(rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Take lane 0 of every entry, scalars and text as Python's own."""
    return {name: value[0] if value.ndim > 1 else value[0].item() for name, value in rows.items()}


def make_vector(
    num_envs: int,
    tasks: Sequence[str] = ("reach",),
    *,
    action: arm.Action = "end_effector",
    substeps: int = tabletop.SUBSTEPS,
    threads: int | None = None,
    state_objects: bool = True,
    cameras: Sequence[str] = (),
    image_size: int = 64,
    renderer: Kind = "ray",
    randomise: float = 0.0,
) -> tabletop.Tabletop:
    """Make the vector environment under the argument names of `gymnasium.make_vec`."""
    return tabletop.make(
        tasks,
        num_envs,
        action=action,
        substeps=substeps,
        threads=threads,
        state_objects=state_objects,
        cameras=cameras,
        image_size=image_size,
        renderer=renderer,
        randomise=randomise,
    )
