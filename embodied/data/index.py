"""The index of a store: one row an episode, in SQLite, kept in step with the folders.

It holds nothing that the folders do not, so it can be rebuilt; it makes opening 100,000 episodes a matter of
one query.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

import numpy as np

from ..types import SOURCES, Episode


@dataclass(frozen=True)
class Row:
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
    pictures: int
    """Rows with pictures."""
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


def summarise(
    episode: Episode, *, id: str, sequence: int, stratum: str | None, bytes: int, created: float
) -> Row:
    """Describe an episode; without a name, what a policy made is 'online' and the rest 'demo'."""
    acted = bool((episode.source == SOURCES.index("policy")).any())
    return Row(
        id=id,
        sequence=sequence,
        stratum=stratum or ("online" if acted else "demo"),
        task=episode.task,
        prompt=episode.prompt,
        seed=int(episode.seed),
        length=episode.length,
        pictures=len(episode.image_rows),
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
        created=created,
    )


_KINDS = {"str": "TEXT", "int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
_COLUMNS = [field.name for field in fields(Row)]
_TABLE = ", ".join(f"{field.name} {_KINDS[str(field.type)]} NOT NULL" for field in fields(Row))
_FLAGS = [field.name for field in fields(Row) if field.type == "bool"]


class Index:
    """Rows by id, ordered by sequence."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def create(self) -> None:
        self._database.execute(f"CREATE TABLE IF NOT EXISTS episodes ({_TABLE}, PRIMARY KEY (sequence), UNIQUE (id))")

    def rows(self) -> list[Row]:
        """Read every row, in order of commit."""
        rows = self._database.execute(f"SELECT {', '.join(_COLUMNS)} FROM episodes ORDER BY sequence")
        flags = [_COLUMNS.index(name) for name in _FLAGS]
        made = []
        for row in rows:
            values = list(row)
            for flag in flags:
                values[flag] = bool(values[flag])
            made.append(Row(*values))
        return made

    def insert(self, rows: Iterable[Row]) -> None:
        """Add rows in one durable transaction."""
        marks = ", ".join("?" * len(_COLUMNS))
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(f"INSERT INTO episodes VALUES ({marks})", [astuple(row) for row in rows])
        self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()


def column(rows: Iterable[Row], name: str) -> np.ndarray:
    """Gather one field of many rows."""
    return np.array([getattr(row, name) for row in rows])
