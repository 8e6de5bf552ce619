"""What a person wants to see of a run: a policy at work, and what it was shown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .. import tree
from ..agent import FlowAgent
from ..interfaces import Renders, VectorEnv
from ..rollout.lanes import Lanes
from ..types import Observation


def film(make_env: Callable[..., VectorEnv], agent: FlowAgent, path: Path, *, seed: int, episodes: int = 6) -> bool:
    """Write one video with `episodes` scenes side by side; False where the environment cannot render."""
    import imageio.v3 as imageio

    env = make_env(lanes=episodes)
    try:
        if not isinstance(env, Renders):
            return False
        frames = _play(env, agent, seed)
        rate = env.embodiment.control_hz
    finally:
        env.close()
    imageio.imwrite(path, frames, fps=rate, codec="libx264", macro_block_size=1)
    return True


def stills(obs: Observation, path: Path, *, count: int = 6) -> bool:
    """Write what the policy sees in the first lanes, its instructions above; False where it sees no pictures."""
    if not obs.images:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    count = min(count, len(obs.state))
    figure, axes = pyplot.subplots(
        len(obs.images), count, figsize=(2.0 * count, 2.1 * len(obs.images)), layout="constrained", squeeze=False
    )
    for row, (camera, pictures) in zip(axes, obs.images.items(), strict=True):
        for lane, axis in enumerate(row):
            axis.imshow(np.asarray(pictures[lane]), interpolation="nearest")
            axis.set(xticks=(), yticks=())
        row[0].set_ylabel(camera)
    for lane, axis in enumerate(axes[0]):
        axis.set_title(textwrap.fill(str(obs.prompt[lane]), 24), fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _play(env: VectorEnv, agent: FlowAgent, seed: int) -> np.ndarray:
    """uint8 [T, h, w * episodes, 3]; an episode that has ended stays at its last frame, dimmed."""
    assert isinstance(env, Renders)
    lanes = Lanes(env, seed=seed)
    agent = agent.copy(seed=seed)
    pictures = [env.picture(lane) for lane in range(env.num_envs)]
    frames = [np.concatenate(pictures, 1)]
    while lanes.active.any():
        waiting = np.flatnonzero(lanes.active)
        proposed = agent.act(tree.index(lanes.observation, waiting), explore=False).actions
        chunk = np.zeros((env.num_envs, *proposed.shape[1:]), proposed.dtype)
        chunk[waiting] = proposed
        for frame in range(chunk.shape[1]):
            if not lanes.active.any():
                break
            moving = np.flatnonzero(lanes.active)
            lanes.advance(chunk[:, frame : frame + 1])
            for lane in moving:
                pictures[lane] = env.picture(int(lane))
                if not lanes.active[lane]:
                    pictures[lane] = (pictures[lane] * 0.6 + 100 * np.array([0.2, 0.4, 0.2])).astype(np.uint8)
            frames.append(np.concatenate(pictures, 1))
    return np.stack(frames)
