"""Refuse episodes that would poison what is learned from them."""

from __future__ import annotations

import numpy as np

from ..types import SOURCES, Episode, Spec


def check_episode(episode: Episode, spec: Spec, horizon: int | None) -> None:
    """Raise ValueError for the first thing that does not fit: schema, lengths, shapes, dtypes, NaN, sources."""
    if episode.schema != spec.schema:
        raise ValueError(
            f"The episode has schema {episode.schema or 'none'}, the store {spec.schema}: other joints, limits, rate or "
            "cameras. Record with the Spec of the store (`spec.schema`), or append to a store of its own."
        )
    frames, states, actions = episode.length, spec.state_dim, spec.action_dim
    if frames == 0:
        raise ValueError("The episode has 0 frames; a recorded episode has at least one. Drop it.")
    decisions = len(episode.frame)
    chunk = (decisions, horizon if horizon is not None else episode.chunk.shape[1], actions)
    pictures = len(episode.image_rows)
    expected: dict[str, tuple[np.ndarray, type, tuple[int, ...]]] = {
        "requested": (episode.requested, np.float32, (frames, actions)),
        "action": (episode.action, np.float32, (frames, actions)),
        "reward": (episode.reward, np.float32, (frames,)),
        "source": (episode.source, np.uint8, (frames,)),
        "version": (episode.version, np.int64, (frames,)),
        "governed": (episode.governed, np.uint8, (frames,)),
        "state": (episode.state, np.float32, (frames + 1, states)),
        "time": (episode.time, np.float64, (frames + 1,)),
        "image_rows": (episode.image_rows, np.int64, (pictures,)),
        "executed": (episode.executed, np.int64, (decisions,)),
        "frame": (episode.frame, np.int64, (decisions,)),
    }
    if decisions:
        expected["chunk"] = (episode.chunk, np.float32, chunk)
    sizes = {name: (height, width) for name, height, width in spec.cameras}
    if set(episode.images) != set(sizes):
        raise ValueError(f"The episode has cameras {sorted(episode.images)}, the store {sorted(sizes)}. Record all of them.")
    for name, images in episode.images.items():
        expected[f"images/{name}"] = (images, np.uint8, (pictures, *sizes[name], 3))
    if episode.snapshot is not None:
        expected["snapshot"] = (episode.snapshot, np.float64, (frames + 1, *episode.snapshot.shape[1:]))
    for name, (array, dtype, shape) in expected.items():
        _check_array(name, array, np.dtype(dtype), shape)
    _check_values(episode)


def check_step(arrays: dict[str, np.ndarray], spec: Spec) -> None:
    """Refuse a frame that does not fit before it enters the journal."""
    actions, states = (spec.action_dim,), (spec.state_dim,)
    wanted: dict[str, tuple[int, ...]] = {"requested": actions, "action": actions, "state": states}
    sizes: dict[str, tuple[int, ...]] = {f"images/{name}": (height, width, 3) for name, height, width in spec.cameras}
    pictures = {name for name in arrays if name.startswith("images/")}
    if pictures and pictures != sizes.keys():
        raise ValueError(f"The frame has {sorted(pictures)}, the store {sorted(sizes)}. Record all of them, or none in this frame.")
    for name, array in arrays.items():
        dtype = np.dtype(np.uint8) if name in pictures else array.dtype
        _check_array(name, array, dtype, (wanted | sizes).get(name, array.shape))


def _check_array(name: str, array: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, the store takes {dtype} {list(shape)}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise ValueError(f"{name} is not finite at {bad[0].tolist()} ({len(bad)} such numbers). Drop the episode or end it before.")


def _check_values(episode: Episode) -> None:
    if episode.source.max() >= len(SOURCES):
        raise ValueError(f"source holds {episode.source.max()}, allowed are 0 to {len(SOURCES) - 1} ({', '.join(SOURCES)}).")
    rows = episode.image_rows
    if len(rows) and (rows[0] < 0 or rows[-1] > episode.length or (np.diff(rows) <= 0).any()):
        raise ValueError(f"image_rows must ascend within 0 to {episode.length}, got {rows[:5]}… to {rows[-1]}.")
    if (np.diff(episode.time) < 0).any():
        raise ValueError(f"time runs backwards at row {int(np.argmax(np.diff(episode.time) < 0)) + 1}. Use a monotonic clock.")
    ends = episode.frame + episode.executed
    if len(ends) and (episode.frame[0] < 0 or ends[-1] > episode.length or (ends[:-1] > episode.frame[1:]).any()):
        raise ValueError(f"Decisions must follow each other within 0 to {episode.length}, got frames {episode.frame} executing {episode.executed}.")
