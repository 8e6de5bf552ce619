"""LeRobotDataset v3, both ways, through lerobot itself: the `data` extra installs what it needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...types import Episode, Spec
from .fields import Fields, assemble, bounds, choose_scale, describe

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
TIME_TOLERANCE = 0.1
"""Share of a frame by which timestamps may be off."""


class Dataset:
    """Episodes of a LeRobot data set on disk, in order."""

    spec: Spec

    def __init__(self, path: str | Path, fields: Fields | None = None) -> None:
        self._path, self._fields = Path(path), fields or Fields()
        self._dataset = _open(self._path)
        self._numbers = _numbers(self._dataset)
        self._check()
        info = self._dataset.meta
        names = {what: _names(info.features, what) for what in (STATE, ACTION)}
        self._scales = {
            what: choose_scale(what, names[what], *bounds([self._numbers[what]]), self._fields) for what in (STATE, ACTION)
        }
        cameras = dict(self._fields.cameras) or {key.removeprefix(IMAGES): key for key in info.camera_keys}
        if missing := set(cameras.values()) - set(info.camera_keys):
            raise ValueError(f"There is no camera '{min(missing)}'. Present: {', '.join(info.camera_keys)}.")
        self._cameras = cameras
        shapes = {name: _size(info.features[key]) for name, key in cameras.items()}
        low, high = bounds([self._scales[ACTION](self._numbers[ACTION])])
        tasks = tuple(str(task) for task in info.tasks.index)
        self.spec = describe(
            self._fields,
            robot=info.robot_type or "unknown",
            hz=float(info.fps),
            state_names=names[STATE],
            action_names=names[ACTION],
            low=low,
            high=high,
            cameras=[(name, *shape) for name, shape in shapes.items()],
            tasks=(self._fields.task,),
            prompts=any(tasks),
        )

    def __len__(self) -> int:
        return int(self._dataset.meta.total_episodes)

    def _check(self) -> None:
        """Refuse rows that are not what the episode table says."""
        numbers, episodes, rate = self._numbers, self._dataset.meta.episodes, self._dataset.meta.fps
        for number in range(len(self)):
            start, stop = episodes[number]["dataset_from_index"], episodes[number]["dataset_to_index"]
            rows = slice(start, stop)
            count = np.arange(stop - start)
            if stop <= start or stop > len(numbers["index"]):
                raise ValueError(f"Episode {number} of {self._path} spans rows {start} to {stop} of {len(numbers['index'])}. Repair it at its source.")
            if (numbers["episode_index"][rows] != number).any() or (numbers["frame_index"][rows] != count).any():
                raise ValueError(f"Rows {start} to {stop} of {self._path} are not the frames of episode {number}. Repair it at its source.")
            if (np.abs(numbers["timestamp"][rows] - count / rate) > TIME_TOLERANCE / rate).any():
                raise ValueError(f"Timestamps of episode {number} of {self._path} are not at {rate} frames a second. Repair it at its source.")
        for what in (STATE, ACTION):
            if not np.isfinite(numbers[what]).all():
                raise ValueError(f"{what} is not finite at row {int(np.argmin(np.isfinite(numbers[what]).all(1)))} of {self._path}.")

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(number) for number in range(len(self)))

    def read(self, number: int) -> Episode:
        """Read one episode, pictures decoded."""
        facts = self._dataset.meta.episodes[number]
        rows = slice(facts["dataset_from_index"], facts["dataset_to_index"])
        pictures: dict[str, list[np.ndarray]] = {name: [] for name in self._cameras}
        prompt = ""
        for row in range(rows.start, rows.stop):
            item = self._dataset[row]
            prompt = item["task"]
            for name, key in self._cameras.items():
                picture = np.rint(item[key].numpy() * 255).astype(np.uint8)  # float CHW of an 8-bit picture
                pictures[name].append(picture.transpose(1, 2, 0))
        reward, success = self._numbers.get("next.reward"), self._numbers.get("next.success")
        return assemble(
            self.spec,
            action=self._scales[ACTION](self._numbers[ACTION][rows]),
            state=self._scales[STATE](self._numbers[STATE][rows]),
            images={name: np.stack(frames) for name, frames in pictures.items()},
            reward=None if reward is None else reward[rows].reshape(-1),
            success=self._fields.success if success is None else bool(success[rows].any()),
            task=self._fields.task,
            prompt=prompt,
            seed=number,
        )


def write(path: str | Path, spec: Spec, episodes: Iterable[Episode], *, videos: bool) -> int:
    """Write episodes as a LeRobot data set; returns how many. The last observation has no place in it.

    The data set appears under its name when it is whole.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists. Name a new folder.")
    partial = path.with_name(path.name + ".partial")
    with installed() as lerobot:
        dataset = lerobot.create(
            repo_id=f"local/{path.name}",
            fps=_whole(spec.control_hz),
            features=_features(spec, videos=videos),
            root=partial,
            robot_type=spec.robot,
            use_videos=videos,
        )
        count = 0
        for episode in episodes:
            for frame in range(episode.length):
                dataset.add_frame(_frame(episode, frame))
            dataset.save_episode()
            count += 1
        dataset.finalize()
    partial.rename(path)
    return count


