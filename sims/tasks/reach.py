"""Bring the point between the fingertips to the named object and stay there."""

from __future__ import annotations

import numpy as np

from ..scene import View

RADIUS = 0.025
"""m between tip and object centre."""
HOVER = 0.05
"""m above the object's centre: a straight line from the side would push the object away."""
OVER = 0.025
"""m of lateral error within which the tip goes down; narrower, and action noise makes the expert dither."""


class Reach:
    """The tip within 2.5 cm of the named object's centre for 5 frames."""

    name = "reach"
    templates = (
        "reach the {colour} {shape}",
        "move the gripper to the {colour} {shape}",
        "go to the {colour} {shape}",
        "touch the {shape} that is {colour}",
    )
    time_limit = 32
    hold = 5
    goal = False

    def place_goal(self, rng: np.random.Generator, objects: np.ndarray, named: int) -> np.ndarray:
        raise NotImplementedError("reach has no goal besides the named object.")

    def achieved(self, view: View) -> np.ndarray:
        return np.linalg.norm(view.tip - view.target[:, :3], axis=1) < RADIUS

    def expert(self, view: View) -> np.ndarray:
        """Go over the object, then down onto it; its top stops the fingers 18 mm above its centre."""
        offset = view.target[:, :3] - view.tip  # [n, 3]
        over = np.linalg.norm(offset[:, :2], axis=1) < OVER
        action = np.zeros((len(offset), 6))
        action[:, :2] = offset[:, :2]
        action[:, 2] = offset[:, 2] + np.where(over, 0.0, HOVER)
        return 0.9 * action
