"""A store of episodes on disk: appended whole, read whole, never changed.

    store/
      FORMAT.json                      format version, Spec, its hash, horizon
      LOCK                             held by the one writer
      index.sqlite                     one row an episode
      staging/<id>/                    being written
      episodes/<yyyymmdd>/<id>/        a zarr v3 group and EPISODE.json with the size and crc32c of every file
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import google_crc32c

from ..journal import Files
from ..types import Episode, Spec
from . import layout
from .ids import new_id
from .index import Index, Row, summarise
from .validate import check_episode

FORMAT = 1


class Store:
    """Episodes by id. One process writes, any number read. `create` or `open` it; it is a context manager."""

    spec: Spec
    """Gives the numbers their meaning; episodes of another schema are refused."""
    horizon: int | None
    """H of recorded chunks, where the store demands one."""

    def __init__(self, path: Path, spec: Spec, *, horizon: int | None, write: bool, files: Files) -> None:
        self.path, self.spec, self.horizon = path, spec, horizon
        self._files = files
        self._mutex = threading.Lock()
        self._held = self._lock() if write else None
        self._index = Index(files.database(path / "index.sqlite", write=write))
        if write:
            self._index.create()
        self._rows = {row.id: row for row in self._index.rows()}

    @classmethod
    def create(cls, path: str | Path, spec: Spec, *, horizon: int | None = None, files: Files | None = None) -> Store:
        """Make an empty store and open it for writing."""
        path, files = Path(path), files or Files()
        if files.exists(path) and (not path.is_dir() or files.names(path)):
            raise FileExistsError(f"{path} exists. Name a new folder, or open the store with Store.open(path, write=True).")
        for folder in ("episodes", "staging"):
            files.make_folder(path / folder)
        head = {"format": FORMAT, "schema": spec.schema, "horizon": horizon, "spec": spec.to_dict()}
        files.write(path / "FORMAT.json", json.dumps(head, indent=2).encode())
        files.sync_folder(path)
        return cls(path, spec, horizon=horizon, write=True, files=files)

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False, files: Files | None = None) -> Store:
        """Open a store for reading, or for writing by this process alone."""
        path, files = Path(path), files or Files()
        if not files.exists(path / "FORMAT.json"):
            raise ValueError(f"{path} is no store: it has no FORMAT.json. Give the folder that holds it, or import one with 'embodied data import'.")
        head = json.loads(files.read(path / "FORMAT.json"))
        if head["format"] != FORMAT:
            raise ValueError(f"{path} has format {head['format']}, this version reads {FORMAT}. Use the version that wrote it to export.")
        return cls(path, Spec.from_dict(head["spec"]), horizon=head["horizon"], write=write, files=files)

    def _lock(self) -> int:
        held = self._files.lock(self.path / "LOCK")
        if held is None:
            raise RuntimeError(f"{self.path} is open for writing elsewhere; a store has one writer. Close that one, or open for reading.")
        return held

    @property
    def ids(self) -> tuple[str, ...]:
        """Every episode, in order of commit."""
        return tuple(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The index, in order of commit."""
        return tuple(self._rows.values())

    def row(self, id: str) -> Row:
        if id not in self._rows:
            raise KeyError(f"No episode '{id}' in {self.path}, which holds {len(self)}. `ids` lists them.")
        return self._rows[id]

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, episode: Episode, *, stratum: str | None = None) -> str:
        """Write one episode; when this returns, it is durable. Returns its id."""
        if self._held is None:
            raise RuntimeError(f"{self.path} is open for reading. Open it with write=True to append.")
        check_episode(episode, self.spec, self.horizon)
        head, tables = layout.split(episode)
        files = layout.encode(tables)
        id, created = new_id(), time.time()
        staged = self.path / "staging" / id
        folders = {staged / path for name in files for path in Path(name).parents}
        for folder in sorted(folders):
            self._files.make_folder(folder)
        for name, content in files.items():
            self._files.write(staged / name, content)
        sums = {name: [len(content), google_crc32c.value(content)] for name, content in files.items()}
        with self._mutex:
            sequence = 1 + max((row.sequence for row in self._rows.values()), default=-1)
            size = sum(map(len, files.values()))
            row = summarise(episode, id=id, sequence=sequence, stratum=stratum, bytes=size, created=created)
            manifest = {"row": asdict(row), "head": asdict(head), "files": sums}
            self._files.write(staged / "EPISODE.json", json.dumps(manifest).encode())
            for folder in folders:
                self._files.sync_folder(folder)
            target = self._folder(row)
            self._files.make_folder(target.parent)
            self._files.sync_folder(target.parent.parent)
            self._files.rename(staged, target)
            self._files.sync_folder(target.parent)
            self._index.insert([row])
            self._rows[id] = row
        return id

    def read(self, id: str) -> Episode:
        """Read one episode, checking every file against its sum."""
        folder = self._folder(self.row(id))
        manifest = json.loads(self._files.read(folder / "EPISODE.json"))
        files = {}
        for name, (size, crc) in manifest["files"].items():
            content = self._files.read(folder / name)
            if len(content) != size or google_crc32c.value(content) != crc:
                raise OSError(f"Episode '{id}' of {self.path}: {name} is damaged ({len(content)} bytes, {size} written).")
            files[name] = content
        head = manifest["head"]
        cameras = {size: tuple(names) for size, names in head["cameras"].items()}
        return layout.join(layout.Head(**{**head, "cameras": cameras}), layout.decode(files))

    def _folder(self, row: Row) -> Path:
        return self.path / "episodes" / time.strftime("%Y%m%d", time.gmtime(row.created)) / row.id

    def close(self) -> None:
        self._index.close()
        if self._held is not None:
            self._files.unlock(self._held)
            self._held = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
