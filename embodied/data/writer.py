"""The one process that writes a store: journal, staging, commits in the background, labels, eviction."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..journal import Files, Journal, seal
from ..types import Episode, Spec
from . import episodes, layout
from .background import Background, StoreFullError
from .draft import Draft, Kind, pack
from .ids import new_id
from .index import summarise
from .recovery import Recovery, open_index, reconcile, replay_journal, set_aside
from .retention import Quota
from .validate import check_episode


class Writer:
    """Holds the lock of a store from construction to `close`, and repairs the store first."""

    recovered: Recovery

    def __init__(
        self, path: Path, spec: Spec, *, horizon: int | None, files: Files, quota: Quota, reserve: int
    ) -> None:
        self.spec = spec
        self._path, self._horizon, self._files, self._quota, self._reserve = path, horizon, files, quota, reserve
        held = files.lock(path / "LOCK")
        if held is None:
            holder = files.read(path / "LOCK").decode(errors="replace")
            raise RuntimeError(
                f"{path} is open for writing by process {holder}; a store has one writer. Close it there, or open for reading."
            )
        self._held, self._process = held, os.getpid()
        self._order, self._opening = threading.Lock(), threading.Lock()
        self._background = Background()
        self._failure: Exception | None = None
        self._closed = False
        self._segments: dict[str, int] = {}
        """Open or uncommitted episodes, and the first journal segment that each needs."""
        self.recovered = Recovery()
        try:
            self.index = open_index(files, path, self.recovered)
            reconcile(files, path, self.index, self.recovered)
            replay_journal(files, path, self.index, self._commit, self.recovered)
        except BaseException:
            files.unlock(held)
            raise
        self._journal = Journal(path / "journal", files)

    @property
    def here(self) -> bool:
        """Whether this process is the writer, not a fork of it."""
        return os.getpid() == self._process

    def check(self, episode: Episode) -> None:
        check_episode(episode, self.spec, self._horizon)

    # acknowledge

    def begin(self, facts: dict[str, Any], first: dict[str, np.ndarray]) -> tuple[str, Draft]:
        """Open an episode with its first observation."""
        id = new_id()
        self._open(id, "begin", facts, first)
        return id, Draft(facts, first)

    def submit_whole(self, episode: Episode, facts: dict[str, Any]) -> str:
        """Make a whole episode durable in the journal and commit it in the background."""
        self.check(episode)
        id = new_id()
        head, tables = layout.split(episode)
        self.wait(self._open(id, "whole", {**facts, "head": layout.spell(head)}, tables))
        self.submit(id, facts, episode)
        return id

    def _open(self, id: str, kind: Kind, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
        record = pack(id, kind, facts, arrays)
        with self._opening:  # no release may come between the record and its entry
            ticket, self._segments[id] = self._append(record)
        return ticket

    def journal(self, record: bytes) -> int:
        return self._append(record)[0]

    def _append(self, record: bytes) -> tuple[int, int]:
        self._room(len(record))
        try:
            return self._journal.append(record)
        except OSError as error:
            if _is_full(error):
                raise self._full(error) from error
            raise

    def wait(self, ticket: int) -> None:
        self._journal.wait(ticket)

    def release(self, id: str) -> None:
        """Let the journal drop what only this episode needed."""
        with self._opening:
            self._segments.pop(id, None)
            self._journal.release(min(self._segments.values(), default=self._journal.segment + 1))

    def _room(self, size: int) -> None:
        if self._failure is not None:
            raise RuntimeError(f"{self._path} failed earlier ({self._failure}). Open it again; what was acknowledged is safe.")
        free = self._files.free(self._path)
        if free - size < self._reserve:
            raise StoreFullError(
                errno.ENOSPC,
                f"{self._path} has {free} bytes of disk left and keeps {self._reserve} in reserve; {size} more do not fit. "
                "Free space, or evict with a quota.",
            )

    # commit

    def append(self, episode: Episode, facts: dict[str, Any]) -> str:
        """Write a whole episode to its place, durably."""
        self.check(episode)
        id = new_id()
        self._commit(id, facts, episode)
        return id

    def submit(self, id: str, facts: dict[str, Any], episode: Episode) -> None:
        """Commit an acknowledged episode in the background."""

        def commit() -> None:
            self._commit(id, facts, episode)
            self.release(id)

        self._background.add(commit)

    def flush(self) -> None:
        """Return once every finished episode is committed."""
        self._background.flush()

    def _commit(self, id: str, facts: dict[str, Any], episode: Episode) -> None:
        head, tables = layout.split(episode)
        contents = layout.encode(tables)
        size = sum(map(len, contents.values()))
        self._room(size)
        staged = self._path / "staging" / id
        target = None
        try:
            episodes.stage(self._files, staged, contents)
            with self._order:
                sequence = self.index.next_sequence()
                row = summarise(episode, facts, id=id, sequence=sequence, bytes=size)
                if why := self._quota.excess([*self.index.rows.values(), row]):
                    raise StoreFullError(errno.EDQUOT, f"{self._path}: {why}. Raise the quota or remove some")
                target = episodes.home(self._path, row)
                episodes.publish(self._files, staged, target, row, head, contents)
                self.index.insert([row])
        except (OSError, sqlite3.Error) as error:
            self._undo(staged, target)
            if not _is_full(error):
                self._failure = error  # after a failed sync nothing can be known: stop acknowledging
                raise
            raise self._full(error) from error
        self.evict()

    def _full(self, error: Exception) -> StoreFullError:
        return StoreFullError(errno.ENOSPC, f"{self._path} is full: {error}. Free space and try again; this was not kept")

    def _undo(self, staged: Path, target: Path | None) -> None:
        """Take back a commit that failed, as far as the disk lets us; the next writer does the rest."""
        with contextlib.suppress(OSError):
            if target is not None and self._files.exists(target):
                self._files.rename(target, staged)
            self._files.remove_if_there(staged)

    # later

    def evict(self) -> list[str]:
        """Drop the oldest episodes beyond the quota. Returns their ids."""
        with self._order:
            going = self._quota.surplus(self.index.rows.values())
            if going:
                self.index.evict(going)
            for row in going:
                aside = self._path / "staging" / row.id
                self._files.rename(episodes.home(self._path, row), aside)
                self._files.remove(aside)
        return [row.id for row in going]

    def label(self, id: str, success: bool, note: str) -> None:
        """Record a person's later judgement, durably."""
        folder = self._path / "labels"
        self._files.replace(folder / f"{id}.json", seal({"success": success, "note": note, "at": time.time()}))
        with self._order:
            self.index.label(id, success)

    def set_aside(self, broken: dict[str, str]) -> None:
        """Quarantine damaged episodes."""
        with self._order:
            set_aside(self._files, self._path, self.index, broken, self.recovered)

    def close(self) -> None:
        """Wait for commits, then let go of the store. What the disk has no room for stays in the journal."""
        if not self.here or self._closed:
            return
        self._closed = True
        try:
            self._background.flush()
        finally:
            self._background.close()
            self._journal.close()
            self.index.close()
            self._files.unlock(self._held)


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
