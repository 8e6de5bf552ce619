"""Windows of actions as transitions, gathered from cached episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..types import SOURCES, ActionChunk, Observation, Transition
from . import layout
from .cache import Cache, Columns, Key
from .sampling import Draw, window
from .sources import Source, View


class Loader:
    """Reads what a window needs of an episode, from whichever source."""

    def __init__(self, sources: Sequence[Source], *, advantage: str | None, reward: str | None) -> None:
        self._sources, self._advantage, self._reward = sources, advantage, reward
        self.pictured = bool(sources[0].cameras)

    def __call__(self, key: Key, out: Mapping[str, Sequence[np.ndarray]]) -> tuple[Columns, Columns]:
        """Columns by observation row (frame columns get one more row, a copy of the last) and by picture."""
        source, id = self._sources[key.source], key.id
        tables = source.load(id, out)
        frames, observed = tables["frames"], tables["observations"]
        columns = {name: frames[name] for name in ("action", "version", "reward")}
        if self._reward is not None:
            columns["reward"] = source.columns.read(self._reward, id).astype(np.float32)
        if self._advantage is not None:
            columns["advantage"] = source.columns.read(self._advantage, id).astype(np.float32)
        rows = {name: np.concatenate([column, column[-1:]]) for name, column in columns.items()}
        rows |= {name: np.ascontiguousarray(observed[name]) for name in ("state", "time", "image")}
        human = np.flatnonzero(frames["source"] == SOURCES.index("human"))
        rows["human"] = np.append(human, np.full(len(observed) - len(human), -1))  # [n]: the n-th frame of a person
        pictures = {name: table for name, table in tables.items() if name.startswith("images/")}
        if self.pictured:
            pictured = np.flatnonzero(observed["image"] >= 0)
            pictures["row"] = pictured
            after = np.searchsorted(pictured, np.arange(len(observed)), side="right")
            rows["seen_next"] = np.append(pictured, len(observed))[after]  # the next row with pictures
        return rows, pictures


class Windows:
    """Turns draws into batches. Holds the cache."""

    cache: Cache

    def __init__(
        self,
        sources: Sequence[Source],
        view: View,
        *,
        horizon: int,
        gamma: float,
        successors: bool,
        advantage: str | None,
        reward: str | None,
        cache_bytes: int,
    ) -> None:
        self._horizon, self._gamma, self._successors, self._advantage = horizon, gamma, successors, advantage
        layouts = [layout.stacks(source.cameras) for source in sources]
        if any(other != layouts[0] for other in layouts):
            raise ValueError(f"The sources have cameras {' and '.join(map(str, layouts))}. Give sources with the same ones.")
        self._cameras = layouts[0]
        load = Loader(sources, advantage=advantage, reward=reward)
        self.cache = Cache(load, load(view.keys[0], {}), cache_bytes)
        size = sum(self.cache.size(key) for key in view.keys) / view.starts.sum()
        self.frames = int(cache_bytes / size) if size * view.starts.sum() <= cache_bytes else int(0.75 * cache_bytes / size)
        """Frames that the cache holds, less those that are loaded ahead where not all fit."""

    def batch(self, view: View, draw: Draw, ahead: Iterable[int]) -> Transition:
        """Gather the windows [B] that begin where `draw` says; episodes `ahead` are loaded meanwhile."""
        cache, episode = self.cache, draw.episode
        unique, inverse = np.unique(episode, return_inverse=True)
        slots = cache.slots([view.keys[i] for i in unique])[inverse]
        cache.prefetch(view.keys[i] for i in ahead)
        return self._gather(view, draw, slots, sparse=bool((view.starts[unique] < view.length[unique]).any()))

    def _gather(self, view: View, draw: Draw, slots: np.ndarray, *, sparse: bool) -> Transition:
        cache, episode = self.cache, draw.episode
        frame = self._frame(view, draw, slots)
        end = view.length[episode]
        if sparse and self._successors and self._cameras:
            end = np.minimum(end, cache.rows("seen_next", slots, frame))
        reached, valid = window(frame, end, self._horizon)
        executed = valid.sum(1)
        after = frame + executed
        done = after == view.length[episode]
        final = done & view.terminated[episode]
        reward = cache.rows("reward", slots[:, None], reached) * valid  # [B, H]
        return Transition(
            obs=self._observe(view, episode, slots, frame, frame, pictures=True),
            chunk=ActionChunk(actions=cache.rows("action", slots[:, None], reached), version=cache.rows("version", slots, frame)),
            executed=executed,
            reward=(reward @ self._gamma ** np.arange(self._horizon)).astype(np.float32),
            discount=np.where(final, 0.0, self._gamma**executed).astype(np.float32),
            next_obs=self._observe(view, episode, slots, after, np.where(final, frame, after), pictures=self._successors),
            done=done,
            success=done & view.success[episode],
            advantage=None if self._advantage is None else cache.rows("advantage", slots, frame),
        )

    def _frame(self, view: View, draw: Draw, slots: np.ndarray) -> np.ndarray:
        """Frames that the starts count: all, those with pictures, or those of a person."""
        frame = draw.start
        partial = view.starts[draw.episode] < view.length[draw.episode]
        if partial.any():
            frame = np.where(partial, self.cache.pictures("row", slots, np.where(partial, draw.start, 0)), frame)
        if draw.human.any():
            frame = np.where(draw.human, self.cache.rows("human", slots, np.where(draw.human, draw.start, 0)), frame)
        return frame

    def _observe(
        self, view: View, episode: np.ndarray, slots: np.ndarray, rows: np.ndarray, seen: np.ndarray, *, pictures: bool
    ) -> Observation:
        """Observe at `rows`, with the pictures of the rows `seen` (after a terminal frame nobody looks at them)."""
        images: dict[str, np.ndarray] = {}
        if pictures and self._cameras:
            at = self.cache.rows("image", slots, seen)
            if (at < 0).any():
                raise ValueError(
                    f"Row {seen[at < 0][0]} of episode '{view.keys[episode[at < 0][0]][1]}' has no pictures, and the next "
                    f"one that has is more than {self._horizon} frames away. Take a longer horizon, or successors=False."
                )
            for size, names in self._cameras.items():
                stack = self.cache.pictures(size, slots, at)  # [B, C, h, w, 3]
                images |= {name: stack[:, i] for i, name in enumerate(names)}
        return Observation(
            images=images,
            state=self.cache.rows("state", slots, rows),
            prompt=view.prompt[episode],
            time=self.cache.rows("time", slots, rows),
        )

