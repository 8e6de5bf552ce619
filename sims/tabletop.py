"""The tabletop suite: N lanes of language-conditioned manipulation as one Gymnasium vector environment.

10 frames a second, physics at 10 ms. An action displaces the commanded tip (or is the next joint target); the state is
proprioception, and for state experiments also where the objects are relative to the tip. Episode e of a lane is a
function of (lane seed, e) alone: lanes never share a random stream, so they do not depend on each other, on how many
there are, or on threads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from .. import plugins
from ..types import ChunkResult, Observation, Scenes, Spec
from . import arm, look, observe, scene
from .cameras import Cameras, Kind, make_cameras
from .engine import Engine
from .lanes import check_step, lanes_to_reset
from .pictures import Picture
from .scene import Task, View
from .scenes import show

TASK_GROUP = "embodied.tasks"
FRAME_S = 0.1
SUBSTEPS = 10
"""Physics steps in a frame; with 5, of 20 ms, grasps fail."""
RENDER_SIZE = (360, 480)
"""Height and width of `render`, pixels."""
_FRAME, _HELD, _ENDED, _SEED, _EPISODE = range(5)
_COUNTERS = 5


def make(
    tasks: Sequence[str] = ("reach",),
    lanes: int = 1,
    *,
    action: arm.Action = "end_effector",
    substeps: int = SUBSTEPS,
    threads: int | None = None,
    state_objects: bool = True,
    cameras: Sequence[str] = (),
    image_size: int = 64,
    renderer: Kind = "ray",
    randomise: float = 0.0,
    misname: bool = False,
) -> Tabletop:
    """Make the suite for tasks by name; `substeps` physics steps make a frame of 0.1 s.

    `cameras` are of 'front' and 'wrist', their pictures square. `randomise`, 0 to 1, is how far colours, light, camera
    places and friction of each lane stray from the plain ones at every reset. `misname` is a control: instructions name
    another object than the one that counts, so a policy that listens does not succeed.

    Tasks take turns within a lane: episode e of a lane with seed s plays task (s + e) mod len(tasks), so that any quota
    of episodes a lane that is a multiple of the number of tasks plays each task equally often.
    """
    if not tasks:
        raise ValueError(f"tasks is empty; name at least one of {', '.join(plugins.names(TASK_GROUP))}.")
    if lanes < 1:
        raise ValueError(f"lanes is {lanes}; at least 1 is needed.")
    loaded = [plugins.load(TASK_GROUP, name)() for name in tasks]
    return Tabletop(
        loaded,
        lanes,
        action=action,
        substeps=substeps,
        threads=threads,
        state_objects=state_objects,
        cameras=cameras,
        image_size=image_size,
        renderer=renderer,
        randomise=randomise,
        misname=misname,
    )


class Tabletop(gym.vector.VectorEnv):
    """Vector environment with chunks, snapshots and scripted experts; autoreset is off, `reset_mask` resets lanes."""

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own declaration)
        "autoreset_mode": AutoresetMode.DISABLED,
        "render_modes": ["rgb_array"],
        "render_fps": 10,
    }

    def __init__(
        self,
        tasks: Sequence[Task],
        lanes: int,
        *,
        action: arm.Action = "end_effector",
        substeps: int = SUBSTEPS,
        threads: int | None = None,
        state_objects: bool = True,
        cameras: Sequence[str] = (),
        image_size: int = 64,
        renderer: Kind = "ray",
        randomise: float = 0.0,
    misname: bool = False,
    ) -> None:
        if not 0 <= randomise <= 1:
            raise ValueError(f"randomise is {randomise}; give a number from 0 (plain worlds) to 1.")
        self.tasks = tuple(tasks)
        self.num_envs = lanes
        self.transform = arm.transform(action)
        self._end_effector = arm.transform("end_effector")
        model = mujoco.MjModel.from_xml_string(
            arm.mjcf(scene.objects_mjcf() + scene.props_mjcf(tasks), timestep=FRAME_S / substeps)
        )
        self.engine = Engine(model, lanes, substeps=substeps, threads=threads)
        self._randomise, self._misname = randomise, misname
        if randomise > 0:
            self.engine.variants = [copy.copy(model) for _ in range(lanes)]
        self.command = np.zeros((lanes, scene.ARM_DOFS))
        """float64 [N, 6]: last commanded targets, rad and opening."""
        self.scene = np.zeros((lanes, scene.SCENE))
        self._count = np.zeros((lanes, _COUNTERS))
        self._count[:, _ENDED] = 1
        self._count[:, _SEED] = -1
        self._limits = np.array([task.time_limit for task in tasks])
        self._holds = np.array([task.hold for task in tasks])
        self._goals = np.array([bool(task.goals) for task in tasks])
        self.time_limit = int(self._limits.max())
        self._renderer = renderer
        self._threads = threads
        self._cameras = self._make_cameras(cameras, image_size, image_size) if cameras else None
        self._film: dict[tuple[str, int, int], Cameras] = {}
        self.embodiment = self._spec(state_objects, tuple((name, image_size, image_size) for name in cameras))
        self._seen = observe.Seen(self.embodiment, lanes)
        self.single_observation_space = observe.space(self.embodiment)
        self.single_action_space = gym.spaces.Box(
            self.transform.low.astype(np.float32), self.transform.high.astype(np.float32), dtype=np.float32
        )
        self.observation_space = batch_space(self.single_observation_space, lanes)
        self.action_space = batch_space(self.single_action_space, lanes)

    # ---------------------------------------------------------------- Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        lanes = lanes_to_reset(options, self.num_envs)
        self._seed(lanes, seed)
        self._begin(lanes)
        self._observe(lanes, self._view(lanes))
        return self._seen.gymnasium(), self._infos(np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        result = self.step_chunk(np.asarray(actions)[:, None], np.arange(self.num_envs))
        infos = self._infos(result.success, result.invalid)
        return self._seen.gymnasium(), result.reward[:, 0], result.terminated, result.truncated, infos

    def render(  # type: ignore[override]  # Gymnasium's takes no arguments and returns all lanes
        self, lane: int = 0, *, camera: str = "front", height: int = RENDER_SIZE[0], width: int = RENDER_SIZE[1]
    ) -> np.ndarray:
        """Show one lane as uint8 [h, w, 3], for videos."""
        key = (camera, height, width)
        if key not in self._film:
            self._film[key] = self._make_cameras([camera], height, width)
        state, rows = self.engine.state[[lane]], self.scene[[lane]]
        return self._film[key].see(self.engine.qpos(state), rows)[camera].rgb[0]

    def close_extras(self, **kwargs: Any) -> None:
        self.engine.close()
        for cameras in (self._cameras, *self._film.values()):
            if cameras is not None:
                cameras.close()
        self._film.clear()

    # ---------------------------------------------------------------- chunks

    def step_chunk(self, actions: np.ndarray, lanes: np.ndarray) -> ChunkResult:
        """Run actions [n, H, A] in `lanes` [n]; each lane stops at its own end, frames after it never happened."""
        lanes = np.asarray(lanes)
        check_step(actions, lanes, self._count[lanes, _ENDED] == 1, self.transform.names)
        n, frames = actions.shape[:2]
        targets = self.transform.targets(self.command[lanes], actions)  # [n, H, 6]
        after, sane = self.engine.run(lanes, arm.servo(targets))  # [n, H, P]
        success, held, seen = self._judge(lanes, after, targets)  # [n, H], [n, H], [n * H]
        left = self._limits[self.scene[lanes, scene.TASK].astype(int)] - self._count[lanes, _FRAME].astype(int)
        executed = np.minimum(np.where(success.any(1), success.argmax(1) + 1, frames), left)
        executed = np.where(sane, executed, 0)
        last = np.maximum(executed, 1) - 1
        rows = np.arange(n)
        solved = success[rows, last] & sane
        self._commit(
            lanes[sane], after[rows, last][sane], targets[rows, last][sane], held[rows, last][sane], executed[sane]
        )
        truncated = ~sane | (~solved & (executed == left))
        self._count[lanes, _ENDED] = solved | truncated
        reward = np.zeros((n, frames), np.float32)
        reward[rows, last] = solved
        self._observe(lanes[sane], seen.rows((rows * frames + last)[sane]))
        return ChunkResult(
            reward=reward,
            executed=executed.astype(np.int64),
            terminated=solved,
            truncated=truncated,
            success=solved.copy(),
            invalid=~sane,
            observation=self._seen.observation(lanes),
        )

    def expert(self, lanes: np.ndarray) -> np.ndarray:
        """float32 [n, 1, A]: the next action of each lane's scripted expert, in this environment's action."""
        seen = self._view(lanes)
        task = self.scene[lanes, scene.TASK].astype(int)
        action: np.ndarray = np.empty((len(lanes), 6))
        for index in np.unique(task):
            action[task == index] = self.tasks[index].expert(seen.rows(task == index))
        action = np.clip(action, self._end_effector.low, self._end_effector.high)[:, None]
        if self.transform.names != self._end_effector.names:
            action = self._end_effector.targets(self.command[lanes], action)
        return action.astype(np.float32)

    # ---------------------------------------------------------------- snapshots

    def snapshot(self, lanes: np.ndarray) -> np.ndarray:
        """float64 [n, P]: physics, command, scene and counters."""
        parts = (self.engine.state, self.command, self.scene, self._count)
        return np.concatenate([part[lanes] for part in parts], axis=1)

    def restore(self, lanes: np.ndarray, snapshot: np.ndarray) -> Observation:
        parts = (self.engine.state, self.command, self.scene, self._count)
        widths = [part.shape[1] for part in parts]
        if snapshot.shape != (len(lanes), sum(widths)):
            raise ValueError(
                f"snapshot has shape {snapshot.shape}, {len(lanes)} lanes of this suite need {(len(lanes), sum(widths))}."
            )
        for part, values in zip(parts, np.split(snapshot, np.cumsum(widths)[:-1], axis=1), strict=True):
            part[lanes] = values
        self._settle(lanes)
        self._observe(lanes, self._view(lanes))
        return self._seen.observation(lanes)

    def task_names(self, lanes: np.ndarray) -> list[str]:
        """Name the task that each lane plays now."""
        return [self.tasks[int(index)].name for index in self.scene[lanes, scene.TASK]]

    def next_tasks(self, lanes: np.ndarray) -> list[str]:
        """Name the task that each lane, reset before, plays after its next reset."""
        return [self.tasks[index].name for index in self._task_index(lanes, 1)]

    def leave_out(self, lanes: np.ndarray) -> None:
        """Pass over the episode that each lane, reset before, would begin next."""
        self._count[lanes, _EPISODE] += 1

    # ---------------------------------------------------------------- inside

    def _task_index(self, lanes: np.ndarray, ahead: int = 0) -> np.ndarray:
        """int64 [n]: lanes play the tasks in turn."""
        return (self._count[lanes, _SEED] + self._count[lanes, _EPISODE] + ahead).astype(np.int64) % len(self.tasks)

    def _seed(self, lanes: np.ndarray, seed: int | None) -> None:
        if seed is not None:
            if seed < 0:
                raise ValueError(f"seed is {seed}; give an integer of at least 0.")
            self._count[lanes, _SEED] = seed + lanes
            self._count[lanes, _EPISODE] = 0
            return
        fresh = self._count[lanes, _SEED] < 0
        self._count[lanes, _EPISODE] += ~fresh
        if fresh.any():
            self._count[lanes[fresh], _SEED] = int(np.random.SeedSequence().generate_state(1)[0]) + lanes[fresh]

    def _begin(self, lanes: np.ndarray) -> None:
        """Draw a start for each lane, again where it would be a success already."""
        self.engine.state[lanes] = 0.0
        self._count[lanes, :_SEED] = 0
        keys = self._count[lanes][:, [_SEED, _EPISODE]].astype(np.uint64)
        draws = {lane: np.random.Generator(np.random.Philox(key=key)) for lane, key in zip(lanes, keys, strict=True)}
        playing = dict(zip(lanes, self._task_index(lanes), strict=True))
        left = lanes
        while len(left):
            for lane in left:
                qpos, self.command[lane], self.scene[lane] = scene.draw(draws[lane], self.tasks[playing[lane]], playing[lane])
                self.engine.qpos(self.engine.state)[lane] = qpos
            left = left[self._achieved(self._view(left), self.scene[left, scene.TASK].astype(int))]
        for lane in lanes:
            self.scene[lane, scene.LOOK] = self._randomise * draws[lane].uniform(-1, 1, look.DRAWS)
        self._settle(lanes)

    def _settle(self, lanes: np.ndarray) -> None:
        """Follow new scenes: what they ask for in words, and how slippery they are."""
        for lane in lanes:
            task = self.tasks[int(self.scene[lane, scene.TASK])]
            self._seen.prompt[lane] = scene.instruction(task, self.scene[lane], misname=self._misname)
            if self.engine.variants is not None:
                look.vary_friction(self.engine.variants[lane], self.engine.model, self.scene[lane])

    def _commit(
        self, lanes: np.ndarray, state: np.ndarray, command: np.ndarray, held: np.ndarray, executed: np.ndarray
    ) -> None:
        self.engine.state[lanes] = state
        self.command[lanes] = command
        self._count[lanes, _HELD] = held
        self._count[lanes, _FRAME] += executed

    def _judge(self, lanes: np.ndarray, after: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, View]:
        """Look at every frame [n * H]: success [n, H], and for how many frames in a row the goal has held [n, H]."""
        n, frames = after.shape[:2]
        scenes = np.repeat(self.scene[lanes], frames, axis=0)
        flat = after.reshape(n * frames, -1)
        seen = scene.view(self.engine.qpos(flat), self.engine.qvel(flat), targets.reshape(n * frames, -1), scenes)
        task = scenes[:, scene.TASK].astype(int)
        achieved = self._achieved(seen, task).reshape(n, frames)
        held = np.empty((n, frames))
        run = self._count[lanes, _HELD]
        for h in range(frames):
            run = np.where(achieved[:, h], run + 1, 0)
            held[:, h] = run
        return held >= self._holds[task.reshape(n, frames)], held, seen

    def _achieved(self, seen: View, task: np.ndarray) -> np.ndarray:
        """bool [n]: whether worlds are as their tasks want them, given the index of each one's task [n]."""
        achieved = np.zeros(len(task), bool)
        for index in np.unique(task):
            achieved[task == index] = self.tasks[index].achieved(seen.rows(task == index))
        return achieved

    def _view(self, lanes: np.ndarray) -> View:
        state = self.engine.state[lanes]
        return scene.view(self.engine.qpos(state), self.engine.qvel(state), self.command[lanes], self.scene[lanes])

    # ---------------------------------------------------------------- observations

    def pictures(self, lanes: np.ndarray) -> dict[str, Picture]:
        """Look at `lanes` as they are now, with depth and the geom behind every pixel (`geom_of` names one)."""
        if self._cameras is None:
            raise RuntimeError("This suite was made without cameras; make it with cameras=['front'], for example.")
        return self._cameras.see(self.engine.qpos(self.engine.state[lanes]), self.scene[lanes], full=True)

    def geom_of(self, lanes: np.ndarray) -> np.ndarray:
        """int64 [n]: the geom of the object that each lane's instruction names."""
        ids = [self.engine.model.geom(f"object_{i}").id for i in range(len(scene.SHAPES))]
        return np.array(ids)[self.scene[lanes, scene.NAMED].astype(int)]

    def scenes(self, seed: int) -> Scenes:
        """One labelled random scene per lane, to learn seeing from; the lanes themselves are not touched."""
        if self._cameras is None:
            raise RuntimeError("This suite was made without cameras; make it with cameras=['front'], for example.")
        return show(self.engine.model, self.tasks, self._cameras, self.num_envs, seed)

    def picture(self, lane: int) -> np.ndarray:
        return self.render(lane)

    def _make_cameras(self, names: Sequence[str], height: int, width: int) -> Cameras:
        return make_cameras(
            self.engine.model,
            self.tasks,
            names,
            height=height,
            width=width,
            kind=self._renderer,
            threads=self._threads,
        )

    def _spec(self, state_objects: bool, cameras: tuple[tuple[str, int, int], ...]) -> Spec:
        names = tuple(task.name for task in self.tasks)
        objects = observe.object_names(names, bool(self._goals.any()))
        return Spec(
            robot=arm.NAME,
            tasks=names,
            state_names=observe.PROPRIOCEPTION + (objects if state_objects else ()),
            action_names=self.transform.names,
            action_low=tuple(self.transform.low.tolist()),
            action_high=tuple(self.transform.high.tolist()),
            control_hz=1 / FRAME_S,
            cameras=cameras,
            privileged_names=(*observe.PROPRIOCEPTION, *objects, "held"),
            prompts=True,
        )

    def _observe(self, lanes: np.ndarray, seen: View) -> None:
        """Keep what `lanes` see after a step, a reset or a restore."""
        state = self.engine.state[lanes]
        task = self.scene[lanes, scene.TASK].astype(int)
        known = np.column_stack(
            [
                observe.proprioception(seen, self.engine.qvel(state)),
                observe.objects(seen, task, self._goals),
                self._count[lanes, _HELD] / self._holds[task],
            ]
        )
        pictures = self._cameras.see(self.engine.qpos(state), self.scene[lanes]) if self._cameras and len(lanes) else {}
        self._seen.keep(lanes, state[:, 0], known, pictures)

    def _infos(self, success: np.ndarray, invalid: np.ndarray) -> dict[str, Any]:
        return {
            "success": success,
            "invalid": invalid,
            "task": np.array(self.task_names(np.arange(self.num_envs))),
        }
