"""Any Gymnasium environment with a Box action as lanes of this project: `sim=gym sim.id=Pendulum-v1`.

Boxes become `state` in the order of their keys, uint8 [h, w, 3] boxes become pictures, text becomes the prompt. The
environments run in this process, one after another; each keeps its own random stream, seeded with seed + lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ..types import ChunkResult, Observation, Spec
from .lanes import check_step, lanes_to_reset

Path = tuple[str, ...]


def make(id: str, lanes: int = 1, *, time_limit: int | None = None, control_hz: float | None = None) -> GymLanes:
    """Wrap `lanes` copies of a registered environment; `time_limit` (frames) replaces its own."""
    if lanes < 1:
        raise ValueError(f"lanes is {lanes}; at least 1 is needed.")
    envs = [gymnasium.make(id, max_episode_steps=time_limit) for _ in range(lanes)]
    spec = envs[0].spec
    limit = time_limit if time_limit is not None else spec and spec.max_episode_steps
    if not limit:
        raise ValueError(f"'{id}' has no time limit; give one in frames (sim.time_limit=200).")
    return GymLanes(envs, id, time_limit=limit, control_hz=control_hz)


def _entries(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space[Any]]]:
    """List the leaves of nested Dict spaces, in order."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _entries(inner, (*path, key))
    else:
        yield path, space


