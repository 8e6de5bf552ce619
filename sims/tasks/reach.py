"""Bring the point between the fingertips to the named object and stay there."""

from __future__ import annotations

import numpy as np

from ..scene import HALF_HEIGHT, View

RADIUS = 0.025
"""m between the tip and the middle of the object's top: its centre lies 18 mm below the lowest tip."""
HOVER = 0.035
"""m above the object's top: a straight line from the side would push the object away."""
TOUCH = 0.006
"""m above the object's top: the fingers reach 2 mm beyond the tip."""
OVER = 0.025
"""m of lateral error within which the tip goes down; narrower, and action noise makes the expert dither."""


class Reach:
    """The tip within 2.5 cm of the named object for 5 frames."""

    name = "reach"
    templates = (
        "reach the {colour} {shape}",
        "move the gripper to the {colour} {shape}",
        "go to the {colour} {shape}",
        "touch the {shape} that is {colour}",
    )
    time_limit = 32
    hold = 5
    goals = ()
    props = ()
    sector = 0.75

    def place_goals(self, rng: np.random.Generator, objects: np.ndarray, named: int, wanted: int) -> None:
        return None

    def achieved(self, view: View) -> np.ndarray:
        return np.linalg.norm(self._offset(view), axis=1) < RADIUS

    def expert(self, view: View) -> np.ndarray:
        """Go over the object, then down to it."""
        offset = self._offset(view)
        over = np.linalg.norm(offset[:, :2], axis=1) < OVER
        action = np.zeros((len(offset), 6))
        action[:, :3] = offset
        action[:, 2] += np.where(over, TOUCH, HOVER)
        return 0.9 * action

    def _offset(self, view: View) -> np.ndarray:
        """From the tip to the middle of the named object's top [n, 3]."""
        return view.target[:, :3] + [0.0, 0.0, HALF_HEIGHT] - view.tip
