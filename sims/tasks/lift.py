"""Lift the named object off the table."""

from __future__ import annotations

import numpy as np

from .. import grasp
from ..scene import HALF_HEIGHT, View

HEIGHT = 0.05
"""m between the table and the object's lower side."""


class Lift:
    """The named object 5 cm above the table for 5 frames."""

    name = "lift"
    templates = (
        "lift the {colour} {shape}",
        "pick up the {colour} {shape}",
        "raise the {shape} that is {colour}",
    )
    time_limit = 48
    hold = 5
    goals = ()
    props = ()
    sector = 0.75

    def place_goals(self, rng: np.random.Generator, objects: np.ndarray, named: int, wanted: int) -> None:
        return None

    def achieved(self, view: View) -> np.ndarray:
        return view.target[:, 2] - HALF_HEIGHT >= HEIGHT

    def expert(self, view: View) -> np.ndarray:
        """Grasp from above, then go up."""
        action, held = grasp.approach(view)
        action[held, 2] = 0.02
        return action
