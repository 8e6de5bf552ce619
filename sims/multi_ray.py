"""Ray casting on `mj_multiRay`: for every kind of geom, one thread per core.

The reference for `analytic`, and the faster of the two from about five cores on. `mj_multiRay` is called through ctypes,
because MuJoCo's own binding keeps the interpreter locked while it runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mujoco
import numpy as np

from .raycast import FAR, Hits, Poses, RayCaster, place


class MultiRayCaster(RayCaster):
    """A `RayCaster` that leaves the intersections to MuJoCo."""

    def __init__(
        self, model: mujoco.MjModel, cameras: Sequence[str], *, height: int, width: int, threads: int = 1
    ) -> None:
        """Bodies with several geoms are refused: `mj_multiRay` before MuJoCo 4.0.0 loses some of theirs."""
        super().__init__(model, cameras, height=height, width=width)
        crowded = [model.body(b).name or str(b) for b in range(1, model.nbody) if model.body_geomnum[b] > 1]
        if crowded:
            raise ValueError(f"Bodies {', '.join(crowded)} have several geoms; give each geom a body of its own.")
        self.threads = max(1, threads)
        self._worlds = [mujoco.MjData(model) for _ in range(self.threads)]
        self._pool = ThreadPoolExecutor(self.threads)
        self._multi_ray = _native_multi_ray()

    def cast(self, qpos: np.ndarray, mocap: np.ndarray, poses: Poses) -> list[Hits]:
        return [self._look(qpos, mocap, poses, camera) for camera in range(len(self.cameras))]

    def close(self) -> None:
        self._pool.shutdown()

    def _look(self, qpos: np.ndarray, mocap: np.ndarray, poses: Poses, camera: int) -> Hits:
        n = len(qpos)
        cover = self._cover(poses, camera).reshape(n, -1)
        pixel = np.flatnonzero(cover)
        starts = np.concatenate([[0], np.cumsum(cover.sum(1))])
        rays, normal = np.empty((len(pixel), 3)), np.zeros((len(pixel), 3))
        geom, depth = np.empty(len(pixel), np.int32), np.empty(len(pixel))

        def part(thread: int) -> None:
            data = self._worlds[thread]
            for i in range(thread * n // self.threads, (thread + 1) * n // self.threads):
                a, b = int(starts[i]), int(starts[i + 1])
                place(self.model, data, qpos[i], mocap[i])
                local = self.rays[camera][pixel[a:b] - i * cover.shape[1]]
                np.matmul(local, poses.camera_rotation[i, camera].T, out=rays[a:b])
                origin = np.ascontiguousarray(poses.camera_position[i, camera])
                at = [array[a:].ctypes.data for array in (rays, geom, depth, normal)]
                self._multi_ray(self.model._address, data._address, origin.ctypes.data, at[0], None, 1, -1, *at[1:], b - a, FAR)  # fmt: skip

        list(self._pool.map(part, range(self.threads)))
        kept = (geom >= 0) & (geom != self.table)
        return Hits(pixel[kept], geom[kept], depth[kept], normal[kept], self.see_table(poses, camera))

    def _cover(self, poses: Poses, camera: int) -> np.ndarray:
        """bool [n, h, w]: pixels inside some geom's rectangle."""
        top, bottom, left, right = (edge[:, :, None] for edge in self.rectangles(poses, camera))
        row, column = np.arange(self.height), np.arange(self.width)
        rows = ((row >= top) & (row <= bottom)).astype(np.float32)  # [n, G, h]
        columns = ((column >= left) & (column <= right)).astype(np.float32)
        return rows.transpose(0, 2, 1) @ columns > 0


def _native_multi_ray() -> Callable[..., None]:
    """`mj_multiRay` of the library that MuJoCo's Python package has loaded, with the GIL released while it runs."""
    (path,) = Path(mujoco.__file__).parent.glob("libmujoco.*")
    function = ctypes.CDLL(str(path)).mj_multiRay
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [*[pointer] * 5, ctypes.c_ubyte, number, *[pointer] * 3, number, ctypes.c_double]
    function.restype = None
    return function
