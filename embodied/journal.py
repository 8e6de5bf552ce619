"""The file system as durable storage sees it, and a journal on top of it.

All durable writing goes through `Files`, so that a test can put a simulated disk in its place that loses or
reorders whatever was not synced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c


class Log:
    """A file that only grows."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def append(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._handle, view) :]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._handle, size)
        os.lseek(self._handle, size, os.SEEK_SET)

    def sync(self) -> None:
        os.fdatasync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


class Files:
    """The few operations on files that durable storage needs.

    Nothing survives a power cut before it is synced: content by `sync` (and `write`, which includes it), names
    (creation, renaming, removal) by `sync_folder` of the folder that holds them.
    """

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Create a file and sync its content; its name is durable once its folder is synced."""
        log = self.log(path)
        try:
            log.append(content)
            log.sync()
        finally:
            log.close()

    def log(self, path: Path) -> Log:
        """Create a file that grows."""
        return Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        """List a folder, sorted; empty where there is none."""
        try:
            return sorted(entry.name for entry in os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, path: Path) -> None:
        """Create a folder, and those above it."""
        path.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def together(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do some of these at once: syncs that wait together cost little more than one."""
        with ThreadPoolExecutor(len(jobs)) as threads:
            for done in [threads.submit(job) for job in jobs]:
                done.result()

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or folder in one step, over a file of that name if there is one."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def free(self, path: Path) -> int:
        """Bytes that can still be written where `path` lies."""
        return shutil.disk_usage(path).free

    def lock(self, path: Path) -> int | None:
        """Take an exclusive lock, held until `unlock` or the end of the process; None if another holds it.

        The file names the process that holds it or held it last.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        return handle

    def unlock(self, handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)  # releases it for forked children too, which share the handle
        os.close(handle)

    def database(self, path: Path, *, write: bool) -> sqlite3.Connection:
        """Open an SQLite database whose commits are durable when they return."""
        uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
        if write:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        return connection

    def remove_if_there(self, path: Path) -> None:
        if self.exists(path):
            self.remove(path)

    def replace(self, path: Path, content: bytes) -> None:
        """Give a file new content, durably: after a power cut it has the old or the new, never a mixture."""
        fresh = path.with_name(path.name + ".new")
        self.remove_if_there(fresh)
        self.write(fresh, content)
        self.rename(fresh, path)
        self.sync_folder(path.parent)


def seal(facts: dict[str, Any]) -> bytes:
    """Spell facts as JSON that carries its own crc32c."""
    return json.dumps({"crc32c": google_crc32c.value(_canonical(facts)), **facts}, indent=1).encode()


def unseal(content: bytes) -> dict[str, Any]:
    """Read facts back; ValueError if they are not what was sealed."""
    facts = json.loads(content)
    if not isinstance(facts, dict) or facts.pop("crc32c", None) != google_crc32c.value(_canonical(facts)):
        raise ValueError("its crc32c does not match its content")
    return facts


def _canonical(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True).encode()


SEGMENT_BYTES = 64 << 20
"""A journal goes on in a new file beyond this, so that old ones can go while an episode is always open."""

_HEADER = struct.Struct("<III")
"""Length of a record's payload, crc32c of that length, crc32c of the payload. Zeros are no header."""


class Journal:
    """Records that are durable once `wait` returns, in files that are deleted once nobody needs them.

    Many threads may append; whoever waits first syncs for all who appended before (group commit). A failed sync
    ends the journal for good: what the kernel dropped after an error cannot be known, so nothing is
    acknowledged from then on.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder, self._files = folder, files
        self._write, self._sync = threading.Lock(), threading.Lock()
        self._segment = 1 + max((int(name.partition(".")[0]) for name in files.names(folder)), default=-1)
        self._log: Log | None = None
        self._full: list[Log] = []
        self._size = 0
        self._appended = self._durable = 0
        self._failure: OSError | None = None

    @property
    def segment(self) -> int:
        """Number of the file that takes the next record."""
        return self._segment

    def append(self, payload: bytes) -> tuple[int, int]:
        """Add a record. Returns a ticket for `wait`, and the segment that holds the record."""
        size = len(payload).to_bytes(4, "little")
        header = _HEADER.pack(len(payload), google_crc32c.value(size), google_crc32c.value(payload))
        with self._write:
            self._check()
            log = self._open()
            try:
                log.append(header + payload)
            except OSError:
                with self._fatal():
                    log.truncate(self._size)  # half a record would hide those that follow
                raise
            self._size += len(header) + len(payload)
            self._appended += 1
            return self._appended, self._segment

    def _open(self) -> Log:
        if self._log is not None and self._size > SEGMENT_BYTES:
            with self._fatal():
                self._log.sync()
            self._full.append(self._log)  # closed later: another thread may be syncing it
            self._log, self._segment = None, self._segment + 1
        if self._log is None:
            self._log, self._size = self._files.log(self._folder / f"{self._segment:08d}.wal"), 0
            with self._fatal():
                self._files.sync_folder(self._folder)
        return self._log

    def wait(self, ticket: int) -> None:
        """Return once everything up to `ticket` is durable."""
        with self._sync:
            if self._durable >= ticket:
                return
            with self._write:
                self._check()
                log, appended = self._log, self._appended
            if log is not None:  # full segments were synced when the next one began
                with self._fatal():
                    log.sync()
            self._durable = appended

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(
                self._failure.errno or errno.EIO,
                f"the journal in {self._folder} failed earlier ({self._failure}) and takes no more. "
                "Make sure that the disk works, then open the store again.",
            )

    def release(self, before: int) -> None:
        """Delete the segments below `before`; to close the present one, pass a number above it."""
        with self._sync, self._write:
            if self._log is not None and before > self._segment:
                self._full.append(self._log)
                self._log, self._durable = None, self._appended
                self._segment += 1
            self._close_full()
        for name in self._files.names(self._folder):  # nobody minds if a power cut brings one back
            if int(name.partition(".")[0]) < before:
                self._files.remove(self._folder / name)

    def close(self) -> None:
        with self._sync, self._write:
            if self._log is not None:
                self._full.append(self._log)
                self._log = None
            self._close_full()

    def _close_full(self) -> None:
        for log in self._full:
            log.close()
        self._full.clear()


def replay(content: bytes) -> tuple[list[bytes], int]:
    """Read the records of one segment. Returns them and the number of damaged bytes that follow.

    A last record cut short, or zeros, is what a crash leaves behind and no damage.
    """
    records = []
    at = 0
    while len(content) - at >= _HEADER.size:
        length, size_sum, payload_sum = _HEADER.unpack_from(content, at)
        payload = content[at + _HEADER.size : at + _HEADER.size + length]
        if google_crc32c.value(content[at : at + 4]) == size_sum:
            if len(payload) < length:
                break
            if google_crc32c.value(payload) == payload_sum:
                records.append(payload)
                at += _HEADER.size + length
                continue
        return records, len(content) - at if content[at:].strip(b"\0") else 0
    return records, 0
