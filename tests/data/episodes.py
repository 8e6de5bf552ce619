"""Small episodes for the tests of the store."""

from __future__ import annotations

import numpy as np

from embodied.types import Episode, Spec, Trace

SPEC = Spec(
    robot="arm",
    tasks=("reach",),
    state_names=("s0", "s1", "s2"),
    action_names=("a0", "a1"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    control_hz=10.0,
    cameras=(("front", 4, 5), ("wrist", 4, 5)),
)
STATE_SPEC = Spec(**{**vars(SPEC), "cameras": ()})


def make_episode(
    length: int = 10, *, seed: int = 0, spec: Spec = SPEC, decisions: int = 0, traced: bool = False, success: bool = True
) -> Episode:
    """Random numbers in every column; `state[:, 0]` is the row, `state[:, 1]` and `action[:, 1]` the seed."""
    random = np.random.default_rng([seed, length])
    state = random.normal(size=(length + 1, spec.state_dim)).astype(np.float32)
    state[:, 0], state[:, 1] = np.arange(length + 1), seed
    action = random.uniform(-1, 1, (length, spec.action_dim)).astype(np.float32)
    action[:, 0], action[:, 1] = np.arange(length), seed
    pictures = np.arange(length + 1 if spec.cameras else 0)
    path = random.normal(size=(decisions, 1, 4, spec.action_dim)).astype(np.float32)
    return Episode(
        requested=action + np.float32(0.5),
        action=action,
        reward=np.eye(length, dtype=np.float32)[-1] * success,
        source=np.full(length, 0 if decisions else 2, np.uint8),
        version=np.full(length, 7 if decisions else -1, np.int64),
        governed=random.integers(0, 4, length, np.uint8),
        state=state,
        time=np.arange(length + 1) / spec.control_hz + seed,
        images={n: random.integers(0, 256, (len(pictures), h, w, 3), np.uint8) for n, h, w in spec.cameras},
        image_rows=pictures,
        frame=np.arange(decisions) * (length // max(decisions, 1)),
        executed=np.full(decisions, length // max(decisions, 1)),
        chunk=random.normal(size=(decisions, 4 if decisions else 0, spec.action_dim)).astype(np.float32),
        trace=Trace(path, path + 1, path + 2, path + 3, np.zeros((decisions, 1), np.int64)) if traced else None,
        terminated=success,
        truncated=not success,
        success=success,
        reason="success" if success else "time limit",
        task=spec.tasks[0],
        prompt=f"go to {seed}",
        seed=seed,
        schema=spec.schema,
    )
