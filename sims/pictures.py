"""Pictures from rays: what was hit, in its colour and light, with the goals of each lane's task in their places."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import mujoco
import numpy as np

from .. import tree
from . import scene
from .look import CAMERAS, SKY, Appearance, Look, move_cameras
from .raycast import Hits, Poses, RayCaster, dot
from .scene import Task

WORTH_A_THREAD = 16
"""Worlds; fewer are seen sooner by one thread."""


@dataclass(frozen=True)
class Picture:
    """What one camera shows of n worlds."""

    rgb: np.ndarray
    """uint8 [n, h, w, 3]."""
    depth: np.ndarray | None = None
    """float32 [n, h, w], m along the camera's axis; infinite where nothing is. Only where asked for."""
    geom: np.ndarray | None = None
    """int32 [n, h, w]: id of the geom, -1 where nothing is. Only where asked for."""


class RayCameras:
    """Pictures from a ray caster, lit by one far light and by light from everywhere, without shadows."""

    def __init__(self, caster: RayCaster, tasks: Sequence[Task], *, threads: int = 1) -> None:
        """`threads` share the worlds; leave it 1 for a caster that has threads of its own."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self.names = caster.cameras
        self.caster = caster
        self._ids = [CAMERAS.index(name) for name in self.names]
        self._appearance = Appearance(caster.model)
        self._props = Props(caster.model, tasks)

    def see(self, qpos: np.ndarray, rows: np.ndarray, *, full: bool = False) -> dict[str, Picture]:
        parts = min(self._threads, max(1, len(rows) // WORTH_A_THREAD))
        if parts == 1:
            return self._see(qpos, rows, full)
        split = (np.array_split(values, parts) for values in (qpos, rows))
        return tree.concat(list(self._pool.map(self._see, *split, [full] * parts)))

    def _see(self, qpos: np.ndarray, rows: np.ndarray, full: bool) -> dict[str, Picture]:
        mocap = self._props.places(rows)
        poses = move_cameras(self.caster.poses(qpos, mocap), rows, self._ids)
        look = self._appearance.look(rows)
        hits = self.caster.cast(qpos, mocap, poses)
        pictures = [self._picture(found, look) for found in hits]
        if full:
            pictures = [self._full(picture, hits[i], poses, i) for i, picture in enumerate(pictures)]
        return dict(zip(self.names, pictures, strict=True))

    def close(self) -> None:
        self._pool.shutdown()
        self.caster.close()

    def _picture(self, hits: Hits, look: Look) -> Picture:
        n, size = hits.table.shape
        ground = look.colour[:, self.caster.table] * np.minimum(look.ambient + look.diffuse * look.light[:, 2:], 1.0)
        # The table has one colour, since the light is far and the table flat.
        rgb = np.repeat(to_bytes(ground), size, axis=0)  # [n * h * w, 3]
        if not hits.table.all():
            rgb[~hits.table.ravel()] = to_bytes(np.array(SKY))
        world = hits.pixel // size
        facing = np.maximum(dot(hits.normal, look.light[world]), 0.0)
        shade = np.minimum(look.ambient[world, 0] + look.diffuse[world, 0] * facing, 1.0)
        rgb[hits.pixel] = to_bytes(look.colour[world, hits.geom] * shade[:, None])
        return Picture(rgb.reshape(n, self.caster.height, self.caster.width, 3))

    def _full(self, picture: Picture, hits: Hits, poses: Poses, camera: int) -> Picture:
        """Add depth and geoms to a picture."""
        depth = self.caster.table_depth(poses, camera, np.arange(hits.table.size))
        depth[~hits.table.ravel()] = np.inf
        geom = np.where(hits.table.ravel(), self.caster.table, -1).astype(np.int32)
        depth[hits.pixel], geom[hits.pixel] = hits.depth, hits.geom
        shape = picture.rgb.shape[:3]
        return Picture(picture.rgb, depth.astype(np.float32).reshape(shape), geom.reshape(shape))


class Props:
    """Puts the marks and bins of each lane's task where its scene has them, and the others away."""

    def __init__(self, model: mujoco.MjModel, tasks: Sequence[Task]) -> None:
        self._count = model.nmocap
        self._bodies = [[model.body(f"{task.name}_{i}").mocapid[0] for i in range(len(task.props))] for task in tasks]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """float64 [n, M, 3]: where mocap bodies belong in scenes [n, SCENE]."""
        out = np.zeros((len(rows), self._count, 3))
        out[:, :, 2] = -1.0
        task = rows[:, scene.TASK].astype(int)
        for index, bodies in enumerate(self._bodies):
            lanes = np.flatnonzero(task == index)
            goals = rows[lanes, scene.GOALS].reshape(-1, 2, 2)
            for goal, body in enumerate(bodies):
                out[lanes, body, :2] = goals[:, goal]
                out[lanes, body, 2] = 0.0
        return out


def to_bytes(colour: np.ndarray) -> np.ndarray:
    """Round colours in 0-1 to uint8."""
    return (colour * 255 + 0.5).astype(np.uint8)
