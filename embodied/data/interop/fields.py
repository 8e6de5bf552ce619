"""What the columns of foreign data mean, and the checks before any of it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...types import SOURCES, Episode, Spec

LARGEST = 10.0
"""Numbers beyond this are neither radians nor metres of a robot on a table."""


@dataclass(frozen=True)
class Fields:
    """Which foreign columns are what, where the names do not say it. Each is a flag of `embodied data import`."""

    state: tuple[str, ...] = ()
    """Columns that make the state, in order."""
    action: str = ""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """Our name to the foreign column."""
    units: Literal["rad", "deg", "as-is"] | None = None
    """Of joints; degrees become radians, all dims but grippers."""
    gripper: tuple[float, float] | None = None
    """Foreign numbers of a closed and an open gripper; they become 0 and 1."""
    pictures: Literal["hwc", "chw"] | None = None
    picture_top: Literal[1, 255] | None = None
    """The brightest value of pictures that are not uint8."""
    success: bool = True
    """What episodes are that do not say it themselves."""
    missing_is_zero: bool = False
    """Whether zarr chunks that are not there are zeros that were never written, not losses."""
    hz: float | None = None
    """Frames per second, where the data do not say it."""
    robot: str = "unknown"
    task: str = "demonstrations"


@dataclass(frozen=True)
class Scale:
    """raw = foreign * factor + shift, per dim."""

    factor: np.ndarray
    shift: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return (values * self.factor + self.shift).astype(np.float32)


def choose_scale(what: str, names: Sequence[str], low: np.ndarray, high: np.ndarray, fields: Fields) -> Scale:
    """Decide how foreign numbers become SI units, from their names and ranges [dims]; refuse what is ambiguous."""
    factor, shift = np.ones(len(names)), np.zeros(len(names))
    for i, name in enumerate(names):
        if "gripper" in name and "delta" not in name and fields.gripper is not None:
            closed, opened = fields.gripper
            factor[i], shift[i] = 1 / (opened - closed), -closed / (opened - closed)
        elif "gripper" in name and fields.units == "deg" and (low[i] < 0 or high[i] > 1):
            raise ValueError(f"{what} {name} runs from {low[i]:.4g} to {high[i]:.4g}, not 0 to 1. Give its closed and open values, as --gripper 0,100.")
        elif fields.units == "deg" and "gripper" not in name:
            factor[i] = np.pi / 180
        elif fields.units is None and max(abs(low[i]), abs(high[i])) > LARGEST:
            raise ValueError(f"{what} {name} runs from {low[i]:.4g} to {high[i]:.4g}: neither radians nor metres. Say --units deg, or --units as-is.")
    return Scale(factor, shift)


@dataclass(frozen=True)
class Pictures:
    """How foreign pictures become uint8 [T, h, w, 3]."""

    order: Literal["hwc", "chw"]
    top: int
    """Their brightest value."""

    def __call__(self, array: np.ndarray) -> np.ndarray:
        if self.order == "chw":
            array = array.transpose(0, 2, 3, 1)
        if array.dtype != np.uint8:
            array = np.clip(np.rint(array * (255 / self.top)), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(array)


def choose_pictures(name: str, first: np.ndarray, fields: Fields) -> Pictures:
    """Decide how pictures are laid out from those of the first episode [T, ...]; refuse what can be read in two ways."""
    if first.ndim != 4 or 3 not in (first.shape[1], first.shape[3]):
        raise ValueError(f"{name} has shape {list(first.shape)}; pictures are [T, h, w, 3] or [T, 3, h, w]. Name the cameras with --camera NAME=COLUMN.")
    order = fields.pictures
    if order is None:
        if first.shape[1] == 3 and first.shape[3] == 3:
            raise ValueError(f"{name} has shape {list(first.shape)}, which can be read in two ways. Say --pictures hwc or --pictures chw.")
        order = "hwc" if first.shape[3] == 3 else "chw"
    if first.dtype == np.uint8:
        return Pictures(order, 255)
    low, high = float(first.min()), float(first.max())
    if not (low >= 0 and high <= 255):
        raise ValueError(f"{name} runs from {low:.4g} to {high:.4g}; pictures run from 0 to 1 or to 255. Convert them first.")
    if fields.picture_top is None and high <= 1:
        raise ValueError(f"{name} runs from {low:.4g} to {high:.4g} in the first episode: pictures up to 1, or dark ones up to 255. Say --picture-top 1 or 255.")
    return Pictures(order, fields.picture_top or 255)


def bounds(values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest number per dim of many [T, dims]."""
    return np.min([v.min(0) for v in values], 0), np.max([v.max(0) for v in values], 0)


