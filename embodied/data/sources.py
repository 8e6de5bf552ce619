"""Where episodes come from: a store, foreign data read in place, or memory; and many of them as one view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import numpy as np

from ..types import Episode
from . import layout
from .cache import Key
from .columns import Columns
from .index import Row, summarise


@runtime_checkable
class Source(Protocol):
    """Episodes that can be described without being read. `Store` is one; `interop` has others."""

    @property
    def rows(self) -> Sequence[Row]:
        """Every episode, in order; it may grow."""
        ...

    @property
    def cameras(self) -> Sequence[tuple[str, int, int]]:
        """(name, height, width) of every picture."""
        ...

    @property
    def columns(self) -> Columns:
        """Numbers per frame beside the episodes."""
        ...

    def load(self, id: str, out: Mapping[str, Sequence[np.ndarray]] | None = None) -> layout.Tables:
        """Read the tables of one episode. Arrays named in `out` may go there instead, CHUNK_ROWS rows a piece."""
        ...


class Memory:
    """Episodes that are in memory already."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._episodes = episodes
        facts = {"stratum": None, "created": 0.0}
        self.cameras = [(name, *p.shape[1:3]) for name, p in episodes[0].images.items()] if len(episodes) else []
        self.rows = [summarise(e, facts, id=f"{i:09d}", sequence=i, bytes=0) for i, e in enumerate(episodes)]

    @property
    def columns(self) -> Columns:
        raise ValueError("Episodes in memory have no columns. Give the store that holds them.")

    def load(self, id: str, out: Mapping[str, Sequence[np.ndarray]] | None = None) -> layout.Tables:
        return layout.split(self._episodes[int(id)])[1]


class View:
    """What can be drawn from at one moment: the episodes of all sources, as arrays [E]."""

    def __init__(self, rows: Sequence[tuple[int, Row]], names: Sequence[str], *, seed: int, version: int) -> None:
        self.keys: list[Key] = [Key(source, row.id, row.length + 1, row.starts + 1) for source, row in rows]
        self.version = version
        """The learner's, for bounds on staleness."""
        self.source = np.array([names[source] for source, _ in rows])
        self.stratum = np.array([row.stratum for _, row in rows])
        self.prompt = np.array([row.prompt for _, row in rows])
        self.length = np.array([row.length for _, row in rows], np.int64)
        self.starts = np.array([row.starts for _, row in rows], np.int64)
        self.human = np.array([row.human for _, row in rows], np.int64)
        self.oldest = np.array([row.oldest for _, row in rows], np.int64)
        self.success = np.array([row.success for _, row in rows], bool)
        self.terminated = np.array([row.terminated for _, row in rows], bool)
        spread = [blake2b(f"{seed} {source} {row.id}".encode(), digest_size=8).digest() for source, row in rows]
        self.circle = np.argsort(np.frombuffer(b"".join(spread), np.uint64), kind="stable")
        """The episodes in an order that has nothing to do with time and keeps its place when others come."""

    def __len__(self) -> int:
        return len(self.keys)
