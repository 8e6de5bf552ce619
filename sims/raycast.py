"""What every ray caster here shares: one ray per pixel, where geoms and cameras are, and which pixels may see what.

Nothing needs OpenGL. A ray is cast only inside the rectangles that the geoms' boxes project to; everywhere else the table
is intersected in closed form. `MultiRayCaster` and `AnalyticCaster` do the rest, and agree pixel by pixel with `mj_ray`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

FAR = 10.0
"""m: nothing is seen beyond."""
NEAR = 1e-4
"""m before the camera where boxes are cut off to see where they project to."""
BELOW = -0.5
"""m: what lies lower is put away under the table."""
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
_EDGES = np.array([(i, j) for i in range(8) for j in range(i) if (_CORNERS[i] != _CORNERS[j]).sum() == 1])


@dataclass(frozen=True)
class Poses:
    """Where everything is in n worlds."""

    geom_position: np.ndarray
    """float64 [n, G, 3], m."""
    geom_rotation: np.ndarray
    """float64 [n, G, 3, 3]."""
    camera_position: np.ndarray
    """float64 [n, C, 3], m."""
    camera_rotation: np.ndarray
    """float64 [n, C, 3, 3]: columns are right, up and backward."""


@dataclass(frozen=True)
class Hits:
    """What one camera sees in n worlds: the table, and the P pixels where something stands before it."""

    pixel: np.ndarray
    """int64 [P]: world * h * w + row * w + column, each once."""
    geom: np.ndarray
    """int32 [P]: the nearest geom, never the table."""
    depth: np.ndarray
    """float64 [P], m along the camera's axis."""
    normal: np.ndarray
    """float64 [P, 3]: outward surface normal, world frame."""
    table: np.ndarray
    """bool [n, h * w]: whether the ray meets the table, if nothing else is in its way."""


