"""Numbers per frame computed after recording: advantages, values, labels, extra rewards.

They lie beside the episodes, which therefore never change, and serve foreign, read-only data as well: a folder
per column, `COLUMN.json` with its provenance, and one checked `.npy` file per episode.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from ..journal import Files, seal, unseal
from .episodes import DamageError


class Columns:
    """Columns by name under one folder. Names may have parts, as `reward/progress`."""

    def __init__(self, folder: str | Path, *, files: Files | None = None) -> None:
        self._folder, self._files = Path(folder), files or Files()

    @property
    def names(self) -> list[str]:
        """Every column there is, sorted."""
        found, pending = [], [self._folder]
        while pending:
            folder = pending.pop()
            entries = self._files.names(folder)
            if "COLUMN.json" in entries:
                found.append(folder.relative_to(self._folder).as_posix())
            else:
                pending += [folder / entry for entry in entries]
        return sorted(found)

    def provenance(self, name: str) -> dict[str, Any]:
        """Say where a column comes from, as it was given when it was written."""
        return self._manifest(name)["provenance"]

    def _manifest(self, name: str) -> dict[str, Any]:
        path = self._folder / name / "COLUMN.json"
        if not self._files.exists(path):
            raise ValueError(
                f"No column '{name}' in {self._folder}. Present: "
                f"{', '.join(self.names) or 'none'}. 'embodied score' writes one."
            )
        try:
            return unseal(self._files.read(path))
        except ValueError as error:
            raise DamageError(f"Column '{name}': {path} is damaged ({error}). Write the column again.") from error

    def ids(self, name: str) -> list[str]:
        """Episodes that have the column, sorted."""
        self._manifest(name)
        return [entry.removesuffix(".npy") for entry in self._files.names(self._folder / name) if entry.endswith(".npy")]

    def write(self, name: str, values: Iterable[tuple[str, np.ndarray]], provenance: dict[str, Any]) -> int:
        """Write (episode id, array [T, ...]) pairs, durably; returns how many.

        Adding to a column takes the provenance it has; another one needs another name.
        """
        folder = self._folder / name
        if self._files.exists(folder / "COLUMN.json"):
            present = self.provenance(name)
            if present != provenance:
                raise ValueError(f"Column '{name}' comes from {present}, not {provenance}. Take another name, or remove {folder}.")
        count = 0
        for id, array in values:
            if len(array) == 0 or not np.isfinite(array).all():
                raise ValueError(f"Column '{name}', episode '{id}': {array.shape} values must be at least one and finite.")
            self._files.make_folder(folder)
            self._put(folder, id, np.asarray(array))
            count += 1
        if count:
            self._files.sync_folder(folder)
            facts = {"name": name, "provenance": provenance, "created": time.time()}
            self._files.replace(folder / "COLUMN.json", seal(facts))
            for parent in folder.relative_to(self._folder.parent).parents:
                self._files.sync_folder(self._folder.parent / parent)
        return count

    def _put(self, folder: Path, id: str, array: np.ndarray) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        content = buffer.getvalue()
        fresh = folder / f"{id}.new"
        self._files.remove_if_there(fresh)
        self._files.write(fresh, content + google_crc32c.value(content).to_bytes(4, "little"))
        self._files.rename(fresh, folder / f"{id}.npy")

    def read(self, name: str, id: str) -> np.ndarray:
        """Read one episode's values [T, ...]."""
        path = self._folder / name / f"{id}.npy"
        if not self._files.exists(path):
            self._manifest(name)
            raise ValueError(f"Column '{name}' has no values for episode '{id}'. 'embodied score' adds what is missing.")
        content = self._files.read(path)
        if google_crc32c.value(content[:-4]) != int.from_bytes(content[-4:], "little") or len(content) < 5:
            raise DamageError(f"Column '{name}', episode '{id}': {path} is damaged. Write the column again.")
        return np.load(io.BytesIO(content[:-4]), allow_pickle=False)
