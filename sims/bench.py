"""Figures of the simulator: ratios against what a user would pick instead, timed in pairs within one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from mujoco import MjData, rollout

from . import arm, tabletop
from .single import TabletopEnv

HORIZON = 4
LANES = 64


def run(*, pairs: int = 7) -> dict[str, float]:
    """Measure this machine: each figure is the median over interleaved pairs of timings of the same work."""
    figures = {"physics_vs_native": physics_vs_native(pairs=pairs)}
    figures |= chunk_step_vs_gym(pairs=pairs)
    figures |= chunk_step_vs_gym(pairs=pairs, substeps=25, suffix="_25")
    return figures


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

    mode = AutoresetMode.DISABLED
    others: dict[str, VectorEnv] = {
        "sync": SyncVectorEnv([make] * LANES, autoreset_mode=mode),
        "async": AsyncVectorEnv([make] * LANES, autoreset_mode=mode),
    }

    def frames(other: VectorEnv) -> Callable[[], None]:
        def play() -> None:
            for h in range(HORIZON):
                other.step(moves[:, h])

        return play

    def restart() -> None:
        again()
        for other in others.values():
            other.reset(seed=0)

    times = paired([ours, *(frames(other) for other in others.values())], pairs, before=restart)
    for other in others.values():
        other.close()
    env.close()
    ratio: np.ndarray = np.median(times[1:] / times[0], axis=1)
    return {
        f"chunk_step_vs_gym_state{suffix}": float(ratio.min()),
        f"lane_steps_per_s{suffix}": float(HORIZON * LANES / np.median(times[0])),
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