def _whole(rate: float) -> int:
    if rate != int(rate):
        raise ValueError(f"LeRobot data sets have whole frames per second, these have {rate}.")
    return int(rate)


def _features(spec: Spec, *, videos: bool) -> dict[str, Any]:
    features: dict[str, Any] = {
        STATE: {"dtype": "float32", "shape": (spec.state_dim,), "names": list(spec.state_names)},
        ACTION: {"dtype": "float32", "shape": (spec.action_dim,), "names": list(spec.action_names)},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    for name, height, width in spec.cameras:
        kind = "video" if videos else "image"
        features[IMAGES + name] = {"dtype": kind, "shape": (height, width, 3), "names": ["height", "width", "channels"]}
    return features


def _frame(episode: Episode, frame: int) -> dict[str, Any]:
    pictures = np.searchsorted(episode.image_rows, frame)
    if episode.images and (pictures == len(episode.image_rows) or episode.image_rows[pictures] != frame):
        raise ValueError(f"Frame {frame} of an episode has no pictures; LeRobot data sets need them in every frame. Record all, or export without cameras.")
    last = frame == episode.length - 1
    return {
        STATE: episode.state[frame],
        ACTION: episode.action[frame],
        "next.reward": episode.reward[frame : frame + 1],
        "next.done": np.array([last]),
        "next.success": np.array([last and episode.success]),
        "task": episode.prompt or episode.task,
        **{IMAGES + name: stack[pictures] for name, stack in episode.images.items()},
    }


@contextmanager
def installed() -> Iterator[Any]:
    """Import lerobot's class of data sets, saying what to install where it is missing, and keep it quiet meanwhile:
    it warns at length where torchcodec has no FFmpeg, and then decodes with PyAV."""
    logger = logging.getLogger("lerobot")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        from datasets.utils.logging import disable_progress_bar
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise RuntimeError(f"LeRobot data sets need what 'pip install embodied-rl[data]' installs ({error}).") from error
    disable_progress_bar()
    try:
        yield LeRobotDataset
    finally:
        logger.setLevel(level)


def _open(path: Path) -> Any:
    if not (path / "meta" / "info.json").is_file():
        raise ValueError(f"{path} is no LeRobot data set: it has no meta/info.json. Give the folder that holds meta/.")
    with installed() as lerobot:
        try:
            dataset = lerobot(f"local/{path.name}", root=path)
        except Exception as error:  # lerobot, datasets and pyarrow each raise their own
            raise ValueError(
                f"lerobot cannot open {path} ({str(error).splitlines()[0]}). If its recorder was killed, the file it was "
                "writing has no footer and is lost."
            ) from error
    if missing := {STATE, ACTION} - set(dataset.meta.features):
        raise ValueError(f"{path} has no {' and no '.join(sorted(missing))}. Present: {', '.join(dataset.meta.features)}.")
    return dataset


def _numbers(dataset: Any) -> dict[str, np.ndarray]:
    """Read every column that is no picture, whole."""
    keys = [key for key in dataset.meta.features if key not in dataset.meta.camera_keys]
    table = dataset.hf_dataset.select_columns(keys).with_format("numpy")[:]
    return {key: np.asarray(table[key]) for key in keys}


def _names(features: Mapping[str, Any], what: str) -> list[str]:
    names = features[what]["names"]
    if isinstance(names, Mapping):
        names = [name for group in names.values() for name in group]
    size = int(features[what]["shape"][0])
    return [str(name) for name in names] if names and len(names) == size else [f"{what}_{i}" for i in range(size)]


def _size(feature: Mapping[str, Any]) -> tuple[int, int]:
    shape = list(feature["shape"])
    height, width = shape[:2] if shape[2] == 3 else shape[1:]
    return int(height), int(width)
