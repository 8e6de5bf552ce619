"""Figures of the simulator: ratios against what a user would pick instead, timed in pairs within one run."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from mujoco import MjData, rollout

from . import arm, gl, tabletop
from .cameras import Cameras, Kind, make_cameras
from .look import CAMERAS
from .single import TabletopEnv

HORIZON = 4
LANES = 64
PICTURE_LANES = 16
SIZE = 64
"""Pixels along each side of a picture."""


def run(*, pairs: int = 7) -> dict[str, float]:
    """Measure this machine: each figure is the median over interleaved pairs of timings of the same work."""
    figures = {"physics_vs_native": physics_vs_native(pairs=pairs)}
    figures |= chunk_step_vs_gym(pairs=pairs)
    figures |= chunk_step_vs_gym(pairs=pairs, substeps=25, suffix="_25")
    try:
        gl.backend()
    except RuntimeError as problem:
        warnings.warn(f"{problem} The figures against OpenGL are left out.", stacklevel=2)
        return figures
    return figures | chunk_step_vs_gym_camera(pairs=pairs) | ray_vs_gl_pictures(pairs=pairs)


def physics_vs_native(*, pairs: int = 7) -> float:
    """Time of `mujoco.rollout.Rollout(nthread=2)` alone over that of our engine, same states and controls."""
    env = _playing(tabletop.SUBSTEPS)
    lanes = np.arange(LANES)
    control = arm.servo(env.transform.targets(env.command, _moves(env, HORIZON)))
    start = env.engine.state.copy()
    steps = HORIZON * tabletop.SUBSTEPS
    spread = np.repeat(control, tabletop.SUBSTEPS, axis=1)
    out = np.empty((LANES, steps, env.engine.size))
    data = [MjData(env.engine.model) for _ in range(2)]
    with rollout.Rollout(nthread=2) as native:

        def alone() -> None:
            native.rollout(env.engine.model, data, start, spread, nstep=steps, state=out)

        native_s, ours_s = paired([alone, lambda: env.engine.run(lanes, control)], pairs * 2)
    env.close()
    return float(np.median(native_s / ours_s))


def chunk_step_vs_gym(*, pairs: int = 7, substeps: int = tabletop.SUBSTEPS, suffix: str = "") -> dict[str, float]:
    """Time a chunk of 4 frames in 64 lanes against Gymnasium's vector environments of our one-lane environment.

    Both sides return observations and rewards of every lane; Gymnasium's after every frame, as it has no chunks. Named
    `chunk_step_vs_gym_state` is the ratio to the faster of the two; lane steps a second come with it.
    """
    env = _playing(substeps)
    lanes = np.arange(LANES)
    moves = _moves(env, HORIZON)
    start = env.snapshot(lanes)

    def ours() -> None:
        env.step_chunk(moves, lanes)

    def again() -> None:
        env.restore(lanes, start)

    def make() -> gymnasium.Env[dict[str, object], np.ndarray]:
        return TabletopEnv(["reach"], substeps=substeps)

    others = _gymnasium_lanes(make, LANES)

    def frames(other: VectorEnv) -> Callable[[], None]:
        def play() -> None:
            for h in range(HORIZON):
                other.step(moves[:, h])

        return play

    def restart() -> None:
        again()
        for other in others:
            other.reset(seed=0)

    times = paired([ours, *(frames(other) for other in others)], pairs, before=restart)
    for other in others:
        other.close()
    env.close()
    ratio: np.ndarray = np.median(times[1:] / times[0], axis=1)
    return {
        f"chunk_step_vs_gym_state{suffix}": float(ratio.min()),
        f"lane_steps_per_s{suffix}": float(HORIZON * LANES / np.median(times[0])),
    }


class GLDecision(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Our one-lane environment, one decision a step: a chunk of frames, then two pictures by MuJoCo's renderer."""

    def __init__(self) -> None:
        self._env = TabletopEnv(["reach"])
        suite = self._env.vector
        self._cameras = gl.GLCameras(suite.engine.model, suite.tasks, CAMERAS, height=SIZE, width=SIZE)
        box = gymnasium.spaces.Box
        pictures = {name: box(0, 255, (SIZE, SIZE, 3), np.uint8) for name in CAMERAS}
        self.observation_space = gymnasium.spaces.Dict({"seen": self._env.observation_space, **pictures})
        low, high = (
            np.array(limit, np.float32) for limit in (suite.embodiment.action_low, suite.embodiment.action_high)
        )
        self.action_space = box(np.tile(low, (HORIZON, 1)), np.tile(high, (HORIZON, 1)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, infos = self._env.reset(seed=seed)
        return self._with_pictures(observation), infos

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        total = 0.0
        for frame in action:
            observation, reward, ended, cut, infos = self._env.step(frame)
            total += reward
        return self._with_pictures(observation), total, ended, cut, infos

    def _with_pictures(self, observation: dict[str, Any]) -> dict[str, Any]:
        suite = self._env.vector
        seen = self._cameras.see(suite.engine.qpos(suite.engine.state), suite.scene)
        return {"seen": observation, **{name: picture.rgb[0] for name, picture in seen.items()}}


def chunk_step_vs_gym_camera(*, pairs: int = 7) -> dict[str, float]:
    """Time a decision of 4 frames and two 64 x 64 pictures in 16 lanes against Gymnasium with MuJoCo's renderer.

    Gymnasium's side, too, takes pictures once a decision, without shadows, and needs one call for it.
    """
    others = _gymnasium_lanes(GLDecision, PICTURE_LANES)
    env = tabletop.make(["reach"], PICTURE_LANES, cameras=CAMERAS, image_size=SIZE, threads=2)
    env.reset(seed=0)
    lanes = np.arange(PICTURE_LANES)
    moves, start = _moves(env, HORIZON), env.snapshot(lanes)

    def restart() -> None:
        env.restore(lanes, start)
        for other in others:
            other.reset(seed=0)

    def decide(other: VectorEnv) -> Callable[[], object]:
        return lambda: other.step(moves)

    sides = [lambda: env.step_chunk(moves, lanes), *(decide(other) for other in others)]
    times = paired(sides, pairs, before=restart)
    for other in (env, *others):
        other.close()
    ratio: np.ndarray = np.median(times[1:] / times[0], axis=1)
    return {"chunk_step_vs_gym_camera": float(ratio.min())}


def ray_vs_gl_pictures(*, pairs: int = 7) -> dict[str, float]:
    """Time 64 x 64 pictures, both cameras of 64 lanes, by rays against MuJoCo's renderer without shadows."""
    env = _playing(tabletop.SUBSTEPS)
    qpos = env.engine.qpos(env.engine.state)
    kinds: tuple[Kind, ...] = ("ray", "multi_ray", "gl")
    cameras = [
        make_cameras(env.engine.model, env.tasks, CAMERAS, height=SIZE, width=SIZE, kind=kind, threads=2)
        for kind in kinds
    ]

    def shoot(each: Cameras) -> Callable[[], object]:
        return lambda: each.see(qpos, env.scene)

    times = paired([shoot(each) for each in cameras], pairs)
    for each in cameras:
        each.close()
    env.close()
    ray, multi, drawn = times
    return {
        "ray_vs_gl_pictures": float(np.median(drawn / ray)),
        "ray_vs_multi_ray_pictures": float(np.median(multi / ray)),
        "pictures_per_s": float(len(CAMERAS) * LANES / np.median(ray)),
    }


def paired(
    sides: Sequence[Callable[[], object]], pairs: int, *, before: Callable[[], None] | None = None
) -> np.ndarray:
    """Time each side in turn, over and over: seconds [sides, pairs]. The first round warms up and is left out."""
    times: np.ndarray = np.empty((len(sides), pairs + 1))
    for pair in range(pairs + 1):
        if before is not None:
            before()
        for side, call in enumerate(sides):
            begin = time.perf_counter()
            call()
            times[side, pair] = time.perf_counter() - begin
    return times[:, 1:]


def _gymnasium_lanes(make: Callable[[], gymnasium.Env[Any, Any]], lanes: int) -> list[VectorEnv]:
    """Gymnasium's two vector environments of one environment.

    Processes are forked from a clean server, not from this process, whose threads a fork would not take along.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    mode = AutoresetMode.DISABLED
    return [
        SyncVectorEnv([make] * lanes, autoreset_mode=mode),
        AsyncVectorEnv([make] * lanes, autoreset_mode=mode, context="forkserver"),
    ]


def _playing(substeps: int) -> tabletop.Tabletop:
    """The suite in the middle of its episodes, fingers near objects."""
    env = tabletop.make(["reach"], LANES, substeps=substeps, threads=2)
    env.reset(seed=0)
    lanes = np.arange(LANES)
    for _ in range(4):
        env.step_chunk(env.expert(lanes), lanes)
    return env


def _moves(env: tabletop.Tabletop, frames: int) -> np.ndarray:
    rng, high = np.random.default_rng(0), np.array(env.embodiment.action_high)
    return (0.3 * rng.normal(size=(env.num_envs, frames, len(high))) * high).astype(np.float32)
