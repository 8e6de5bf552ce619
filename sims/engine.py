"""Step many MuJoCo worlds at once: a chunk of frames for all lanes is one native call.

The state of a lane is MuJoCo's full physics state (time, qpos, qvel, act) and nothing else: models disable warm start,
so that stepping frame by frame, in chunks, or from a restored state gives the same bits (public fault B50).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco import rollout


class Engine:
    """N worlds of one structure, stepped by a persistent pool of native threads with the GIL released."""

    def __init__(self, model: mujoco.MjModel, lanes: int, *, substeps: int, threads: int | None = None) -> None:
        """`substeps` physics steps make a frame; `threads` defaults to the cores this process may use."""
        if not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_WARMSTART:
            raise ValueError("The model keeps warm start, so a lane's state would not decide its future; disable it.")
        self.model = model
        self.variants: list[mujoco.MjModel] | None = None
        """One model per lane where lanes differ in physics; all of the structure of `model`."""
        self.substeps = substeps
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self.frame_s = substeps * model.opt.timestep
        self.size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self.state = np.zeros((lanes, self.size))
        """float64 [N, P]: full physics state per lane: time, qpos, qvel, act."""
        self._pool: rollout.Rollout | None = None
        self._data: list[mujoco.MjData] = []

    def qpos(self, state: np.ndarray) -> np.ndarray:
        """View the positions in states [..., P]: [..., nq]."""
        return state[..., 1 : 1 + self.model.nq]

    def qvel(self, state: np.ndarray) -> np.ndarray:
        """View the velocities in states [..., P]: [..., nv]."""
        return state[..., 1 + self.model.nq : 1 + self.model.nq + self.model.nv]

    def run(self, lanes: np.ndarray, control: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict `lanes` [n] under control [n, H, nu], one row per frame, without committing.

        Returns the states after each frame [n, H, P] and which lanes stayed sane [n]. The caller writes the rows it
        keeps into `state`.
        """
        n, frames = control.shape[:2]
        start = self.state[lanes]
        sane = np.isfinite(start).all(1)
        # A world that is broken before it starts would only make MuJoCo write warnings.
        begin = np.where(sane[:, None], start, 0.0)
        steps = frames * self.substeps
        states = np.empty((n, steps, self.size))
        self._open().rollout(
            self._models(lanes),
            self._data,
            begin,
            np.repeat(control, self.substeps, axis=1),
            nstep=steps,
            state=states,
            skip_checks=False,
        )
        after = states[:, self.substeps - 1 :: self.substeps]  # [n, H, P]
        # MuJoCo resets a diverged world in silence (time goes back) and the pool then stops its clock (B48).
        due = begin[:, :1] + self.frame_s * np.arange(1, frames + 1)
        sane &= (np.abs(after[:, :, 0] - due) < 0.5 * self.model.opt.timestep).all(1) & np.isfinite(after).all((1, 2))
        return after, sane

    def close(self) -> None:
        """Stop the pool; the next `run` starts a new one."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _open(self) -> rollout.Rollout:
        if self._pool is None:
            self._pool = rollout.Rollout(nthread=self.threads)
            self._data = [mujoco.MjData(self.model) for _ in range(max(1, self.threads))]
        return self._pool

    def _models(self, lanes: np.ndarray) -> mujoco.MjModel | Sequence[mujoco.MjModel]:
        if self.variants is None:
            return self.model
        return [self.variants[lane] for lane in lanes]