def describe(
    fields: Fields,
    *,
    robot: str,
    hz: float | None,
    state_names: Sequence[str],
    action_names: Sequence[str],
    low: np.ndarray,
    high: np.ndarray,
    cameras: Sequence[tuple[str, int, int]],
    tasks: Sequence[str],
    prompts: bool,
) -> Spec:
    """Make the Spec of foreign data. Action limits are what occurs; a dim that never moves gets room around it."""
    rate = fields.hz if fields.hz is not None else hz
    if rate is None:
        raise ValueError("The data do not say how many frames make a second. Give --hz.")
    room = np.where(high - low < 1e-3, 5e-4, 0.0)
    return Spec(
        robot=robot if fields.robot == "unknown" else fields.robot,
        tasks=tuple(tasks),
        state_names=tuple(state_names),
        action_names=tuple(action_names),
        action_low=tuple((low - room).astype(float).tolist()),
        action_high=tuple((high + room).astype(float).tolist()),
        control_hz=float(rate),
        cameras=tuple(cameras),
        prompts=prompts,
    )


def check_ends(ends: np.ndarray, rows: Mapping[str, int]) -> None:
    """Refuse episode ends that do not divide every column exactly."""
    if ends.ndim != 1 or not len(ends) or ends.dtype.kind not in "iu":
        raise ValueError(f"episode_ends is {ends.dtype} {list(ends.shape)}; it is a list of at least one whole number.")
    steps = np.diff(ends, prepend=0)
    if (steps <= 0).any():
        bad = int(np.argmax(steps <= 0))
        raise ValueError(f"episode_ends goes from {ends[bad - 1] if bad else 0} to {ends[bad]} at episode {bad}; every episode has at least one frame.")
    for name, count in rows.items():
        if count != ends[-1]:
            raise ValueError(f"{name} has {count} rows, episode_ends ends at {ends[-1]}. The data set is truncated or mixed up; repair it at its source.")


def assemble(
    spec: Spec,
    *,
    action: np.ndarray,
    state: np.ndarray,
    images: Mapping[str, np.ndarray],
    reward: np.ndarray | None,
    success: bool,
    task: str,
    prompt: str,
    seed: int,
) -> Episode:
    """Build an episode of T actions [T, A] and T or T + 1 observations.

    Most formats lack the observation after the last action. Its state is then a copy of the last one, it has no
    pictures, and the episode counts as terminated, so that nothing ever bootstraps from it.
    """
    length = len(action)
    whole = len(state) == length + 1
    pictures = min((len(p) for p in images.values()), default=0)
    return Episode(
        requested=action,
        action=action,
        reward=np.zeros(length, np.float32) if reward is None else reward.astype(np.float32),
        source=np.full(length, SOURCES.index("human"), np.uint8),
        version=np.full(length, -1, np.int64),
        governed=np.zeros(length, np.uint8),
        state=state if whole else np.concatenate([state, state[-1:]]),
        time=np.arange(length + 1) / spec.control_hz,
        images={name: np.ascontiguousarray(p[: length + 1]) for name, p in images.items()},
        image_rows=np.arange(pictures),
        frame=np.zeros(0, np.int64),
        executed=np.zeros(0, np.int64),
        chunk=np.zeros((0, 0, action.shape[1]), np.float32),
        trace=None,
        terminated=True,
        truncated=False,
        success=success,
        reason="imported",
        task=task,
        prompt=prompt,
        seed=seed,
        schema=spec.schema,
    )
