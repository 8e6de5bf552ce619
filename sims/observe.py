"""Numbers a policy sees of a world: proprioception, objects relative to the tip, and what only a critic may know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import arm
from .scene import ARM_DOFS, View

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