class RayCaster:
    """Casts one ray per pixel for named cameras of a model, in many worlds at once. Subclasses implement `cast`."""

    def __init__(self, model: mujoco.MjModel, cameras: Sequence[str], *, height: int, width: int) -> None:
        """The model has one plane, named 'table', at z = 0."""
        self.model = model
        self.cameras = tuple(cameras)
        self.height, self.width = height, width
        self.table = model.geom("table").id
        self.solid = np.array([g for g in range(model.ngeom) if g != self.table])
        """Every other geom's id, in order: the axis G of rectangles."""
        self._ids = [model.camera(name).id for name in cameras]
        self.rays = [pixel_rays(model.cam_fovy[i], height, width) for i in self._ids]
        """Per camera float64 [h * w, 3]: directions in the camera's frame, of length 1 along its axis."""
        box = model.geom_aabb[self.solid]
        self._corners = box[:, None, :3] + _CORNERS * box[:, None, 3:]  # [G, 8, 3]

    def poses(self, qpos: np.ndarray, mocap: np.ndarray) -> Poses:
        """Place geoms and cameras for positions [n, nq] and mocap bodies [n, M, 3]."""
        n, geoms, cameras = len(qpos), self.model.ngeom, len(self._ids)
        out = Poses(
            np.empty((n, geoms, 3)), np.empty((n, geoms, 3, 3)), np.empty((n, cameras, 3)), np.empty((n, cameras, 3, 3))
        )
        data = mujoco.MjData(self.model)  # threads may be placing other worlds at the same time
        for i in range(n):
            place(self.model, data, qpos[i], mocap[i])
            mujoco.mj_camlight(self.model, data)
            out.geom_position[i] = data.geom_xpos
            out.geom_rotation[i] = data.geom_xmat.reshape(-1, 3, 3)
            out.camera_position[i] = data.cam_xpos[self._ids]
            out.camera_rotation[i] = data.cam_xmat[self._ids].reshape(-1, 3, 3)
        return out

    def cast(self, qpos: np.ndarray, mocap: np.ndarray, poses: Poses) -> list[Hits]:
        """Cast the rays of every camera, one `Hits` each; the cameras of `poses` may have been moved."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what runs in the background."""

    def rectangles(self, poses: Poses, camera: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Project the geoms' boxes, with a pixel to spare: first and last row and column, int64 [n, G] each."""
        back = poses.camera_rotation[:, camera].transpose(0, 2, 1)  # world to camera
        rotation = back[:, None] @ poses.geom_rotation[:, self.solid]  # [n, G, 3, 3]
        offset = poses.geom_position[:, self.solid] - poses.camera_position[:, None, camera]
        offset = offset @ back.transpose(0, 2, 1)
        corners = self._corners @ rotation.transpose(0, 1, 3, 2) + offset[:, :, None]  # [n, G, 8, 3]
        # What lies behind the camera is cut off where the box's edges cross the plane just before it.
        a, b = corners[:, :, _EDGES[:, 0]], corners[:, :, _EDGES[:, 1]]  # [n, G, 12, 3]
        share = (-NEAR - a[..., 2]) / np.where(a[..., 2] == b[..., 2], 1.0, b[..., 2] - a[..., 2])
        points = np.concatenate([corners, a + share[..., None] * (b - a)], axis=2)  # [n, G, 20, 3]
        seen = np.concatenate([corners[..., 2] <= -NEAR, (share >= 0) & (share <= 1)], axis=2)
        seen &= (poses.geom_position[:, self.solid, 2] > BELOW)[:, :, None]
        scale = self.focal(camera) / np.maximum(-points[..., 2], NEAR)

        def ends(along: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
            low = np.floor(np.where(seen, along, np.inf).min(2)) - 1
            high = np.ceil(np.where(seen, along, -np.inf).max(2)) + 1
            return np.clip(low, 0, size).astype(np.int64), np.clip(high, -1, size - 1).astype(np.int64)

        top, bottom = ends(self.height / 2 - points[..., 1] * scale, self.height)
        left, right = ends(self.width / 2 + points[..., 0] * scale, self.width)
        return top, bottom, left, right

    def focal(self, camera: int) -> float:
        """Focal length, pixels."""
        return self.height / 2 / np.tan(np.radians(self.model.cam_fovy[self._ids[camera]]) / 2)

    def table_depth(self, poses: Poses, camera: int, pixel: np.ndarray) -> np.ndarray:
        """Depth [P] at which rays meet the table's plane, m; infinite where they never do."""
        size = self.height * self.width
        world, ray = pixel // size, self.rays[camera][pixel % size]
        down = dot(poses.camera_rotation[world, camera, 2], ray)
        with np.errstate(divide="ignore"):
            return np.where(down < 0, poses.camera_position[world, camera, 2] / -down, np.inf)

    def see_table(self, poses: Poses, camera: int) -> np.ndarray:
        """bool [n, h * w]: which rays meet the table, if nothing else is in their way.

        To meet a rectangle is six inequalities linear in the ray, so in every row of pixels one span of columns does.
        """
        position, rotation = poses.camera_position[:, camera], poses.camera_rotation[:, camera]
        down, height = rotation[:, 2], position[:, 2:]  # of a ray r: its fall down @ r, negative where it goes down
        planes = [-down, height * [0.0, 0.0, 1.0] - FAR * down]
        for axis in (0, 1):
            for side in (1, -1):
                reach = side * position[:, [axis]] - self.model.geom_size[self.table][axis]
                planes.append(reach * down - side * height * rotation[:, axis])
        across, up, back = np.stack(planes, 1)[..., None].transpose(2, 0, 1, 3)  # [n, 6, 1]: each plane @ r >= 0
        focal = self.focal(camera)
        x, y = (
            (np.arange(self.width) + 0.5 - self.width / 2) / focal,
            (self.height / 2 - np.arange(self.height) - 0.5) / focal,
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = (back - up * y) / across  # [n, 6, h]
        never = ((across == 0) & (back - up * y > 0)).any(1)
        first = np.where(across > 0, bound, -np.inf).max(1)
        last = np.where(never, -np.inf, np.where(across < 0, bound, np.inf).min(1))
        return ((x >= first[..., None]) & (x <= last[..., None])).reshape(len(position), -1)


def place(model: mujoco.MjModel, data: mujoco.MjData, qpos: np.ndarray, mocap: np.ndarray) -> None:
    """Put a world into a pose: kinematics only."""
    data.qpos[:] = qpos
    data.mocap_pos[:] = mocap
    mujoco.mj_kinematics(model, data)


def pixel_rays(fovy: float, height: int, width: int) -> np.ndarray:
    """Directions [h * w, 3] through the middle of every pixel: x right, y up, z = -1."""
    focal = height / 2 / np.tan(np.radians(fovy) / 2)
    x = (np.arange(width) + 0.5 - width / 2) / focal
    y = (height / 2 - np.arange(height) - 0.5) / focal
    return np.stack(np.broadcast_arrays(x[None], y[:, None], -1.0), axis=-1).reshape(-1, 3)


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply vectors [..., 3] row by row; several times faster than a sum over so short an axis."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]
