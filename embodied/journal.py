"""The file system as the store sees it, and a journal on top of it.

All durable writing goes through `Files`, so that a test can put a simulated disk in its place that loses or
reorders whatever was not synced.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from pathlib import Path


class Files:
    """The few operations on files that durable storage needs. Nothing survives a power cut before it is synced:
    content by `sync`, names (creation, renaming, removal) by `sync_folder` of the folder that holds them."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Create a file and sync its content; its name is durable once its folder is synced."""
        with open(path, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        """List a folder, sorted."""
        return sorted(entry.name for entry in os.scandir(folder))

    def make_folder(self, path: Path) -> None:
        """Create a folder and those above it."""
        path.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def lock(self, path: Path) -> int | None:
        """Take an exclusive lock held until the process ends or `unlock`; None if another holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    def unlock(self, handle: int) -> None:
        os.close(handle)

    def database(self, path: Path, *, write: bool) -> sqlite3.Connection:
        """Open an SQLite database whose commits are durable when they return."""
        mode = "rwc" if write else "ro"
        connection = sqlite3.connect(
            f"file:{path}?mode={mode}", uri=True, check_same_thread=False, isolation_level=None
        )
        if write:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        return connection
