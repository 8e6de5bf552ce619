"""What is seen of worlds: proprioception, objects relative to the tip, pictures, and what only a critic may know."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from ..types import Observation, Spec
from . import arm
from .pictures import Picture
from .scene import ARM_DOFS, View

PROMPT_LENGTH = 128
PROPRIOCEPTION = (
    *(f"{name}.pos" for name in arm.JOINTS),
    "gripper.opening",
    *(f"{name}.vel" for name in arm.JOINTS),
    "gripper.vel",
    *(f"tip.{axis}" for axis in "xyz"),
    "tip.pitch",
    *(f"command.tip.d{axis}" for axis in "xyz"),
)
"""Joints in rad and rad/s, tip in m in the base frame, pitch below the horizon in rad, and how far the commanded tip is
from the real one: without it the next displacement, which starts at the command, would not follow from the state."""
_OBJECTS = ("named", "other_1", "other_2")


def proprioception(view: View, qvel: np.ndarray) -> np.ndarray:
    """What a real arm knows of itself [n, S], given velocities [n, nv]."""
    return np.column_stack(
        [
            view.joints,
            view.opening,
            qvel[:, : ARM_DOFS - 1],
            qvel[:, ARM_DOFS - 1] / (arm.GRIPPER_RANGE[1] - arm.GRIPPER_RANGE[0]),
            view.tip,
            view.pitch,
            view.command_tip - view.tip,
        ]
    )


def object_names(tasks: Sequence[str], goal: bool) -> tuple[str, ...]:
    """Name the entries of `objects`."""
    return (
        *(f"{name}.d{axis}" for name in _OBJECTS for axis in "xyz"),
        "named.sin_4yaw",
        "named.cos_4yaw",
        *(("goal.dx", "goal.dy") if goal else ()),
        *((f"task.{name}" for name in tasks) if len(tasks) > 1 else ()),
    )


def objects(view: View, task: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Where things are [n, O]: the named object, then the others, from the tip, m.

    Then the named object's yaw against the closing direction, four-fold as a cube is; the goal from the named object, m,
    where any of the tasks has one (`goals`, bool per task); and which task is played, one-hot, where there are several.
    """
    n = len(view.named)
    rows = np.arange(n)[:, None]
    order = (view.named[:, None] + np.arange(3)) % 3
    relative = view.objects[rows, order, :3] - view.tip[:, None]  # [n, 3, 3]
    yaw = 4 * (view.target[:, 3] - view.jaw_yaw)
    parts = [relative.reshape(n, 9), np.sin(yaw), np.cos(yaw)]
    if goals.any():
        parts.append(np.where(goals[task][:, None], view.goal - view.target[:, :2], 0.0))
    if len(goals) > 1:
        parts.append(np.eye(len(goals))[task])
    return np.column_stack(parts)


class Seen:
    """What each of N lanes saw last. Kept, because a lane that diverges has to show where its decision started."""

    def __init__(self, spec: Spec, lanes: int) -> None:
        self.state = np.zeros((lanes, spec.state_dim), np.float32)
        self.privileged = np.zeros((lanes, len(spec.privileged_names)), np.float32)
        self.images = {name: np.zeros((lanes, h, w, 3), np.uint8) for name, h, w in spec.cameras}
        self.prompt = np.full(lanes, "", dtype=f"<U{PROMPT_LENGTH}")
        self.time = np.zeros(lanes)

    def keep(self, lanes: np.ndarray, time: np.ndarray, known: np.ndarray, pictures: dict[str, Picture]) -> None:
        """Take what `lanes` see now; `known` [n, P] begins with the state and is what a critic sees."""
        self.time[lanes] = time
        self.privileged[lanes] = known
        self.state[lanes] = known[:, : self.state.shape[1]]
        for name, picture in pictures.items():
            self.images[name][lanes] = picture.rgb

    def observation(self, lanes: np.ndarray) -> Observation:
        """Copy out the observation of `lanes`."""
        return Observation(
            images={name: images[lanes] for name, images in self.images.items()},
            state=self.state[lanes],
            prompt=self.prompt[lanes],
            time=self.time[lanes],
            privileged=self.privileged[lanes],
        )

    def gymnasium(self) -> dict[str, Any]:
        """Copy out the observation of all lanes as Gymnasium has it."""
        return {
            "state": self.state.copy(),
            "privileged": self.privileged.copy(),
            "prompt": self.prompt.copy(),
            "time": self.time[:, None].copy(),
            **{f"images/{name}": images.copy() for name, images in self.images.items()},
        }


def space(spec: Spec) -> gym.spaces.Dict:
    """Describe one lane of `Seen.gymnasium`."""
    box = gym.spaces.Box
    return gym.spaces.Dict(
        {
            "state": box(-np.inf, np.inf, (spec.state_dim,), np.float32),
            "privileged": box(-np.inf, np.inf, (len(spec.privileged_names),), np.float32),
            "prompt": gym.spaces.Text(PROMPT_LENGTH, charset=string.printable),
            "time": box(0, np.inf, (1,), np.float64),
            **{f"images/{name}": box(0, 255, (h, w, 3), np.uint8) for name, h, w in spec.cameras},
        }
    )
