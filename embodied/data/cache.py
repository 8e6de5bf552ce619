"""Decoded episodes in memory: a fixed number of bytes, laid out so that a batch is a few gathers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from .layout import CHUNK_ROWS as PAGE  # a chunk of pictures decodes right into its page

AHEAD = 32
"""Episodes that are loaded in advance at most."""
PROTECTED = 0.8
"""Share of the bytes that episodes used more than once may keep from newcomers."""

Columns = Mapping[str, np.ndarray]


class Key(NamedTuple):
    """An episode, and how much room it takes."""

    source: int
    id: str
    rows: int
    pictures: int
    """At most."""


class Load(Protocol):
    """Reads an episode's columns by observation row and by picture row. What it has put into `out`, which holds
    the pages of each picture column in order, it leaves out of what it returns."""

    def __call__(self, key: Key, out: Mapping[str, Sequence[np.ndarray]]) -> tuple[Columns, Columns]: ...


class Pool:
    """Rows of equal columns in pages of one allocation, which never grows, moves or fragments."""

    def __init__(self, like: Columns, capacity: int) -> None:
        self.bytes = PAGE * sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in like.values())
        """Of one page."""
        pages = max(1, capacity // self.bytes) if like else 1
        self.columns = {n: np.empty((pages * PAGE, *c.shape[1:]), c.dtype) for n, c in like.items()}
        self._pages, self._free, self._touched = pages, list[int](), 0

    @property
    def left(self) -> int:
        """Pages that are free."""
        return len(self._free) + self._pages - self._touched

    def take(self, count: int) -> np.ndarray:
        """Reserve pages; returns their numbers."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self._touched, self._touched + count - len(again))
        self._touched += len(fresh)
        return np.array([*again, *fresh], np.int64)

    def give(self, pages: np.ndarray) -> None:
        self._free.extend(pages.tolist())

    def views(self, pages: np.ndarray) -> dict[str, list[np.ndarray]]:
        """The pages of each column, to be written to."""
        return {n: [c[page * PAGE : (page + 1) * PAGE] for page in pages] for n, c in self.columns.items()}


