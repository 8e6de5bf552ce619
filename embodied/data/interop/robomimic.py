"""robomimic HDF5 files: `data/demo_k/{obs/<key>, next_obs, actions, rewards}`. The `data` extra installs h5py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...types import Episode, Spec
from .fields import Fields, assemble, bounds, choose_pictures, choose_scale, describe


class Demos:
    """Episodes of a robomimic file, in the order of their numbers."""

    spec: Spec

    def __init__(self, path: str | Path, fields: Fields | None = None, *, mask: str | None = None) -> None:
        """`mask` names a subset of the file, such as 'train'."""
        self._path, self._fields = Path(path), fields or Fields()
        self._file = _open(self._path)
        data = self._file["data"]
        self._demos = self._members(mask)
        if not self._demos:
            raise ValueError(f"{path} holds 0 demonstrations.")
        first = data[self._demos[0]]["obs"]
        self._state, self._cameras = self._roles(first)
        states, actions = zip(*[self._numbers(name) for name in self._demos], strict=True)
        labels = [f"{key}_{i}" for key in self._state for i in range(int(np.prod(first[key].shape[1:])))]
        names = [f"action_{i}" for i in range(actions[0].shape[1])]
        self._scales = [
            choose_scale("state", labels, *bounds(states), self._fields),
            choose_scale("action", names, *bounds(actions), self._fields),
        ]
        self._pictures = {n: choose_pictures(key, first[key][...], self._fields) for n, key in self._cameras.items()}
        low, high = bounds([self._scales[1](action) for action in actions])
        sizes = {n: self._pictures[n](first[key][:1]).shape for n, key in self._cameras.items()}
        facts = json.loads(data.attrs.get("env_args", "{}"))
        self.spec = describe(
            self._fields,
            robot=str(facts.get("env_name", "unknown")),
            hz=facts.get("env_kwargs", {}).get("control_freq"),
            state_names=labels,
            action_names=names,
            low=low,
            high=high,
            cameras=[(n, shape[1], shape[2]) for n, shape in sizes.items()],
            tasks=(self._fields.task,),
            prompts=False,
        )

    def __len__(self) -> int:
        return len(self._demos)

    def _members(self, mask: str | None) -> list[str]:
        if mask is None:
            return sorted(self._file["data"], key=lambda name: int(name.rpartition("_")[2]))
        masks = list(self._file.get("mask", {}))
        if mask not in masks:
            raise ValueError(f"There is no mask '{mask}'. Present: {', '.join(masks) or 'none'}.")
        return [name.decode() for name in self._file["mask"][mask][...]]

    def _roles(self, first: Any) -> tuple[Sequence[str], dict[str, str]]:
        for key in (*self._fields.state, *self._fields.cameras.values()):
            if key not in first:
                raise ValueError(f"There is no observation '{key}'. Present: {', '.join(first)}.")
        flat = [key for key in first if first[key].ndim <= 2]
        if not self._fields.state and len(flat) != 1:
            raise ValueError(f"It is not plain which of {', '.join(flat)} make the state. Say --state COLUMN,COLUMN.")
        cameras = dict(self._fields.cameras) or {k.removesuffix("_image"): k for k in first if k.endswith("_image")}
        return self._fields.state or flat, cameras

    def _numbers(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """States [T or T + 1, S] and actions [T, A] of one demonstration, checked."""
        demo = self._file["data"][name]
        action = np.asarray(demo["actions"][...], np.float64)
        length = len(action)
        if length == 0 or demo.attrs.get("num_samples", length) != length:
            raise ValueError(f"{name} has {length} actions, num_samples says {demo.attrs.get('num_samples')}. Repair it at its source.")
        parts = [np.asarray(demo["obs"][key][...], np.float64).reshape(len(demo["obs"][key]), -1) for key in self._state]
        if any(len(part) != length for part in parts) or any(len(demo["obs"][k]) != length for k in self._cameras.values()):
            raise ValueError(f"{name} has {length} actions and observations of {[len(part) for part in parts]} rows. Repair it at its source.")
        state = np.concatenate(parts, 1)
        if "next_obs" in demo:
            last = [np.asarray(demo["next_obs"][key][-1], np.float64).reshape(1, -1) for key in self._state]
            state = np.concatenate([state, np.concatenate(last, 1)])
        if not (np.isfinite(state).all() and np.isfinite(action).all()):
            raise ValueError(f"{name} has states or actions that are not finite. Repair it at its source.")
        return state, action

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(number) for number in range(len(self)))

    def read(self, number: int) -> Episode:
        """Read one demonstration; with `next_obs`, its last observation is the true one."""
        name = self._demos[number]
        demo = self._file["data"][name]
        state, action = self._numbers(name)
        rewards = np.asarray(demo["rewards"][...]) if "rewards" in demo else None
        images = {n: self._pictures[n](self._frames(demo, key)) for n, key in self._cameras.items()}
        return assemble(
            self.spec,
            action=self._scales[1](action),
            state=self._scales[0](state),
            images=images,
            reward=rewards,
            success=self._fields.success if rewards is None else bool((rewards > 0).any()),
            task=self._fields.task,
            prompt="",
            seed=number,
        )

    def _frames(self, demo: Any, key: str) -> np.ndarray:
        frames = np.asarray(demo["obs"][key][...])
        return np.concatenate([frames, demo["next_obs"][key][-1:]]) if "next_obs" in demo else frames


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise RuntimeError(f"robomimic files need what 'pip install embodied-rl[data]' installs ({error}).") from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no HDF5 file ({error}).") from error
    if "data" not in file:
        raise ValueError(f"{path} is no robomimic file: it has no group 'data'.")
    return file
