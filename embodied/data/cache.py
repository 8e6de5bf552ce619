"""Decoded episodes in memory: a fixed number of bytes, laid out so that a batch is a few gathers."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

import numpy as np

PAGE = 8
"""Rows that are handed out together; an episode wastes less than one page."""
AHEAD = 32
"""Episodes that are loaded in advance at most."""
PROTECTED = 0.8
"""Share of the bytes that episodes used more than once may keep from newcomers."""

Key = Hashable
Columns = Mapping[str, np.ndarray]


class Load(Protocol):
    def __call__(self, key: Key) -> tuple[Columns, Columns]:
        """Read an episode's columns: one row per observation, and one row per picture."""
        ...


class Pool:
    """Rows of equal columns in pages of one allocation, which never grows, moves or fragments."""

    def __init__(self, like: Columns, capacity: int) -> None:
        self.bytes = PAGE * sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in like.values())
        """Of one page."""
        pages = max(1, capacity // max(self.bytes, 1))
        self.columns = {n: np.empty((pages * PAGE, *c.shape[1:]), c.dtype) for n, c in like.items()}
        self._pages, self._free, self._touched = pages, list[int](), 0

    def need(self, columns: Columns) -> int:
        """Pages for some rows."""
        return -(-len(next(iter(columns.values()))) // PAGE) if columns else 0

    @property
    def left(self) -> int:
        return len(self._free) + self._pages - self._touched

    def put(self, columns: Columns) -> np.ndarray:
        """Copy rows into free pages. Returns their numbers."""
        need = self.need(columns)
        again = [self._free.pop() for _ in range(min(need, len(self._free)))]
        fresh = range(self._touched, self._touched + need - len(again))
        self._touched += len(fresh)
        pages = np.array([*again, *fresh], np.int64)
        for name, column in columns.items():
            pool = self.columns[name]
            for i, page in enumerate(pages):
                part = column[i * PAGE : (i + 1) * PAGE]
                pool[page * PAGE : page * PAGE + len(part)] = part
        return pages

    def drop(self, pages: np.ndarray) -> None:
        self._free.extend(pages.tolist())


class Cache:
    """Episodes by key, loaded when asked for, evicted by segmented LRU: one that was used in several batches
    outlives any number that were used once, so a scan of fresh rollouts cannot push out the demonstrations.

    One thread uses it; loading ahead happens in others. Forked children start with loaders of their own.
    """

    hits: int
    misses: int

    def __init__(self, load: Load, capacity: int) -> None:
        self._load, self._capacity = load, capacity
        self._pools: tuple[Pool, Pool] | None = None
        self._slots: dict[Key, int] = {}
        self._keys: list[Key] = []
        self._pages: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        self._tables: list[np.ndarray] = [np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64)]
        self._used, self._uses, self._size = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._unused: list[int] = []
        self._clock = 0
        self._loading: dict[Key, Future[tuple[Columns, Columns]]] = {}
        self._loaders: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self.bytes = self.hits = self.misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._load, self._capacity)  # a copy in another process starts empty

    @property
    def figures(self) -> dict[str, float]:
        """What to log: share of look-ups served from memory, and bytes held."""
        return {"cache/hit_rate": self.hits / max(self.hits + self.misses, 1), "cache/bytes": float(self.bytes)}

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Begin to load what will be asked for next, in the background, and forget what was and no longer is."""
        keys = list(islice((key for key in keys if key not in self._slots), AHEAD))
        self._loading = {key: loading for key, loading in self._loading.items() if key in keys}
        self._begin(keys)

    def _begin(self, keys: Iterable[Key]) -> None:
        if os.getpid() != self._process:  # threads and their locks do not survive a fork
            self._process, self._loaders, self._loading = os.getpid(), None, {}
        for key in keys:
            if key not in self._slots and key not in self._loading:
                if self._loaders is None:
                    self._loaders = ThreadPoolExecutor(1, thread_name_prefix="episode loader")
                self._loading[key] = self._loaders.submit(self._load, key)

    def slots(self, keys: Iterable[Key]) -> np.ndarray:
        """Make episodes present together and return where they are, one slot each."""
        keys = list(keys)
        self._clock += 1
        missing = [key for key in keys if key not in self._slots]
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        present = np.array([self._slots[key] for key in keys if key in self._slots], np.int64)
        self._used[present] = self._clock
        self._uses[present] += 1
        self._begin(missing)
        for key in missing:
            self._insert(key, *self._loading.pop(key).result())
        return np.array([self._slots[key] for key in keys], np.int64)

    def _insert(self, key: Key, rows: Columns, pictures: Columns) -> None:
        if self._pools is None:
            self._pools = Pool(rows, self._capacity), Pool(pictures, self._capacity)
        needs = [pool.need(columns) for pool, columns in zip(self._pools, (rows, pictures), strict=True)]
        size = sum(need * pool.bytes for need, pool in zip(needs, self._pools, strict=True))
        while self.bytes + size > self._capacity or any(n > p.left for n, p in zip(needs, self._pools, strict=True)):
            self._evict(size)
        slot = self._unused.pop() if self._unused else self._grow()
        for kind, (pool, columns) in enumerate(zip(self._pools, (rows, pictures), strict=True)):
            pages = pool.put(columns)
            self._pages[kind][slot] = pages
            self._write_table(kind, slot, pages)
        self._slots[key], self._keys[slot] = slot, key
        self._used[slot], self._uses[slot], self._size[slot] = self._clock, 1, size
        self.bytes += size

    def _evict(self, size: int) -> None:
        held = np.flatnonzero((self._size > 0) & (self._used < self._clock))
        if not len(held):
            raise ValueError(
                f"A cache of {self._capacity} bytes does not hold the episodes of one batch: {self.bytes} bytes are in "
                f"use and {size} more are needed. Give cache_bytes more, or draw smaller batches."
            )
        protected = held[self._uses[held] > 1]
        while self._size[protected].sum() > PROTECTED * self._capacity:
            oldest = protected[np.argmin(self._used[protected])]
            self._uses[oldest] = 1
            protected = protected[protected != oldest]
        candidates = held[self._uses[held] <= 1] if len(protected) < len(held) else held
        slot = int(candidates[np.argmin(self._used[candidates])])
        del self._slots[self._keys[slot]]
        for pool, pages in zip(self._pools or (), self._pages, strict=False):
            pool.drop(pages[slot])
        self.bytes -= int(self._size[slot])
        self._size[slot] = 0
        self._unused.append(slot)

    def _grow(self) -> int:
        slot = len(self._keys)
        self._keys.append(None)
        for pages in self._pages:
            pages.append(np.zeros(0, np.int64))
        if slot >= len(self._size):
            longer = max(64, 2 * slot)
            self._used, self._uses, self._size = (_extend(a, longer) for a in (self._used, self._uses, self._size))
            self._tables = [_extend(table, longer) for table in self._tables]
        return slot

    def _write_table(self, kind: int, slot: int, pages: np.ndarray) -> None:
        table = self._tables[kind]
        if len(pages) > table.shape[1]:
            table = self._tables[kind] = np.pad(table, ((0, 0), (0, 2 * len(pages) - table.shape[1])))
        table[slot, : len(pages)] = pages

    def rows(self, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather a column at observation rows of some slots, both of one shape [...]: returns [..., *column]."""
        return self._take(0, name, slots, rows)

    def pictures(self, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather a column at picture rows."""
        return self._take(1, name, slots, rows)

    def _take(self, kind: int, name: str, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        assert self._pools is not None
        at = self._tables[kind][slots, rows // PAGE] * PAGE + rows % PAGE
        return np.take(self._pools[kind].columns[name], at, axis=0)


def _extend(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
