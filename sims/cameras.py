"""Pictures of many worlds at once: `ray` and `multi_ray` cast rays, `gl` is MuJoCo's own renderer.

`ray` and `multi_ray` give the same pictures and need no OpenGL. `ray` intersects in closed form and is the faster one on
few cores; `multi_ray` calls `mj_multiRay`, knows every kind of geom, and takes over from about five cores on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Literal, Protocol

import mujoco
import numpy as np

from .analytic import AnalyticCaster
from .look import CAMERAS
from .multi_ray import MultiRayCaster
from .pictures import Picture, RayCameras
from .raycast import RayCaster
from .scene import Task

Kind = Literal["ray", "multi_ray", "gl"]
SHARED = 2
"""Threads that gain anything in NumPy (2: 1.35 times as fast, 3: 1.05); more wait for the interpreter's lock."""


class Cameras(Protocol):
    """Something that takes pictures of worlds given by positions and scenes."""

    names: tuple[str, ...]

    def see(self, qpos: np.ndarray, rows: np.ndarray, *, full: bool = False) -> dict[str, Picture]:
        """Show worlds at positions [n, nq] with scenes [n, SCENE]; `full` adds depth and geoms."""
        ...

    def close(self) -> None: ...


def check(names: Sequence[str], height: int, width: int) -> None:
    """Refuse cameras that do not exist and pictures without pixels."""
    for name in names:
        if name not in CAMERAS:
            raise ValueError(f"There is no camera '{name}'; this suite has {', '.join(CAMERAS)}.")
    if len(set(names)) != len(names):
        raise ValueError(f"Cameras {', '.join(names)} repeat one; name each once.")
    if height < 1 or width < 1:
        raise ValueError(f"Pictures of {height} x {width} pixels are asked for; at least 1 x 1 is needed.")


def make_cameras(
    model: mujoco.MjModel,
    tasks: Sequence[Task],
    names: Sequence[str],
    *,
    height: int,
    width: int,
    kind: Kind = "ray",
    threads: int | None = None,
) -> Cameras:
    """Make cameras of a kind for a suite's model and tasks."""
    check(names, height, width)
    if kind == "gl":
        from .gl import GLCameras  # loads OpenGL, which need not be there

        try:
            return GLCameras(model, tasks, names, height=height, width=width)
        except RuntimeError as problem:
            warnings.warn(f"{problem} Going on with cameras of kind 'ray'.", stacklevel=2)
            kind = "ray"
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    if kind == "multi_ray":
        caster: RayCaster = MultiRayCaster(model, names, height=height, width=width, threads=threads)
        threads = 1
    elif kind == "ray":
        caster = AnalyticCaster(model, names, height=height, width=width)
    else:
        raise ValueError(f"Cameras of kind '{kind}' are asked for; choose 'ray', 'multi_ray' or 'gl'.")
    return RayCameras(caster, tasks, threads=min(max(1, threads), SHARED))