def _at(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def _named(path: Path, size: int) -> list[str]:
    name = ".".join(path) or "observation"
    return [name] if size == 1 else [f"{name}.{i}" for i in range(size)]


class GymLanes(gymnasium.vector.VectorEnv):
    """N copies of one Gymnasium environment, autoreset off, whole chunks lane by lane.

    Success is what the environment says under `is_success` or `success` in its info, and otherwise a termination with
    a positive reward.
    """

    def __init__(
        self, envs: list[gymnasium.Env[Any, Any]], name: str, *, time_limit: int, control_hz: float | None = None
    ) -> None:
        self.envs = envs
        self.num_envs = len(envs)
        self.time_limit = time_limit
        self.metadata = {**envs[0].metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._frame_s = 1 / (control_hz or envs[0].metadata.get("render_fps") or 10)
        self._states: list[Path] = []
        self._pictures: dict[str, Path] = {}
        self._prompt: Path | None = None
        self.embodiment = self._spec(name, envs[0])
        self._space_of_lanes(envs[0])
        self._low, self._high = (np.array(v) for v in (self.embodiment.action_low, self.embodiment.action_high))
        lanes = self.num_envs
        self._state = np.zeros((lanes, self.embodiment.state_dim), np.float32)
        self._images = {name: np.zeros((lanes, h, w, 3), np.uint8) for name, h, w in self.embodiment.cameras}
        self._prompts = np.full(lanes, "", dtype="<U512")
        self._frame = np.zeros(lanes, np.int64)
        self._ended = np.ones(lanes, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        inner = {key: value for key, value in (options or {}).items() if key != "reset_mask"} or None
        for lane in lanes_to_reset(options, self.num_envs):
            observation, _ = self.envs[lane].reset(seed=None if seed is None else seed + int(lane), options=inner)
            self._frame[lane] = 0
            self._ended[lane] = False
            self._keep(lane, observation)
        none = np.zeros(self.num_envs, bool)
        return self._gymnasium(), {"success": none, "invalid": none.copy()}

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        result = self.step_chunk(np.asarray(actions)[:, None], np.arange(self.num_envs))
        infos = {"success": result.success, "invalid": result.invalid}
        return self._gymnasium(), result.reward[:, 0], result.terminated, result.truncated, infos

    def step_chunk(self, actions: np.ndarray, lanes: np.ndarray) -> ChunkResult:
        """Run actions [n, H, A] in `lanes` [n]; each lane stops at its own end."""
        check_step(actions, lanes, self._ended[lanes], self.embodiment.action_names)
        n, frames = actions.shape[:2]
        reward = np.zeros((n, frames), np.float32)
        executed = np.zeros(n, np.int64)
        terminated, truncated, success = np.zeros((3, n), bool)
        space = self.envs[0].action_space
        for i, lane in enumerate(lanes):
            env = self.envs[lane]
            for h in range(frames):
                action = np.clip(actions[i, h], self._low, self._high).reshape(space.shape).astype(space.dtype)
                observation, r, ended, cut, info = env.step(action)
                reward[i, h] = r
                executed[i] += 1
                self._frame[lane] += 1
                reported = info.get("is_success", info.get("success", ended and float(r) > 0))
                success[i] |= bool(reported)
                terminated[i], truncated[i] = ended, cut and not ended
                if ended or cut:
                    break
            self._ended[lane] = terminated[i] | truncated[i]
            self._keep(int(lane), observation)
        return ChunkResult(
            reward=reward,
            executed=executed,
            terminated=terminated,
            truncated=truncated,
            success=success,
            invalid=np.zeros(n, bool),
            observation=self._observation(lanes),
        )

    def task_names(self, lanes: np.ndarray) -> list[str]:
        """Name the task that each lane plays: the environment's id."""
        return [self.embodiment.tasks[0]] * len(lanes)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _spec(self, name: str, env: gymnasium.Env[Any, Any]) -> Spec:
        """Sort the observation's entries into state, pictures and prompt, and describe them."""
        names: list[str] = []
        cameras = []
        for path, space in _entries(env.observation_space):
            where = ".".join(path) or "observation"
            if isinstance(space, gymnasium.spaces.Text) and self._prompt is None:
                self._prompt = path
            elif isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and space.shape[2:] == (3,):
                self._pictures[where] = path
                cameras.append((where, space.shape[0], space.shape[1]))
            elif isinstance(space, gymnasium.spaces.Box):
                self._states.append(path)
                names += _named(path, int(np.prod(space.shape)))
            else:
                raise ValueError(
                    f"'{name}' observes '{where}' as {space}; Box, uint8 [h, w, 3] pictures, one Text and Dicts of these "
                    "can be used. Wrap the environment so that it offers those."
                )
        action = env.action_space
        if not isinstance(action, gymnasium.spaces.Box) or not action.is_bounded():
            raise ValueError(f"'{name}' takes {action}; only bounded Box actions can be used. Wrap the environment.")
        return Spec(
            robot=name,
            tasks=(name,),
            state_names=tuple(names),
            action_names=tuple(_named(("action",), int(np.prod(action.shape)))),
            action_low=tuple(action.low.ravel().tolist()),
            action_high=tuple(action.high.ravel().tolist()),
            control_hz=1 / self._frame_s,
            cameras=tuple(cameras),
            prompts=self._prompt is not None,
        )

    def _space_of_lanes(self, env: gymnasium.Env[Any, Any]) -> None:
        box = gymnasium.spaces.Box
        spaces: dict[str, gymnasium.Space[Any]] = {
            "state": box(-np.inf, np.inf, (self.embodiment.state_dim,), np.float32)
        }
        for name, h, w in self.embodiment.cameras:
            spaces[f"images/{name}"] = box(0, 255, (h, w, 3), np.uint8)
        if self._prompt is not None:
            spaces["prompt"] = _at(env.observation_space, self._prompt)
        low, high = (np.array(v, np.float32) for v in (self.embodiment.action_low, self.embodiment.action_high))
        spaces["time"] = box(0, np.inf, (1,), np.float64)
        self.single_observation_space = gymnasium.spaces.Dict(spaces)
        self.single_action_space = box(low, high, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _keep(self, lane: int, observation: Any) -> None:
        """Copy what a lane saw; environments may reuse their arrays (public fault B34)."""
        values = [np.ravel(_at(observation, path)) for path in self._states]
        if values:
            self._state[lane] = np.concatenate(values)
            wrong = np.flatnonzero(~np.isfinite(self._state[lane]))
            if len(wrong):
                raise RuntimeError(
                    f"Observation '{self.embodiment.state_names[wrong[0]]}' of lane {lane} is "
                    f"{self._state[lane, wrong[0]]}; the environment is broken there."
                )
        for name, path in self._pictures.items():
            self._images[name][lane] = _at(observation, path)
        if self._prompt is not None:
            self._prompts[lane] = _at(observation, self._prompt)

    def _observation(self, lanes: np.ndarray) -> Observation:
        return Observation(
            images={name: pictures[lanes] for name, pictures in self._images.items()},
            state=self._state[lanes],
            prompt=self._prompts[lanes],
            time=self._frame[lanes] * self._frame_s,
        )

    def _gymnasium(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"state": self._state.copy(), "time": self._frame[:, None] * self._frame_s}
        for name, pictures in self._images.items():
            seen[f"images/{name}"] = pictures.copy()
        if self._prompt is not None:
            seen["prompt"] = self._prompts.copy()
        return seen
