"""One episode's folder: written once under staging, then moved into place; read with every file checked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np

from ..journal import Files, seal, unseal
from . import layout
from .index import Row

MANIFEST = "EPISODE.json"


class DamageError(RuntimeError):
    """Stored data is missing or not what was written. The message names the episode and the file or array."""


def home(store: Path, row: Row) -> Path:
    """Where an episode lives once committed: a folder per day of its creation."""
    return store / "episodes" / time.strftime("%Y%m%d", time.gmtime(row.created)) / row.id


def stage(files: Files, folder: Path, contents: dict[str, bytes]) -> None:
    """Write and sync the files of an episode's arrays."""
    for parent in _folders(folder, contents):
        files.make_folder(parent)
    files.together([partial(files.write, folder / name, content) for name, content in contents.items()])
    files.together([partial(files.sync_folder, parent) for parent in _folders(folder, contents)[1:]])


def publish(files: Files, staged: Path, target: Path, row: Row, head: layout.Head, contents: dict[str, bytes]) -> None:
    """Seal a staged episode with its manifest and move it into place, durably."""
    sums = {name: [len(content), google_crc32c.value(content)] for name, content in contents.items()}
    files.write(staged / MANIFEST, seal({"row": row._asdict(), "head": layout.spell(head), "files": sums}))
    files.sync_folder(staged)
    if not files.exists(target.parent):
        files.make_folder(target.parent)
        files.sync_folder(target.parent.parent)
    files.rename(staged, target)
    files.sync_folder(target.parent)


def load(
    files: Files, folder: Path, out: Mapping[str, Sequence[np.ndarray]] | None = None
) -> tuple[Row, layout.Head, layout.Tables]:
    """Read an episode, checking size and crc32c of every file; `out` as for `layout.decode`."""
    try:
        facts = unseal(files.read(folder / MANIFEST))
    except (OSError, ValueError) as error:
        raise DamageError(f"Episode '{folder.name}': {MANIFEST} is missing or damaged ({error}).") from error
    contents = {}
    for name, (size, total) in facts["files"].items():
        try:
            content = files.read(folder / name)
        except OSError as error:
            raise DamageError(f"Episode '{folder.name}': {name} cannot be read ({error}).") from error
        if len(content) != size or google_crc32c.value(content) != total:
            raise DamageError(f"Episode '{folder.name}': {name} is damaged ({len(content)} bytes, {size} were written).")
        contents[name] = content
    try:
        return Row(**facts["row"]), layout.head(facts["head"]), layout.decode(contents, out)
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError(f"Episode '{folder.name}': {error}.") from error


def _folders(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    """Every folder of an episode, outer ones first."""
    inner = {folder / parent for name in contents for parent in Path(name).parents}
    return sorted(inner, key=lambda path: len(path.parts))
