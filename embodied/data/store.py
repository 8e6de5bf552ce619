"""A store of episodes on disk: appended whole or frame by frame, read whole, never changed.

    FORMAT.json, FORMAT.copy.json    format version, Spec, its hash, horizon
    LOCK                             held by the one writer
    index.sqlite                     one row an episode
    journal/<n>.wal                  frames of episodes that are not committed yet
    staging/<id>/                    an episode being written or removed
    episodes/<yyyymmdd>/<id>/        a zarr v3 group, and EPISODE.json with size and crc32c of every file
    labels/<id>.json                 success or failure as a person judged it later
    columns/<name>/                  numbers per frame that were computed later
    quarantine/<id>/, <id>.json      what was damaged, and why

A crash or power cut at any moment loses nothing that was acknowledged (`append`, `Recorder.sync`, `finish` or
`label` returned) and invents nothing; the next writer completes or drops what was half done.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..journal import Files, seal
from ..types import Episode, Observation, Spec
from . import episodes, layout
from .columns import Columns
from .draft import observed
from .index import Index, Row
from .recorder import Recorder
from .recovery import Recovery, read_format
from .retention import Quota
from .validate import check_step
from .writer import Writer

FORMAT = 1
FOLDERS = ("journal", "staging", "episodes", "labels", "columns", "quarantine")
RESERVE = 64 << 20
"""Bytes of disk that a store leaves free, so that it can always say that it is full."""


class Store:
    """Episodes by id. One process writes, any number read; a reader sees what is committed meanwhile.

    `Store.create` or `Store.open` makes one; it is a context manager. A copy sent to another process reads.
    """

    path: Path
    spec: Spec
    """Gives the numbers their meaning; episodes of another schema are refused."""
    horizon: int | None
    """H of recorded chunks, where the store demands one."""
    columns: Columns
    """Numbers per frame computed later, such as advantages."""

    def __init__(self, path: Path, facts: dict[str, Any], *, files: Files, writer: Writer | None) -> None:
        self.path, self.spec, self.horizon = path, Spec.from_dict(facts["spec"]), facts["horizon"]
        self.columns = Columns(path / "columns", files=files)
        self._files, self._writer = files, writer
        self._index = _reader(files, path) if writer is None else writer.index
        self._listed: tuple[Mapping[str, Row], tuple[Row, ...]] = ({}, ())

    @classmethod
    def create(cls, path: str | Path, spec: Spec, *, horizon: int | None = None, files: Files | None = None) -> Store:
        """Make an empty store and open it for writing."""
        path, files = Path(path), files or Files()
        if files.names(path) or (files.exists(path) and not path.is_dir()):
            raise FileExistsError(f"{path} exists. Name a new folder, or open the store with Store.open(path, write=True).")
        for folder in FOLDERS:
            files.make_folder(path / folder)
        facts = {"format": FORMAT, "schema": spec.schema, "horizon": horizon, "spec": spec.to_dict(), "created": time.time()}
        for name in ("FORMAT.copy.json", "FORMAT.json"):
            files.replace(path / name, seal(facts))
        files.sync_folder(path.parent)
        return cls.open(path, write=True, files=files)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        write: bool = False,
        quota: Quota | None = None,
        reserve: int = RESERVE,
        files: Files | None = None,
    ) -> Store:
        """Open a store for reading, or for writing by this process alone."""
        path, files = Path(path), files or Files()
        facts = read_format(files, path)
        if facts["format"] != FORMAT:
            raise ValueError(f"{path} has format {facts['format']}, this version reads {FORMAT}. Export it with the version that wrote it.")
        if not write:
            return cls(path, facts, files=files, writer=None)
        spec = Spec.from_dict(facts["spec"])
        writer = Writer(path, spec, horizon=facts["horizon"], files=files, quota=quota or Quota(), reserve=reserve)
        return cls(path, facts, files=files, writer=writer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store.open, (self.path,)

    # read

    @property
    def rows(self) -> tuple[Row, ...]:
        """What can be known of every episode without reading it, in order of commit."""
        rows = self._index.rows
        if rows is not self._listed[0]:
            self._listed = (rows, tuple(rows.values()))
        return self._listed[1]

    @property
    def ids(self) -> tuple[str, ...]:
        """Every episode, in order of commit."""
        return tuple(self._index.rows)

    def __len__(self) -> int:
        return len(self._index.rows)

    def __iter__(self) -> Iterator[Episode]:
        """Read every episode, in order of commit."""
        return (self.read(id) for id in self.ids)

    def row(self, id: str) -> Row:
        """Look an episode up."""
        rows = self._index.rows
        if id not in rows:
            raise ValueError(f"No episode '{id}' in {self.path}, which holds {len(rows)}; `ids` lists them.")
        return rows[id]

    def read(self, id: str) -> Episode:
        """Read one episode; DamageError if a file of it is not what was written. Late labels are in `success`."""
        head, tables = self._load(id)
        return replace(layout.join(head, tables), success=self.row(id).success)

    def load(self, id: str, out: Mapping[str, Sequence[np.ndarray]] | None = None) -> layout.Tables:
        """Read one episode as tables; arrays named in `out` go there instead, CHUNK_ROWS rows a piece."""
        return self._load(id, out)[1]

    def _load(
        self, id: str, out: Mapping[str, Sequence[np.ndarray]] | None = None
    ) -> tuple[layout.Head, layout.Tables]:
        row = self.row(id)
        try:
            return episodes.load(self._files, episodes.home(self.path, row), out)[1:]
        except episodes.DamageError:
            self.row(id)  # gone while it was read: evicted, not damaged
            raise

    def check(self, id: str) -> None:
        """Read one episode with every file checked, and hold its row against its manifest; DamageError if not sound."""
        row = self.row(id)
        written, head, _ = episodes.load(self._files, episodes.home(self.path, row))
        if written._replace(success=row.success, sequence=row.sequence) != row or head.schema != self.spec.schema:
            raise episodes.DamageError(f"Episode '{id}': the index and EPISODE.json differ.")

    def quarantine(self, broken: Mapping[str, str]) -> None:
        """Set damaged episodes (id to reason) aside, so that the rest can be used."""
        self._writing().set_aside(dict(broken))

    @property
    def cameras(self) -> tuple[tuple[str, int, int], ...]:
        return self.spec.cameras

    # write

    @property
    def recovery(self) -> Recovery:
        """What opening for writing found and repaired."""
        return self._writing().recovered

    def _writing(self) -> Writer:
        if self._writer is None or not self._writer.here:
            raise RuntimeError(f"{self.path} is open for reading here. Open it with write=True.")
        return self._writer

    def append(self, episode: Episode, *, stratum: str | None = None, wait: bool = True) -> str:
        """Store an episode; when this returns, it is durable. Returns its id.

        Without `wait` it is durable in the journal only, which is quicker, and committed in the background.
        """
        writer, facts = self._writing(), {"stratum": stratum, "created": time.time()}
        return writer.append(episode, facts) if wait else writer.submit_whole(episode, facts)

    def begin(
        self,
        observation: Observation,
        *,
        task: str,
        seed: int = 0,
        stratum: str | None = None,
        snapshot: np.ndarray | None = None,
        scene: np.ndarray | None = None,
    ) -> Recorder:
        """Open an episode that is recorded frame by frame, from its first observation."""
        writer, first = self._writing(), observed(observation, snapshot)
        check_step(first, self.spec)
        facts = {
            "stratum": stratum,
            "created": time.time(),
            "task": task,
            "prompt": str(observation.prompt),
            "seed": seed,
            "schema": self.spec.schema,
            "scene": None if scene is None else [float(value) for value in scene],
        }
        id, draft = writer.begin(facts, first)
        return Recorder(writer, id, draft)

    def label(self, id: str, success: bool, *, note: str = "") -> None:
        """Judge an episode after the fact, durably."""
        self.row(id)
        self._writing().label(id, success, note)

    def write_column(self, name: str, values: Iterable[tuple[str, np.ndarray]], provenance: dict[str, Any]) -> int:
        """Write one value per frame for some episodes. Returns for how many."""
        self._writing()

        def checked() -> Iterator[tuple[str, np.ndarray]]:
            for id, array in values:
                if len(array) != self.row(id).length:
                    raise ValueError(f"Column '{name}' has {len(array)} values for episode '{id}' of {self.row(id).length} frames.")
                yield id, array

        return self.columns.write(name, checked(), provenance)

    def evict(self) -> list[str]:
        """Drop the oldest episodes beyond the quota now; commits do so by themselves. Returns their ids."""
        return self._writing().evict()

    def flush(self) -> None:
        """Return once every finished episode is committed and readable."""
        self._writing().flush()

    def close(self) -> None:
        """Finish commits and let go. Episodes still open stay in the journal, as after a crash."""
        if self._writer is None:
            self._index.close()
        else:
            self._writer.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _reader(files: Files, path: Path) -> Index:
    try:
        index = Index(files, path / "index.sqlite", write=False)
        len(index.rows)
        return index
    except sqlite3.Error as error:
        raise RuntimeError(f"The index of {path} cannot be read ({error}). 'embodied data repair {path}' rebuilds it.") from error
