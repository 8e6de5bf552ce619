"""A simulated disk that forgets what was not synced, in every way a file system may."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied.journal import Files, Log


class PowerCut(BaseException):
    """Raised in the middle of an operation; nothing but a crash state can follow."""


@dataclass
class Move:
    """What a change of names belongs to: both halves of a renaming survive, or neither."""

    durable: bool = False


@dataclass
class Node:
    """A file (`content`), a folder (`entries`) or a database (`content` is its last commit)."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    writes: list[bytes | int] = field(default_factory=list)
    """Since the last sync: appended bytes, or a size it was cut to."""
    entries: dict[str, Node] | None = None
    synced_entries: dict[str, Node] = field(default_factory=dict)
    changes: list[tuple[str, Node | None, Move]] = field(default_factory=list)
    database: bool = False


class SimulatedLog(Log):
    def __init__(self, disk: SimulatedDisk, node: Node) -> None:
        self._disk, self._node = disk, node

    def append(self, content: bytes) -> None:
        with self._disk.operation():
            self._node.content += content
            self._node.writes.append(bytes(content))

    def truncate(self, size: int) -> None:
        with self._disk.operation():
            del self._node.content[size:]
            self._node.writes.append(size)

    def sync(self) -> None:
        with self._disk.operation():
            self._node.synced, self._node.writes = bytes(self._node.content), []

    def close(self) -> None: ...


class SimulatedDatabase:
    """SQLite with synchronous = FULL: a commit is durable when it returns, and atomic before."""

    def __init__(self, disk: SimulatedDisk, node: Node) -> None:
        self._disk, self._node = disk, node
        self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        if node.content:
            self._memory.deserialize(bytes(node.content))

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if statement.startswith(("SELECT", "PRAGMA", "BEGIN")) or (self._memory.in_transaction and statement != "COMMIT"):
            return self._memory.execute(statement, values)
        with self._disk.operation():
            cursor = self._memory.execute(statement, values)
            self._node.content[:] = self._memory.serialize()
            self._node.synced = bytes(self._node.content)
        return cursor

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        return self._memory.executemany(statement, values)

    def rollback(self) -> None:
        self._memory.rollback()

    def close(self) -> None:
        self._memory.close()


class SimulatedDisk(Files):
    """`Files` in memory. `watch` is called before and after every operation that changes something; it may take
    a `crash` state and look at it, or raise PowerCut."""

    def __init__(self, root: Node | None = None) -> None:
        self._root = root or Node(entries={})
        self._mutex = threading.RLock()
        self._locks: set[Path] = set()
        self.watch: Callable[[], None] = lambda: None

    def operation(self) -> _Operation:
        return _Operation(self)

    # the states that a crash may leave

    def crash(self, random: np.random.Generator) -> SimulatedDisk:
        """Draw a legal state after a power cut now: unsynced names and bytes survive or not, in any combination."""
        with self._mutex:
            how = random.choice(["none", "all", "some"], p=[0.3, 0.1, 0.6])
            fates: dict[int, bool] = {}

            def survives(move: Move) -> bool:
                fates.setdefault(id(move), how == "all" or (how == "some" and random.random() < 0.5))
                return move.durable or fates[id(move)]

            return SimulatedDisk(_survivor(self._root, survives, random))

    # Files

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for part in path.parts[1:]:
            node = None if node is None or node.entries is None else node.entries.get(part)
        return node

    def _folder(self, path: Path) -> Node:
        node = self._find(path)
        if node is None or node.entries is None:
            raise FileNotFoundError(path)
        return node

    def _link(self, path: Path, node: Node | None, move: Move) -> None:
        folder = self._folder(path.parent)
        assert folder.entries is not None
        if node is None:
            del folder.entries[path.name]
        else:
            folder.entries[path.name] = node
        folder.changes.append((path.name, node, move))

    def read(self, path: Path) -> bytes:
        node = self._find(path)
        if node is None or node.entries is not None:
            raise FileNotFoundError(path)
        return bytes(node.content)

    def log(self, path: Path) -> Log:
        if self.exists(path):
            raise FileExistsError(path)
        node = Node()
        with self.operation():
            self._link(path, node, Move())
        return SimulatedLog(self, node)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def names(self, folder: Path) -> list[str]:
        node = self._find(folder)
        return [] if node is None else sorted(node.entries or {})

    def make_folder(self, path: Path) -> None:
        if self.exists(path):
            return
        self.make_folder(path.parent)
        with self.operation():
            self._link(path, Node(entries={}), Move())

    def sync_folder(self, path: Path) -> None:
        node = self._folder(path)
        with self.operation():
            for _, _, move in node.changes:
                move.durable = True
            node.synced_entries, node.changes = dict(node.entries or {}), []

    def together(self, jobs: Sequence[Callable[[], None]]) -> None:
        for job in jobs:  # one after another, so that a seed always gives the same crash states
            job()

    def rename(self, source: Path, target: Path) -> None:
        node = self._find(source)
        if node is None:
            raise FileNotFoundError(source)
        with self.operation():
            move = Move()
            self._link(target, node, move)
            self._link(source, None, move)

    def remove(self, path: Path) -> None:
        for name in self.names(path):
            self.remove(path / name)
        with self.operation():
            self._link(path, None, Move())

    def free(self, path: Path) -> int:
        return 1 << 40

    def lock(self, path: Path) -> int | None:
        if path in self._locks:
            return None
        self._locks.add(path)
        return 0

    def unlock(self, handle: int) -> None:
        self._locks.clear()

    def database(self, path: Path, *, write: bool) -> Any:
        node = self._find(path)
        if node is None:
            node = Node(database=True)
            folder = self._folder(path.parent)
            assert folder.entries is not None
            folder.entries[path.name] = folder.synced_entries[path.name] = node  # SQLite syncs the folder itself
        return SimulatedDatabase(self, node)


class _Operation:
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        self._disk._mutex.acquire()
        try:
            self._disk.watch()
        except BaseException:
            self._disk._mutex.release()
            raise

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._disk.watch()
        finally:
            self._disk._mutex.release()


def _survivor(node: Node, survives: Callable[[Move], bool], random: np.random.Generator) -> Node:
    if node.entries is not None:
        entries = dict(node.synced_entries)
        for name, changed, move in node.changes:
            if survives(move):
                if changed is None:
                    entries.pop(name, None)
                else:
                    entries[name] = changed
        made = {name: _survivor(child, survives, random) for name, child in entries.items()}
        return Node(entries=made, synced_entries=dict(made))
    content = bytearray(node.synced)
    if node.writes and not node.database:
        kept = random.integers(0, len(node.writes) + 1)  # a prefix of the writes, or all but holes
        holes = random.random() < 0.5
        for i, write in enumerate(node.writes):
            if isinstance(write, int):
                del content[write:]
            elif i < kept:
                content += write
            elif holes and random.random() < 0.5:
                content += write if random.random() < 0.5 else bytes(len(write))
            elif random.random() < 0.3:
                content += write[: random.integers(0, len(write) + 1)]
                break
            else:
                break
    return Node(content=content, synced=bytes(content), database=node.database)
