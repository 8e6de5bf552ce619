"""Push the named object onto the mark."""

from __future__ import annotations

import numpy as np

from ..scene import View, reachable

RADIUS = 0.03
"""m between object centre and mark."""
DISTANCE = (0.07, 0.10)
"""m from the object to the mark at a reset."""
BEHIND = 0.045
"""m behind the object, where a push begins."""
CONTACT = 0.026
"""m from the object's centre to the tip that pushes it."""
LATERAL = 0.025
HOVER_GATE = 0.022
"""m: wide gates; with 15 mm, action noise makes the expert dither between its phases."""
HIGH, LOW = 0.065, 0.016
"""m: tip height above and beside objects."""
OPENING = 0.086
"""Fingers 12 mm apart: a broad pusher that is centred on the tip."""
PITCH = 1.3


class Push:
    """The named object's centre within 3 cm of the mark; from wherever it slips, it can be pushed back."""

    name = "push"
    templates = (
        "push the {colour} {shape} onto the {goal}",
        "slide the {colour} {shape} to the {goal}",
        "move the {shape} that is {colour} to the {goal}",
    )
    time_limit = 64
    hold = 2
    goals = ("mark",)
    props = ('<geom name="mark" type="cylinder" size="0.03 0.001" rgba="0.95 0.95 0.95 1"/>',)
    sector = 0.75

    def place_goals(self, rng: np.random.Generator, objects: np.ndarray, named: int, wanted: int) -> np.ndarray | None:
        """Draw a mark in reach, with room behind the object and a free way between."""
        start, others = objects[named], np.delete(objects, named, axis=0)
        for _ in range(20):
            angle, distance = rng.uniform(-np.pi, np.pi), rng.uniform(*DISTANCE)
            way = np.array([np.cos(angle), np.sin(angle)])
            along = np.clip((others - start) @ way, -BEHIND, distance)  # nearest point of the way to each other object
            clear = np.linalg.norm(others - start - along[:, None] * way, axis=1).min() > 0.045
            if clear and reachable(start + distance * way) and reachable(start - BEHIND * way):
                return (start + distance * way)[None]
        return None

    def achieved(self, view: View) -> np.ndarray:
        return np.linalg.norm(view.target[:, :2] - view.goal, axis=1) < RADIUS

    def expert(self, view: View) -> np.ndarray:
        """Go over the place behind the object, down, and push toward the mark; lift and come again after a slip."""
        place, tip = view.target[:, :2], view.tip
        way = view.goal - place
        left = np.linalg.norm(way, axis=1, keepdims=True)
        way = way / np.maximum(left, 1e-6)
        offset = tip[:, :2] - place
        along = (offset * way).sum(1)
        lateral = np.abs(offset[:, 0] * way[:, 1] - offset[:, 1] * way[:, 0])
        behind = (along < -0.6 * CONTACT) & (lateral < LATERAL)
        low = tip[:, 2] < 0.03
        start = place - BEHIND * way
        over = np.linalg.norm(tip[:, :2] - start, axis=1) < HOVER_GATE
        pushing = behind & low
        going = ~pushing & ~(over | behind)
        aim = np.where(pushing[:, None], view.goal - CONTACT * way, start)
        action = np.zeros((len(tip), 6))
        action[:, :2] = aim - tip[:, :2]
        # Nothing sideways below the objects' tops on the way to the start.
        action[:, :2] *= np.where(going & (tip[:, 2] < 0.045), 0.0, 1.0)[:, None]
        action[:, 2] = np.where(going, HIGH, LOW) - tip[:, 2]
        action[:, 3] = PITCH - view.pitch
        action[:, 5] = OPENING - view.opening
        return 0.9 * action
