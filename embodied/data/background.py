"""One thread that works off jobs in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

PENDING = 8
"""Jobs that may wait; beyond that, whoever adds one waits."""


class StoreFullError(OSError):
    """The disk or the quota has no room. Nothing was written; what was acknowledged is safe."""


class Background:
    """Runs jobs one after another. A job that meets a full store stays first in line and is tried again when
    another one comes or `flush` asks; any other error ends the thread and is raised to whoever comes next."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._full: StoreFullError | None = None
        self._failure: BaseException | None = None
        self._closing = False

    def add(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._check()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store commits", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self._retry()
            while len(self._jobs) > PENDING and self._full is None and self._failure is None:
                self._changed.wait()

    def flush(self) -> None:
        """Return once every job is done; raise what keeps one from it."""
        with self._changed:
            self._retry()
            while self._jobs and self._full is None and self._failure is None:
                self._changed.wait()
            self._check()
            if self._full is not None:
                raise self._full

    def close(self) -> None:
        """End the thread after the present job."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _retry(self) -> None:
        self._full = None
        self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"An earlier commit failed ({self._failure}). Open the store again.") from self._failure

    def _work(self) -> None:
        while (job := self._next()) is not None:
            full: StoreFullError | None = None
            failure: BaseException | None = None
            try:
                job()
            except StoreFullError as error:
                full = error
            except BaseException as error:
                failure = error
            with self._changed:
                self._full, self._failure = full, failure
                if full is None and failure is None:
                    self._jobs.popleft()
                self._changed.notify_all()
            if failure is not None:
                return

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closing and (not self._jobs or self._full is not None):
                self._changed.wait()
            return None if self._closing else self._jobs[0]
