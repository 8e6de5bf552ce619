"""Put the named object into the named bin and let go of it."""

from __future__ import annotations

import numpy as np

from .. import grasp
from ..scene import HALF_HEIGHT, View, polar

HALF = 0.05
"""m: half width of a bin."""
INSIDE = 0.04
"""m from the bin's middle, along each side, for the object's centre."""
CARRY = 0.065
"""m: tip height while carrying."""
RELEASED = 0.3
"""Opening from which the fingers have let go."""


def _bin(name: str, rgba: str) -> str:
    rim = "".join(
        f'<body pos="{x} {y} 0.006"><geom name="{name}_{side}" type="box" size="{w} {h} 0.006" rgba="{rgba}"/></body>'
        for side, x, y, w, h in (
            ("front", HALF, 0, 0.002, HALF),
            ("back", -HALF, 0, 0.002, HALF),
            ("left", 0, HALF, HALF, 0.002),
            ("right", 0, -HALF, HALF, 0.002),
        )
    )
    return f'<geom name="{name}" type="box" size="{HALF} {HALF} 0.001" rgba="{rgba}"/>{rim}'


class Place:
    """The named object at rest within the named bin, gripper open, for 3 frames."""

    name = "place"
    templates = (
        "put the {colour} {shape} into the {goal}",
        "place the {colour} {shape} in the {goal}",
        "drop the {shape} that is {colour} into the {goal}",
    )
    time_limit = 90
    hold = 3
    goals = ("white bin", "black bin")
    props = (_bin("white_bin", "0.92 0.92 0.90 1"), _bin("black_bin", "0.08 0.08 0.09 1"))
    sector = 0.45

    def place_goals(self, rng: np.random.Generator, objects: np.ndarray, named: int, wanted: int) -> np.ndarray | None:
        """Draw one bin to the left and one to the right, either way round."""
        side = rng.permutation([-1.0, 1.0])
        return polar(rng.uniform(0.17, 0.21, 2), side * rng.uniform(0.95, 1.1, 2))

    def achieved(self, view: View) -> np.ndarray:
        rows = np.arange(len(view.named))
        at_rest = (view.target[:, 2] < HALF_HEIGHT + 0.004) & (view.speed[rows, view.named] < 0.02)
        return self._inside(view, INSIDE) & at_rest & (view.opening > RELEASED)

    def expert(self, view: View) -> np.ndarray:
        """Grasp from above, carry over the bin, go down, let go."""
        action, held = grasp.approach(view)
        way = view.goal - view.target[:, :2]
        over = self._inside(view, 0.8 * INSIDE)
        high = view.tip[:, 2] > 0.65 * CARRY
        action[held, :2] = np.where((high | over)[:, None], 0.9 * way, 0.0)[held]
        action[held, 2] = np.where(over, grasp.LOW, CARRY)[held] - view.tip[held, 2]
        down = self._inside(view, INSIDE) & (view.target[:, 2] < HALF_HEIGHT + 0.02)
        action[down] = 0.0
        action[down, 5] = 0.2
        return action

    def _inside(self, view: View, half: float) -> np.ndarray:
        return np.abs(view.target[:, :2] - view.goal).max(1) < half
