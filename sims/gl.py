"""Pictures by MuJoCo's own renderer: for videos, and for those who want its pixels.

Which OpenGL works is found out in a child process, since a broken driver may hang or end the process that asks. EGL is
tried before OSMesa; the variable MUJOCO_GL, if set to one of them, decides instead.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from .look import CAMERAS, Appearance, move_cameras
from .pictures import Picture, Props
from .raycast import Poses, place
from .scene import Task

BACKENDS = ("egl", "osmesa")
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swr", "software")
_ASK = """
import importlib, mujoco
context = importlib.import_module("mujoco.{name}").GLContext(64, 64)
context.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco/>")
render = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
from OpenGL import GL
print("renderer:", GL.glGetString(GL.GL_RENDERER).decode())
"""


@dataclass(frozen=True)
class Backend:
    """A way to OpenGL that works here."""

    name: str
    """'egl' or 'osmesa'."""
    renderer: str
    """What the driver calls itself."""

    @property
    def software(self) -> bool:
        """Whether pictures are computed on the CPU."""
        return self.name == "osmesa" or any(word in self.renderer.lower() for word in SOFTWARE)


@functools.cache
def backend(timeout_s: float = 30.0) -> Backend:
    """Find out which OpenGL works on this machine; asked once per process."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    reasons = []
    for name in (chosen,) if chosen in BACKENDS else BACKENDS:
        settings = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
        command = [sys.executable, "-c", _ASK.format(name=name)]
        try:
            done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            reasons.append(f"{name} did not answer within {timeout_s:.0f} s")
            continue
        for line in done.stdout.splitlines():
            if line.startswith("renderer: "):
                return Backend(name, line.removeprefix("renderer: "))
        reasons.append(f"{name}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    raise RuntimeError(
        f"No OpenGL works here ({'; '.join(reasons)}). Install EGL or OSMesa, set MUJOCO_GL to one that works, or use "
        "cameras of kind 'ray', which need none."
    )


class GLCameras:
    """Cameras drawn by OpenGL, one world after another, without shadows; the context belongs to one thread."""

    def __init__(
        self, model: mujoco.MjModel, tasks: Sequence[Task], names: Sequence[str], *, height: int, width: int
    ) -> None:
        self.names = tuple(names)
        self.backend = backend()
        self.height, self.width = height, width
        self._model = copy.copy(model)  # its colours change from world to world
        self._model.vis.global_.offheight, self._model.vis.global_.offwidth = height, width
        self._data = mujoco.MjData(self._model)
        self._appearance, self._props = Appearance(model), Props(model, tasks)
        self._scene = mujoco.MjvScene(self._model, maxgeom=model.ngeom + 10)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0
        self._model.light_specular[:] = 0.0
        self._model.vis.headlight.specular[:] = 0.0
        self._drawing: tuple[int, Any, mujoco.MjrContext] | None = None

    def see(self, qpos: np.ndarray, rows: np.ndarray, *, full: bool = False) -> dict[str, Picture]:
        if full:
            raise ValueError("OpenGL cameras give colours only; depth and geoms come from cameras of kind 'ray'.")
        render = self._open()
        mocap, look = self._props.places(rows), self._appearance.look(rows)
        out = {name: np.empty((len(rows), self.height, self.width, 3), np.uint8) for name in self.names}
        for i in range(len(rows)):
            place(self._model, self._data, qpos[i], mocap[i])
            mujoco.mj_camlight(self._model, self._data)
            self._model.geom_rgba[:, :3] = look.colour[i]
            self._model.light_dir[0] = -look.light[i]
            self._model.light_diffuse[0] = look.diffuse[i]
            self._model.vis.headlight.ambient[:] = look.ambient[i]
            self._model.vis.headlight.diffuse[:] = 0.0
            self._data.light_xdir[0] = -look.light[i]
            for name in self.names:
                self._draw(render, name, rows[i : i + 1], out[name][i])
        return {name: Picture(rgb) for name, rgb in out.items()}

    def close(self) -> None:
        """Give the OpenGL context back; the next picture makes a new one."""
        if self._drawing is not None:
            _, context, render = self._drawing
            render.free()
            context.free()
            self._drawing = None

    def _open(self) -> mujoco.MjrContext:
        """Make the context where it is used: OpenGL ties it to a thread."""
        if self._drawing is None:
            context = importlib.import_module(f"mujoco.{self.backend.name}").GLContext(self.width, self.height)
            context.make_current()
            render = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, render)
            self._drawing = (threading.get_ident(), context, render)
        thread, context, render = self._drawing
        if thread != threading.get_ident():
            raise RuntimeError("These OpenGL cameras were first used in another thread; make one set per thread.")
        context.make_current()
        return render

    def _draw(self, render: mujoco.MjrContext, name: str, row: np.ndarray, out: np.ndarray) -> None:
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = index = self._model.camera(name).id
        data = self._data
        mujoco.mjv_updateScene(self._model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        here = Poses(data.geom_xpos, data.geom_xmat, data.cam_xpos[None, [index]], data.cam_xmat[index].reshape(1, 1, 3, 3))  # fmt: skip
        moved = move_cameras(here, row, [CAMERAS.index(name)])
        for eye in self._scene.camera:
            eye.pos[:] = moved.camera_position[0, 0]
            eye.forward[:] = -moved.camera_rotation[0, 0, :, 2]
            eye.up[:] = moved.camera_rotation[0, 0, :, 1]
        window = mujoco.MjrRect(0, 0, self.width, self.height)
        mujoco.mjr_render(window, self._scene, render)
        mujoco.mjr_readPixels(out, None, window, render)
        out[:] = out[::-1]  # OpenGL counts rows from below