class Cache:
    """Episodes by key, loaded when asked for, evicted by segmented LRU: one that was used in several batches
    outlives any number that were used once, so a scan of fresh rollouts cannot push out the demonstrations.

    One thread uses it; another loads ahead, into pages that are reserved for it. Forked children load for
    themselves.
    """

    def __init__(self, load: Load, like: tuple[Columns, Columns], capacity: int) -> None:
        self._load, self._like, self._capacity = load, like, capacity
        self._pools = [Pool(columns, capacity) for columns in like]
        self._slots: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._pages: list[list[np.ndarray]] = [[], []]
        self._tables: list[np.ndarray] = [np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64)]
        self._used, self._uses, self._size = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._unused: list[int] = []
        self._clock = 0
        self._loading: dict[Key, Future[None]] = {}
        self._loader: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self.bytes = self.hits = self.misses = self.loaded = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._load, self._like, self._capacity)  # a copy in another process starts empty

    @property
    def figures(self) -> dict[str, float]:
        """What to log: share of look-ups served from memory, bytes held, episodes loaded."""
        looked = max(self.hits + self.misses, 1)
        return {"cache/hit_rate": self.hits / looked, "cache/bytes": float(self.bytes), "cache/loaded": float(self.loaded)}

    def size(self, key: Key) -> int:
        """Bytes that an episode takes."""
        return sum(need * pool.bytes for need, pool in zip(self._needs(key), self._pools, strict=True))

    def _needs(self, key: Key) -> tuple[int, int]:
        return -(-key.rows // PAGE), -(-key.pictures // PAGE) if self._like[1] else 0

    def slots(self, keys: Sequence[Key]) -> np.ndarray:
        """Make episodes present together and return where they are, one slot each."""
        self._after_fork()
        self._clock += 1
        ready = [key for key in keys if key in self._slots and (key not in self._loading or self._loading[key].done())]
        self.hits += len(ready)
        self.misses += len(keys) - len(ready)
        present = np.array([self._slots[key] for key in keys if key in self._slots], np.int64)
        self._used[present] = self._clock
        for key in keys:
            while key not in self._slots and not self._begin(key):
                ahead = next((other for other in self._loading if other not in keys), None)
                if ahead is not None:
                    self._finish(ahead)  # loaded for later, and in the way now
                    continue
                raise ValueError(
                    f"A cache of {self._capacity} bytes does not hold the episodes of one batch: {self.bytes} bytes "
                    f"are in use and '{key.id}' needs more. Give cache_bytes more, or draw smaller batches."
                )
        for key in keys:
            if key in self._loading:
                self._finish(key)
        slots = np.array([self._slots[key] for key in keys], np.int64)
        self._uses[slots] += 1
        return slots

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Begin to load what will be asked for next, as far as there is room."""
        for key in [key for key, loading in self._loading.items() if loading.done()]:
            self._finish(key)
        for key in islice((key for key in keys if key not in self._slots), max(0, AHEAD - len(self._loading))):
            if not self._begin(key):
                break

    def _after_fork(self) -> None:
        """Threads do not survive a fork: what they were loading is forgotten."""
        if os.getpid() != self._process:
            self._process, self._loader = os.getpid(), None
            for key in list(self._loading):
                del self._loading[key]
                self._drop(self._slots[key])

    def _begin(self, key: Key) -> bool:
        """Reserve room and start to load; False if everything there is in use."""
        needs, size = self._needs(key), self.size(key)
        while self.bytes + size > self._capacity or any(n > p.left for n, p in zip(needs, self._pools, strict=True)):
            if not self._evict():
                return False
        slot = self._unused.pop() if self._unused else self._grow()
        for kind, (pool, need) in enumerate(zip(self._pools, needs, strict=True)):
            self._write_table(kind, slot, pool.take(need))
        self._slots[key], self._keys[slot] = slot, key
        self._used[slot], self._uses[slot], self._size[slot] = self._clock, 0, size
        self.bytes += size
        self.loaded += 1
        if self._loader is None:
            self._loader = ThreadPoolExecutor(1, thread_name_prefix="episode loader")
        views = [pool.views(pages[slot]) for pool, pages in zip(self._pools, self._pages, strict=True)]
        self._loading[key] = self._loader.submit(_fill, self._load, key, views)
        return True

    def _finish(self, key: Key) -> None:
        try:
            self._loading.pop(key).result()
        except BaseException:
            self._drop(self._slots[key])
            raise

    def _evict(self) -> bool:
        """Let go of one episode that nobody uses in this batch; False if there is none."""
        held = np.flatnonzero((self._size > 0) & (self._used < self._clock))
        held = held[[self._keys[slot] not in self._loading for slot in held]] if self._loading else held
        if not len(held):
            return False
        protected = held[self._uses[held] > 1]
        while self._size[protected].sum() > PROTECTED * self._capacity:
            oldest = protected[np.argmin(self._used[protected])]
            self._uses[oldest] = 1
            protected = protected[protected != oldest]
        once, ahead = held[self._uses[held] == 1], held[self._uses[held] == 0]
        candidates = next(group for group in (once, protected, ahead) if len(group))
        self._drop(int(candidates[np.argmin(self._used[candidates])]))
        return True

    def _drop(self, slot: int) -> None:
        del self._slots[self._keys[slot]]
        for pool, pages in zip(self._pools, self._pages, strict=True):
            pool.give(pages[slot])
        self.bytes -= int(self._size[slot])
        self._size[slot] = 0
        self._unused.append(slot)

    def _grow(self) -> int:
        slot = len(self._keys)
        self._keys.append(Key(-1, "", 0, 0))
        for pages in self._pages:
            pages.append(np.zeros(0, np.int64))
        if slot >= len(self._size):
            longer = max(64, 2 * slot)
            self._used, self._uses, self._size = (_extend(a, longer) for a in (self._used, self._uses, self._size))
            self._tables = [_extend(table, longer) for table in self._tables]
        return slot

    def _write_table(self, kind: int, slot: int, pages: np.ndarray) -> None:
        self._pages[kind][slot] = pages
        table = self._tables[kind]
        if len(pages) > table.shape[1]:
            self._tables[kind] = np.pad(table, ((0, 0), (0, 2 * len(pages) - table.shape[1])))
        self._tables[kind][slot, : len(pages)] = pages

    def rows(self, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather a column at observation rows of some slots, both of one shape [...]: returns [..., *column]."""
        return self._take(0, name, slots, rows)

    def pictures(self, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather a column at picture rows."""
        return self._take(1, name, slots, rows)

    def _take(self, kind: int, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        at = self._tables[kind][slots, rows // PAGE] * PAGE + rows % PAGE
        return np.take(self._pools[kind].columns[name], at, axis=0)


def _fill(load: Load, key: Key, views: Sequence[Mapping[str, Sequence[np.ndarray]]]) -> None:
    """Load an episode into its pages."""
    for columns, pages in zip(load(key, views[1]), views, strict=True):
        for name, column in columns.items():
            for i, page in enumerate(pages[name]):
                part = column[i * PAGE : (i + 1) * PAGE]
                page[: len(part)] = part


def _extend(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
