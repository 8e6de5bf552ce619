"""Batches of transitions from recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from ..types import Episode, Transition
from .index import Row
from .sampling import Arcs, Draw, Strategy, Uniform, shuffle, stream
from .sources import Memory, Source, View
from .windows import Windows

CACHE_BYTES = 4 << 30
LOOK_AHEAD = 4
"""Batches for which episodes are loaded in advance."""

Episodes = Source | Sequence[Episode]


class Replay:
    """Windows of executed actions, drawn with replacement by a strategy from sources that may grow meanwhile.

    A transition starts at any frame with pictures (at any frame where there are no cameras), covers at most
    `horizon` frames of one episode, and `batch.executed` counts them; further actions repeat the last one and must
    not be trained on. Episodes come from memory where they fit into `cache_bytes`. Equal seeds, ranks and data
    give equal batches, also after a resume; ranks and a DataLoader's workers draw from streams of their own.
    """

    version: int
    """The learner's policy version, for strategies that bound the lag. Set it as it moves."""

    def __init__(
        self,
        sources: Episodes | Mapping[str, Episodes],
        *,
        horizon: int,
        batch_size: int,
        seed: int,
        strategy: Strategy | None = None,
        gamma: float = 1.0,
        successors: bool = True,
        advantage: str | None = None,
        reward: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """`successors` fills the pictures of `next_obs`; `advantage` and `reward` name columns of the sources."""
        if horizon < 1 or batch_size < 1 or not 0 <= rank < ranks:
            raise ValueError(f"horizon is {horizon}, batch_size {batch_size}, rank {rank} of {ranks}; the first two start at 1, rank at 0.")
        named = sources if isinstance(sources, Mapping) else {"": sources}
        self._names = list(named)
        self._sources = [source if isinstance(source, Source) else Memory(source) for source in named.values()]
        self._batch_size, self._seed, self.rank, self.ranks = batch_size, seed, rank, ranks
        self.version = self._batch = 0
        self._pinned = False
        self._listed: list[Sequence[Row]] = []
        self._refresh()
        self._windows = Windows(
            self._sources,
            self._view,
            horizon=horizon,
            gamma=gamma,
            successors=successors,
            advantage=advantage,
            reward=reward,
            cache_bytes=cache_bytes,
        )
        self._arcs = Arcs(strategy or Uniform(), frames=self._windows.frames)

    def __iter__(self) -> Iterator[Transition]:
        _split_among_workers(self)
        return self

    def __next__(self) -> Transition:
        draw = self.draw()
        ahead = self._arcs.coming(self._view, LOOK_AHEAD * self._batch_size)
        return self._windows.batch(self._view, draw, ahead)

    def draw(self) -> Draw:
        """Decide on the next batch without gathering it."""
        if not self._pinned:
            self._refresh()
        self._pinned = False
        self._view.version = self.version
        random = stream(self._seed, self._batch, self.rank)
        self._batch += 1
        return self._arcs.draw(self._view, random, self._batch_size)

    def __len__(self) -> int:
        """Frames that a window can start from."""
        return int(self._view.starts.sum())

    @property
    def figures(self) -> dict[str, float]:
        """Hit rate and size of the cache, for the log."""
        return self._windows.cache.figures

    def _refresh(self, last: Sequence[int] | None = None) -> None:
        """Take in what the sources have now, or what they had up to the sequence numbers `last`."""
        listed = [source.rows for source in self._sources]
        if last is not None:
            listed = [[row for row in rows if row.sequence <= end] for rows, end in zip(listed, last, strict=True)]
        if len(listed) == len(self._listed) and all(a is b for a, b in zip(listed, self._listed, strict=True)):
            return
        rows = [(i, row) for i, rows in enumerate(listed) for row in rows]
        if not rows:
            raise ValueError("There are 0 episodes to learn from. Collect or import some first.")
        self._listed, self._view = listed, View(rows, self._names, seed=self._seed, version=self.version)

    def state_dict(self) -> dict[str, Any]:
        """Where the draws are, and which episodes there are: the next batch is the same here and after loading."""
        self._refresh()
        self._pinned = True
        return {
            "batch": self._batch,
            "version": self.version,
            "last": [rows[-1].sequence if len(rows) else -1 for rows in self._listed],
            "credit": self._arcs.credit.tolist(),
            "turned": self._arcs.turned.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch, self.version, self._pinned = state["batch"], state["version"], True
        self._refresh(state["last"])
        self._arcs.credit, self._arcs.turned = np.array(state["credit"]), np.array(state["turned"])


class Demonstrations:
    """Windows of executed actions for supervised training: every frame once a pass, in an order of its own.

    Takes a store, foreign data or episodes in memory, as they are at construction. `batch.executed` counts the
    actions of a window that lie within its episode; the rest repeat the last one and must not be trained on.
    `batch.next_obs` has no pictures. Where the frames do not fit into `cache_bytes`, a pass shuffles within a
    sliding window of episodes instead of among all.
    """

    def __init__(
        self,
        episodes: Episodes,
        *,
        horizon: int,
        batch_size: int,
        seed: int,
        gamma: float = 1.0,
        advantage: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if horizon < 1 or batch_size < 1 or not 0 <= rank < ranks:
            raise ValueError(f"horizon is {horizon}, batch_size {batch_size}, rank {rank} of {ranks}; the first two start at 1, rank at 0.")
        source = episodes if isinstance(episodes, Source) else Memory(episodes)
        if not len(source.rows):
            raise ValueError("There are 0 episodes to learn from. Collect or import some first.")
        self._view = View([(0, row) for row in source.rows], [""], seed=seed, version=0)
        self._windows = Windows(
            [source],
            self._view,
            horizon=horizon,
            gamma=gamma,
            successors=False,
            advantage=advantage,
            reward=None,
            cache_bytes=cache_bytes,
        )
        self._batch_size, self._seed, self.rank, self.ranks = batch_size, seed, rank, ranks
        self._ends = np.cumsum(self._view.starts)
        self._pass = self._at = 0
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Frames in a pass."""
        return int(self._view.starts.sum())

    def __iter__(self) -> Iterator[Transition]:
        _split_among_workers(self)
        return self

    def __next__(self) -> Transition:
        chosen = self._take(self._batch_size)
        ahead = self._shuffled(self._pass)[self._at : self._at + LOOK_AHEAD * self._batch_size]
        draw = Draw(*self._locate(chosen), np.zeros(len(chosen), bool))
        return self._windows.batch(self._view, draw, dict.fromkeys(self._locate(ahead)[0].tolist()))

    def _take(self, count: int) -> np.ndarray:
        taken: list[np.ndarray] = []
        while count:
            part = self._shuffled(self._pass)[self._at : self._at + count]
            taken.append(part)
            count -= len(part)
            self._at += len(part)
            if not len(part):
                self._pass, self._at = self._pass + 1, 0
        return np.concatenate(taken)

    def _shuffled(self, number: int) -> np.ndarray:
        """Starts of one pass in its order, for this rank."""
        if self._order[0] != number:
            order = shuffle(self._view.starts, seed=self._seed, number=number, frames=self._windows.frames)
            self._order = (number, order)
        return self._order[1][self.rank :: self.ranks]

    def _locate(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        episode = np.searchsorted(self._ends, starts, side="right")
        return episode, starts - self._ends[episode] + self._view.starts[episode]

    @property
    def figures(self) -> dict[str, float]:
        """Hit rate and size of the cache, for the log."""
        return self._windows.cache.figures

    def state_dict(self) -> dict[str, Any]:
        return {"pass": self._pass, "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pass, self._at = state["pass"], state["at"]


def _split_among_workers(experience: Replay | Demonstrations) -> None:
    """Give each worker of a DataLoader a stream of its own."""
    worker = get_worker_info()
    if worker is not None:
        experience.rank = experience.rank * worker.num_workers + worker.id
        experience.ranks *= worker.num_workers
