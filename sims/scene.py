"""What stands on the table, what a reset randomises, and what tasks get to see of it.

Three objects in every scene, two cubes and a cylinder, as planar pucks: slides x, y, z and a hinge about z. They rest on
the lower limit of their z slide instead of on a contact, which is stable, cheap and lets them be pushed and grasped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from . import arm

COLOURS = {"red": (0.85, 0.12, 0.10), "green": (0.10, 0.62, 0.18), "blue": (0.12, 0.25, 0.85)}
SHAPES = ("cube", "cube", "cylinder")
HALF_HEIGHT = 0.016
RADIUS = 0.0165
"""m: half width of a cube and radius of the cylinder, roughly."""
ARM_DOFS = len(arm.JOINTS) + 1
SECTOR_RADIUS = (0.15, 0.24)
"""m from the pan axis, where objects start."""
CLEARANCE = 0.065
"""m between the centres of objects at a reset: their width and room for an open finger."""


def objects_mjcf() -> str:
    """Write the three pucks as MJCF bodies object_0 … object_2."""
    size = {"cube": "0.016 0.016 0.016", "cylinder": f"0.017 {HALF_HEIGHT}"}
    kind = {"cube": "box", "cylinder": "cylinder"}
    return "\n".join(
        f"""<body name="object_{i}" pos="0 0 {HALF_HEIGHT}">
      <joint name="object_{i}_x" class="slide" axis="1 0 0"/><joint name="object_{i}_y" class="slide" axis="0 1 0"/>
      <joint name="object_{i}_z" class="rise"/><joint name="object_{i}_yaw" class="spin"/>
      <geom name="object_{i}" class="object" type="{kind[shape]}" size="{size[shape]}"/>
    </body>"""
        for i, shape in enumerate(SHAPES)
    )


# Columns of the scene of a lane, float64 [N, SCENE]: everything a reset randomises besides the physics state.
TASK, NAMED, TEMPLATE = 0, 1, 2
COLOUR = slice(3, 6)
"""Index into COLOURS of each object."""
WANTED = 6
"""Index of the goal that the instruction names."""
GOALS = slice(7, 11)
"""m: x, y of up to two goals, marks or bins, in the base frame; zeros where a task has fewer."""
LOOK = slice(11, 43)
"""Numbers in [-1, 1] that randomise how the lane looks and how slippery it is; zeros are the plain look."""
SCENE = 43


@dataclass(frozen=True)
class View:
    """What tasks see of n worlds, in the frame of the arm's base. All of it follows from state and scene alone."""

    joints: np.ndarray
    """float64 [n, 5], rad."""
    opening: np.ndarray
    """float64 [n]: gripper opening, 0-1."""
    tip: np.ndarray
    """float64 [n, 3], m: between the fingertips."""
    rotation: np.ndarray
    """float64 [n, 3, 3]: the hand in the base frame; columns are approach, closing direction, normal."""
    command: np.ndarray
    """float64 [n, 6]: commanded joints, rad, and opening."""
    objects: np.ndarray
    """float64 [n, 3, 4]: x, y, z of each object's centre, m, and its yaw, rad."""
    speed: np.ndarray
    """float64 [n, 3]: speed of each object's centre, m/s."""
    named: np.ndarray
    """int64 [n]: the object the instruction names."""
    goal: np.ndarray
    """float64 [n, 2], m: the mark or bin that the instruction names."""

    @property
    def command_tip(self) -> np.ndarray:
        """float64 [n, 3], m: where the commanded joints would put the tip."""
        return arm.CHAIN.forward(self.command[:, :-1])[0]

    @property
    def target(self) -> np.ndarray:
        """float64 [n, 4]: x, y, z, yaw of the named object."""
        return self.objects[np.arange(len(self.named)), self.named]

    @property
    def pitch(self) -> np.ndarray:
        """float64 [n]: how far the approach direction points below the horizon, rad."""
        return np.arcsin(np.clip(-self.rotation[:, 2, 0], -1.0, 1.0))

    @property
    def roll(self) -> np.ndarray:
        """float64 [n]: the roll joint, rad."""
        return self.joints[:, 4]

    @property
    def jaw_yaw(self) -> np.ndarray:
        """float64 [n]: direction in which the jaws close, seen from above, rad."""
        return np.arctan2(self.rotation[:, 1, 1], self.rotation[:, 0, 1])

    def rows(self, index: Any) -> View:
        """Select worlds."""
        return View(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


def view(qpos: np.ndarray, qvel: np.ndarray, command: np.ndarray, scene: np.ndarray) -> View:
    """Look at worlds given qpos and qvel [n, nq], commanded targets [n, 6] and scenes [n, SCENE]."""
    joints = qpos[:, : ARM_DOFS - 1]
    tip, rotation = arm.CHAIN.forward(joints)
    objects = qpos[:, ARM_DOFS:].reshape(-1, 3, 4).copy()
    objects[:, :, 2] += HALF_HEIGHT
    return View(
        joints=joints,
        opening=arm.opening(qpos[:, ARM_DOFS - 1]),
        tip=tip,
        rotation=rotation,
        command=command,
        objects=objects,
        speed=np.linalg.norm(qvel[:, ARM_DOFS:].reshape(-1, 3, 4)[:, :, :3], axis=2),
        named=scene[:, NAMED].astype(np.int64),
        goal=scene[:, GOALS].reshape(-1, 2, 2)[np.arange(len(scene)), scene[:, WANTED].astype(np.int64)],
    )


class Task(Protocol):
    """One kind of episode. A class with a constructor without arguments, installed under 'embodied.tasks'."""

    name: str
    templates: tuple[str, ...]
    """Instructions with the places {colour}, {shape} and, where there are goals, {goal}."""
    time_limit: int
    """Frames."""
    hold: int
    """Frames in a row for which `achieved` must be true."""
    goals: tuple[str, ...]
    """Names of the marks or bins, at most two; one of them is named by the instruction."""
    props: tuple[str, ...]
    """MJCF per goal, around its place on the table: a geom, and bodies with further geoms. Seen, not touched."""
    sector: float
    """rad to either side of straight ahead within which objects start."""

    def place_goals(self, rng: np.random.Generator, objects: np.ndarray, named: int, wanted: int) -> np.ndarray | None:
        """Draw the goals [G, 2], m, for objects at [3, 2]; None asks for other objects. Called where there are goals."""
        ...

    def achieved(self, view: View) -> np.ndarray:
        """bool [n]: whether the worlds are as the instruction wants them."""
        ...

    def expert(self, view: View) -> np.ndarray:
        """float64 [n, 6]: the end-effector displacement an expert would ask for next; limits are applied later."""
        ...


def polar(radius: np.ndarray | float, angle: np.ndarray | float) -> np.ndarray:
    """Turn distance from the pan axis, m, and angle from straight ahead, rad, into x, y in the base frame [..., 2]."""
    return np.stack([arm.CHAIN.origins[0, 0] + radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def reachable(point: np.ndarray) -> bool:
    """Whether the fingertips get to a point [2] near the table."""
    return bool(0.11 <= np.hypot(point[0] - arm.CHAIN.origins[0, 0], point[1]) <= 0.27)


def scatter(rng: np.random.Generator, sector: float) -> np.ndarray:
    """Draw x, y of the three objects [3, 2] in the sector before the arm, apart from each other."""
    while True:
        draws = rng.random((24, 2))
        near, far = SECTOR_RADIUS
        points = polar(np.sqrt(near**2 + draws[:, 0] * (far**2 - near**2)), (2 * draws[:, 1] - 1) * sector)
        chosen: list[np.ndarray] = []
        for point in points:
            if all(np.hypot(*(point - other)) >= CLEARANCE for other in chosen):
                chosen.append(point)
                if len(chosen) == len(SHAPES):
                    return np.stack(chosen)


def draw(rng: np.random.Generator, task: Task, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw one start for a task: qpos [nq], commanded targets [6] and scene [SCENE]."""
    command = np.append(arm.HOME, 0.0)
    command[0] += rng.uniform(-0.5, 0.5)
    command[1:4] += rng.uniform(-0.12, 0.12, 3)
    command[4] += rng.uniform(-0.3, 0.3)
    command[5] = rng.uniform(0.1, 0.5)
    scene = np.zeros(SCENE)
    scene[TASK] = index
    scene[NAMED] = named = int(rng.integers(len(SHAPES)))
    scene[TEMPLATE] = rng.integers(len(task.templates))
    scene[COLOUR] = rng.permutation(len(COLOURS))
    places = scatter(rng, task.sector)
    if task.goals:
        scene[WANTED] = wanted = int(rng.integers(len(task.goals)))
        while (goals := task.place_goals(rng, places, named, wanted)) is None:
            places = scatter(rng, task.sector)
        scene[GOALS][: goals.size] = goals.ravel()
    qpos = np.zeros(ARM_DOFS + 4 * len(SHAPES))
    qpos[:ARM_DOFS] = arm.servo(command)
    qpos[ARM_DOFS:].reshape(-1, 4)[:, [0, 1, 3]] = np.column_stack([places, rng.uniform(-np.pi, np.pi, len(SHAPES))])
    return qpos, command, scene


def instruction(task: Task, scene: np.ndarray, *, misname: bool = False) -> str:
    """Say what a scene [SCENE] asks for; `misname` names the next object instead."""
    named = (int(scene[NAMED]) + misname) % len(SHAPES)
    words = {"colour": list(COLOURS)[int(scene[COLOUR][named])], "shape": SHAPES[named]}
    if task.goals:
        words["goal"] = task.goals[int(scene[WANTED])]
    return task.templates[int(scene[TEMPLATE])].format(**words)


def props_mjcf(tasks: Sequence[Task]) -> str:
    """Write the goals of all tasks as bodies <task>_<i> that a camera can put where each lane has them."""
    return "\n".join(
        f'<body name="{task.name}_{i}" mocap="true" pos="0 0 -1">{geoms}</body>'
        for task in tasks
        for i, geoms in enumerate(task.props)
    )
