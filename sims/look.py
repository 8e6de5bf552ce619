"""How a world looks: colours, light and camera places, and how far each lane's own may stray from the plain ones.

Domain randomisation is a row of numbers in [-1, 1] that a reset draws into the lane's scene; zeros give the plain look.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from . import scene
from .raycast import Poses

CAMERAS = ("front", "wrist")
# Places in the row of random numbers.
_TABLE, _ARM, _OBJECTS, _LIGHT = slice(0, 3), slice(3, 6), slice(6, 15), slice(15, 19)
_CAMERA = slice(19, 31)
FRICTION = 31
DRAWS = 32
TABLE_SHIFT, ARM_SHIFT, OBJECT_SHIFT = 0.25, 0.25, 0.1
"""Largest change of each colour channel, of 1; objects stay what they are called."""
LIGHT_TURN = (1.0, 0.35)
"""rad of azimuth and elevation."""
BRIGHTNESS = 0.25
CAMERA_MOVE, CAMERA_TURN = 0.015, 0.04
"""m and rad per axis."""
FRICTION_SHARE = 0.4
"""Largest relative change of the friction of fingers and objects."""
SUN = (1.17, 2.21)
"""Elevation and azimuth of the light, rad."""
AMBIENT, DIFFUSE = 0.45, 0.6
SKY = (0.72, 0.78, 0.84)


@dataclass(frozen=True)
class Look:
    """Appearance of n worlds."""

    colour: np.ndarray
    """float64 [n, G, 3] of every geom, 0-1."""
    light: np.ndarray
    """float64 [n, 3]: unit vector toward the light."""
    ambient: np.ndarray
    """float64 [n, 1]: share of light that comes from everywhere."""
    diffuse: np.ndarray
    """float64 [n, 1]: share that comes from the light."""


class Appearance:
    """Knows which geom is which, and colours them for each lane's scene."""

    def __init__(self, model: mujoco.MjModel) -> None:
        names = [model.geom(g).name for g in range(model.ngeom)]
        self._plain = model.geom_rgba[:, :3].astype(np.float64)
        self._table = names.index("table")
        self._objects = [names.index(f"object_{i}") for i in range(len(scene.SHAPES))]
        self._arm = [
            g for g in range(model.ngeom) if model.body_rootid[model.geom_bodyid[g]] == model.body("shoulder").id
        ]
        self._palette = np.array(list(scene.COLOURS.values()))

    def look(self, rows: np.ndarray) -> Look:
        """Colour and light worlds for scenes [n, SCENE]."""
        draws = rows[:, scene.LOOK]
        colour = np.repeat(self._plain[None], len(rows), axis=0)
        colour[:, self._objects] = self._palette[rows[:, scene.COLOUR].astype(int)]
        colour[:, self._objects] += OBJECT_SHIFT * draws[:, _OBJECTS].reshape(-1, len(self._objects), 3)
        colour[:, self._table] += TABLE_SHIFT * draws[:, _TABLE]
        colour[:, self._arm] += ARM_SHIFT * draws[:, None, _ARM]
        turn, rise, ambient, diffuse = draws[:, _LIGHT].T
        elevation, azimuth = SUN[0] + LIGHT_TURN[1] * rise, SUN[1] + LIGHT_TURN[0] * turn
        flat = np.cos(elevation)
        light = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)], axis=1)
        return Look(
            np.clip(colour, 0.0, 1.0),
            light,
            AMBIENT * (1 + BRIGHTNESS * ambient[:, None]),
            DIFFUSE * (1 + BRIGHTNESS * diffuse[:, None]),
        )


def move_cameras(poses: Poses, rows: np.ndarray, ids: list[int]) -> Poses:
    """Shift and turn the cameras `ids` of CAMERAS as the scenes [n, SCENE] say."""
    draws = rows[:, scene.LOOK][:, _CAMERA].reshape(len(rows), len(CAMERAS), 6)[:, ids]
    if not draws.any():
        return poses
    position = poses.camera_position + CAMERA_MOVE * draws[..., :3]
    x, y, z = np.moveaxis(CAMERA_TURN * draws[..., 3:], 2, 0)
    one, none = np.ones_like(x), np.zeros_like(x)
    about_x = np.stack([one, none, none, none, np.cos(x), -np.sin(x), none, np.sin(x), np.cos(x)], -1)
    about_y = np.stack([np.cos(y), none, np.sin(y), none, one, none, -np.sin(y), none, np.cos(y)], -1)
    about_z = np.stack([np.cos(z), -np.sin(z), none, np.sin(z), np.cos(z), none, none, none, one], -1)
    shape = (*x.shape, 3, 3)
    turn = about_z.reshape(shape) @ about_y.reshape(shape) @ about_x.reshape(shape)
    return Poses(poses.geom_position, poses.geom_rotation, position, poses.camera_rotation @ turn)


def vary_friction(model: mujoco.MjModel, plain: mujoco.MjModel, row: np.ndarray) -> None:
    """Give `model` the friction of one scene [SCENE], relative to that of `plain`."""
    share = 1 + FRICTION_SHARE * row[scene.LOOK][FRICTION]
    model.geom_friction[:, 0] = plain.geom_friction[:, 0] * share
