"""Random scenes with labels, to learn seeing from: the arm and the objects anywhere, nothing acted."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from ..types import Observation, Scenes
from . import arm
from .cameras import Cameras
from .observe import proprioception
from .scene import ARM_DOFS, HALF_HEIGHT, NAMED, SHAPES, TASK, WANTED, Task, View, draw, instruction, polar, view

REFERENTS = 2
"""The object and the goal that the instruction names."""
LAG, SPEED = 0.02, 0.4
"""rad and rad/s: spread of joints about their commands and of their velocities, so that seeing works in motion, too."""
NEAR_SHARE, HELD_SHARE, MOVED_SHARE = 0.5, 0.2, 0.5
"""Scenes with the tip near the named object, with an object between the fingers, and with one that was moved."""


def scatter_scenes(
    rng: np.random.Generator, tasks: Sequence[Task], count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw qpos [n, nq], commanded targets [n, 6] and scenes [n, SCENE]: starts of all tasks, then disturbed."""
    starts = [draw(rng, tasks[i % len(tasks)], i % len(tasks)) for i in range(count)]
    qpos, command, scene = (np.stack(parts) for parts in zip(*starts, strict=True))
    objects = qpos[:, ARM_DOFS:].reshape(count, len(SHAPES), 4)  # a view: x, y, z, yaw
    rows = np.arange(count)
    moved = np.flatnonzero(rng.random(count) < MOVED_SHARE)
    which = rng.integers(len(SHAPES), size=count)
    elsewhere = polar(rng.uniform(0.12, 0.27, count), rng.uniform(-0.85, 0.85, count))
    objects[moved, which[moved], :2] = elsewhere[moved]
    named = scene[:, NAMED].astype(int)
    aim = np.column_stack(
        [polar(rng.uniform(0.12, 0.27, count), rng.uniform(-0.85, 0.85, count)), rng.uniform(0.01, 0.16, count)]
    )
    near = rng.random(count) < NEAR_SHARE
    aim[near, :2] = (objects[rows, named, :2] + rng.normal(size=(count, 2)) * 0.03)[near]
    aim[near, 2] = rng.uniform(0.01, 0.08, near.sum())
    command = _posed(command, aim, rng.uniform(0.7, 1.45, count), rng.uniform(-1.2, 1.2, count))
    command[:, 5] = rng.uniform(0.0, 0.6, count)
    held = np.flatnonzero(rng.random(count) < HELD_SHARE)
    _hold(objects, command, held, np.where(rng.random(count) < 0.7, named, which))
    qpos[:, :ARM_DOFS] = arm.servo(command)
    qpos[:, : ARM_DOFS - 1] += rng.normal(size=(count, ARM_DOFS - 1)) * LAG * rng.random((count, 1))
    return qpos, command, scene


def labels(view: View, task: np.ndarray, goals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is to be known of scenes that play `task` [n]: targets and weights, float32 [n, REFERENTS, 5 + tasks].

    Per referent its place from the tip, m; for the object also a tenth of the sine and cosine of 4 yaw, and of which task
    the instruction means, one-hot. A goal that `goals` (bool per task) says is not there has zeros.
    """
    n = len(view.named)
    targets = np.zeros((n, REFERENTS, 5 + len(goals)))
    weight = np.zeros_like(targets)
    yaw = 4 * (view.target[:, 3] - view.jaw_yaw)
    targets[:, 0, :5] = np.column_stack([view.target[:, :3] - view.tip, 0.1 * np.sin(yaw), 0.1 * np.cos(yaw)])
    targets[:, 0, 5:] = 0.1 * np.eye(len(goals))[task]
    weight[:, 0] = 1
    weight[:, 0, 3:5] = (view.named != SHAPES.index("cylinder"))[:, None]  # a cylinder has no yaw to see
    place = np.column_stack([view.goal, np.zeros(n)]) - view.tip
    targets[:, 1, :3] = np.where(goals[task][:, None], place, 0.0)
    weight[:, 1, :3] = 1
    return targets.astype(np.float32), weight.astype(np.float32)


def _posed(command: np.ndarray, aim: np.ndarray, pitch: np.ndarray, roll: np.ndarray) -> np.ndarray:
    """Move commanded targets [n, 6] toward a tip place [n, 3], pitch and roll [n], by the suite's own transform."""
    transform = arm.transform("end_effector")
    for _ in range(25):
        tip, rotation = arm.CHAIN.forward(command[:, :-1])
        down = np.arcsin(np.clip(-rotation[:, 2, 0], -1.0, 1.0))
        action = np.column_stack([aim - tip, pitch - down, roll - command[:, 4], np.zeros(len(aim))])
        command = transform.targets(command, action[:, None])[:, 0]
    return command


def _hold(objects: np.ndarray, command: np.ndarray, lanes: np.ndarray, which: np.ndarray) -> None:
    """Put one object between the fingers of `lanes`, as a grasp leaves it."""
    tip, rotation = arm.CHAIN.forward(command[lanes, :-1])
    side = rotation[:, :, 1]
    place = tip + arm.GRASP * side
    command[lanes, 5] = 0.2
    objects[lanes, which[lanes], :2] = place[:, :2]
    objects[lanes, which[lanes], 2] = np.maximum(place[:, 2] - HALF_HEIGHT, 0.0)
    objects[lanes, which[lanes], 3] = np.arctan2(side[:, 1], side[:, 0])


def show(model: mujoco.MjModel, tasks: Sequence[Task], cameras: Cameras, count: int, seed: int) -> Scenes:
    """Draw `count` random scenes from `seed`, picture and label them."""
    rng = np.random.default_rng(seed)
    qpos, command, rows = scatter_scenes(rng, tasks, count)
    qvel = np.zeros((count, model.nv))
    qvel[:, :ARM_DOFS] = rng.normal(size=(count, ARM_DOFS)) * SPEED * rng.random((count, 1))
    seen = view(qpos, qvel, command, rows)
    pictures = cameras.see(qpos, rows, full=True)
    goals = np.array([bool(task.goals) for task in tasks])
    targets, weight = labels(seen, rows[:, TASK].astype(int), goals)
    obs = Observation(
        images={name: picture.rgb for name, picture in pictures.items()},
        state=proprioception(seen, qvel).astype(np.float32),
        prompt=np.array([instruction(tasks[int(row[TASK])], row) for row in rows]),
        time=np.zeros(count),
    )
    masks = {}
    for name, picture in pictures.items():
        assert picture.geom is not None
        masks[name] = _masks(model, tasks, picture.geom, rows)
    return Scenes(obs=obs, targets=targets, weight=weight, masks=masks)


def _masks(model: mujoco.MjModel, tasks: Sequence[Task], geom: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pixels of the named object and of the named goal: bool [n, REFERENTS, h, w], from geom ids [n, h, w]."""
    owner = np.array([model.body(model.body_rootid[model.geom_bodyid[g]]).name for g in range(model.ngeom)] + [""])
    masks = np.zeros((len(rows), REFERENTS, *geom.shape[1:]), bool)
    for i, row in enumerate(rows):
        names = [f"object_{int(row[NAMED])}"]
        task = tasks[int(row[TASK])]
        if task.goals:
            names.append(f"{task.name}_{int(row[WANTED])}")
        for referent, name in enumerate(names):
            masks[i, referent] = (owner == name)[geom[i]]
    return masks
