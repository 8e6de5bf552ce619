"""The index of a store: one row an episode, in SQLite, kept in step with the folders.

It holds nothing that the folders do not, so it can be rebuilt; it makes opening 100,000 episodes a matter of
one query.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import google_crc32c
import numpy as np

from ..journal import Files
from ..types import SOURCES, Episode


class Row(NamedTuple):
    """What can be asked of an episode without reading it."""

    id: str
    sequence: int
    """Order of commit, from 0; never used twice."""
    stratum: str
    """What it is to sampling and retention: 'demo', 'online', or any name given when it was appended."""
    task: str
    prompt: str
    seed: int
    length: int
    """Frames."""
    starts: int
    """Frames that a decision can start from: those with pictures, or all where there are no cameras."""
    decisions: int
    success: bool
    terminated: bool
    truncated: bool
    reason: str
    reward: float
    """Sum over the episode."""
    human: int
    """Frames whose source is a person."""
    oldest: int
    """Smallest policy version of its frames, -1 where no policy acted."""
    newest: int
    bytes: int
    """On disk."""
    created: float
    """Wall-clock seconds."""


def summarise(episode: Episode, facts: dict[str, Any], *, id: str, sequence: int, bytes: int) -> Row:
    """Describe an episode. Where `facts` name no stratum, what a policy made is 'online' and the rest 'demo'."""
    acted = bool((episode.source == SOURCES.index("policy")).any())
    return Row(
        id=id,
        sequence=sequence,
        stratum=facts["stratum"] or ("online" if acted else "demo"),
        task=episode.task,
        prompt=episode.prompt,
        seed=int(episode.seed),
        length=episode.length,
        starts=int((episode.image_rows < episode.length).sum()) if episode.images else episode.length,
        decisions=len(episode.frame),
        success=bool(episode.success),
        terminated=bool(episode.terminated),
        truncated=bool(episode.truncated),
        reason=episode.reason,
        reward=float(episode.reward.sum()),
        human=int((episode.source == SOURCES.index("human")).sum()),
        oldest=int(episode.version.min()),
        newest=int(episode.version.max()),
        bytes=bytes,
        created=facts["created"],
    )


_KINDS = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL"}
_FIELDS = get_type_hints(Row)
_TABLE = ", ".join(f"{name} {_KINDS[kind]} NOT NULL" for name, kind in _FIELDS.items())
_FLAGS = slice(9, 12)
"""success, terminated, truncated: SQLite keeps them as integers."""


class Index:
    """Rows by id in order of commit, kept in memory and in step with the database; changes are durable.

    Usable from many threads, and from forked children, which open it again for reading.
    """

    def __init__(self, files: Files, path: Path, *, write: bool) -> None:
        self._files, self._path, self._write = files, path, write
        self._connect()
        if write:
            self._database.execute(f"CREATE TABLE IF NOT EXISTS episodes ({_TABLE}, crc32c INTEGER NOT NULL, UNIQUE (id))")
            self._database.execute("CREATE TABLE IF NOT EXISTS evicted (id TEXT PRIMARY KEY, sequence INTEGER NOT NULL)")
            self._database.execute("CREATE TABLE IF NOT EXISTS edits (number INTEGER NOT NULL)")
            if not self._database.execute("SELECT count(*) FROM edits").fetchone()[0]:
                self._database.execute("INSERT INTO edits VALUES (0)")

    def _connect(self) -> None:
        self._process, self._mutex, self._closed = os.getpid(), threading.RLock(), False
        self._database = self._files.database(self._path, write=self._write)
        self._rows: dict[str, Row] = {}
        self._last, self._edits, self._version = -1, -1, -1

    @property
    def rows(self) -> Mapping[str, Row]:
        """Every row by id, in order of commit, as of now."""
        if os.getpid() != self._process:
            self._write = False
            self._connect()
        with self._held():
            version = self._database.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:  # another connection wrote, or we did
                self._refresh()
                self._version = version
            return self._rows

    def _refresh(self) -> None:
        edits = self._database.execute("SELECT number FROM edits").fetchone()[0]
        if edits != self._edits:
            self._rows, self._last, self._edits = {}, -1, edits
        rows = dict(self._rows)
        for values in self._database.execute("SELECT * FROM episodes WHERE sequence > ? ORDER BY sequence", (self._last,)):
            row = Row(*values[: _FLAGS.start], *map(bool, values[_FLAGS]), *values[_FLAGS.stop : -1])
            if _sum(row) != values[-1]:
                raise sqlite3.DatabaseError(f"the row of episode '{row.id}' is not what was written")
            rows[row.id] = row
            self._last = row.sequence
        self._rows = rows  # replaced, not changed: what was handed out stays as it was

    def next_sequence(self) -> int:
        """The number of the next commit."""
        with self._held():
            used = self._database.execute("SELECT max(sequence) FROM (SELECT sequence FROM episodes UNION SELECT sequence FROM evicted)")
            return 1 + (-1 if (last := used.fetchone()[0]) is None else last)

    def evicted(self) -> set[str]:
        """Episodes dropped on purpose; what is left of their folders is no data."""
        with self._held():
            return {id for (id,) in self._database.execute("SELECT id FROM evicted")}

    def insert(self, rows: Iterable[Row], *, late: bool = False) -> None:
        """Add rows; `late` where they may come before rows that are there."""
        marks = ", ".join("?" * (len(_FIELDS) + 1))
        with self._transaction(edit=late):
            self._database.executemany(f"INSERT INTO episodes VALUES ({marks})", [(*row, _sum(row)) for row in rows])

    def evict(self, rows: Iterable[Row]) -> None:
        """Drop rows, and remember that they were dropped on purpose."""
        rows = list(rows)
        with self._transaction(edit=True):
            self._database.executemany("DELETE FROM episodes WHERE id = ?", [(row.id,) for row in rows])
            self._database.executemany("INSERT INTO evicted VALUES (?, ?)", [(row.id, row.sequence) for row in rows])

    def forget(self, ids: Iterable[str]) -> None:
        """Drop rows whose episodes are lost or damaged."""
        with self._transaction(edit=True):
            self._database.executemany("DELETE FROM episodes WHERE id = ?", [(id,) for id in ids])

    def label(self, id: str, success: bool) -> None:
        row = self.rows[id]._replace(success=success)
        with self._transaction(edit=True):
            self._database.execute("UPDATE episodes SET success = ?, crc32c = ? WHERE id = ?", (success, _sum(row), id))

    @contextmanager
    def _transaction(self, *, edit: bool = False) -> Iterator[None]:
        with self._held():
            self._version = -1
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                if edit:
                    self._database.execute("UPDATE edits SET number = number + 1")
                self._database.execute("COMMIT")
            except BaseException:
                self._database.rollback()
                raise

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the database for one thread; SQLite does not survive being closed by another meanwhile."""
        with self._mutex:
            if self._closed:
                raise RuntimeError(f"{self._path.parent} is closed. Open it again.")
            yield

    def close(self) -> None:
        if os.getpid() == self._process:
            with self._mutex:
                self._closed = True
                self._database.close()


def _sum(row: Row) -> int:
    return google_crc32c.value(repr(tuple(row)).encode())


def column(rows: Iterable[Row], name: str) -> np.ndarray:
    """Gather one field of many rows."""
    return np.array([getattr(row, name) for row in rows])
