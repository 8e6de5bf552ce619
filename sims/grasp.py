"""How the scripted experts take hold of an object: the part that lifting and placing share."""

from __future__ import annotations

import numpy as np

from . import arm
from .scene import View

OPEN = 0.4
"""Opening at which the fingers go down beside an object, 13 mm from either side."""
TOUCH = 0.22
"""Opening at which they touch it."""
CENTRE_SLOPE = 0.075
"""m by which the middle between the fingertips moves per unit of opening."""
HIGH, LOW = 0.056, 0.011
"""m: tip height over and beside objects."""
PITCH = 1.4
"""rad: as steep as the wrist allows at the near end of the table."""


def approach(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Act until the named object is held: action [n, 6] and which worlds hold it [n].

    Over the object with open fingers, turned to its sides; down; close. A held world's action keeps the grip and leaves
    the tip's place to the caller.
    """
    side = view.rotation[:, :2, 1]  # closing direction, seen from above
    side = side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-6)
    middle = arm.GRASP + CENTRE_SLOPE * (view.opening[:, None] - TOUCH)
    offset = view.target[:, :2] - middle * side - view.tip[:, :2]  # where the tip should be, from where it is
    lateral = np.linalg.norm(offset, axis=1)
    turn = (view.target[:, 3] - view.jaw_yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4
    round_one = view.named == 2
    aligned = (np.abs(turn) < 0.25) | round_one
    low = view.tip[:, 2] - view.target[:, 2] < 0.014
    over = (lateral < 0.026) & (aligned | low)
    inside = low & (lateral < 0.022)
    held = inside & (view.opening < TOUCH + 0.05)
    action = np.zeros((len(offset), 6))
    action[:, :2] = np.where(held[:, None], 0.0, 0.8 * offset)
    action[:, 2] = np.where(over | inside, LOW, HIGH) - view.tip[:, 2]
    action[:, 3] = PITCH - view.pitch
    action[:, 4] = np.where(round_one | inside, 0.0, -0.8 * turn)
    action[:, 5] = np.where(inside, -0.2, OPEN - view.opening)
    return action, held
