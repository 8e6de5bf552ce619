"""What the next writer does about a crash, and about damage."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..journal import Files, replay, seal, unseal
from ..types import Episode
from . import episodes, layout
from .draft import Draft, unpack
from .episodes import DamageError
from .index import Index, Row

NEWEST = 8
"""Episodes whose every file is checked when a store is opened; `verify` checks all."""


@dataclass
class Recovery:
    """What opening a store found half done or damaged."""

    committed: list[str] = field(default_factory=list)
    """Complete in the journal, now committed."""
    crashed: list[str] = field(default_factory=list)
    """Cut short by a crash, now committed with `truncated` and reason 'crash'."""
    adopted: list[str] = field(default_factory=list)
    """In their folder but not in the index, now in both."""
    lost: list[str] = field(default_factory=list)
    """In the index, but their folder is gone."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Moved to quarantine/, and why."""

    @property
    def damage(self) -> list[str]:
        """What was lost or set aside, one line each; empty after a mere crash."""
        return [f"{id}: its folder is gone" for id in self.lost] + [f"{id}: {why}" for id, why in self.quarantined.items()]


def quarantine(files: Files, store: Path, path: Path, why: str) -> None:
    """Set a damaged file or folder aside, with the reason beside it."""
    aside = store / "quarantine"
    target = aside / path.name
    files.make_folder(aside)
    files.remove_if_there(target)
    if files.exists(path):
        files.rename(path, target)
        files.sync_folder(path.parent)
    files.replace(aside / f"{path.name}.json", seal({"reason": why, "from": path.relative_to(store).as_posix(), "at": time.time()}))


def open_index(files: Files, store: Path, found: Recovery) -> Index:
    """Open the index for writing; a damaged one is set aside and made anew, to be filled from the folders."""
    path = store / "index.sqlite"
    try:
        index = Index(files, path, write=True)
        len(index.rows)
        return index
    except (sqlite3.DatabaseError, TypeError, ValueError) as error:
        found.quarantined[path.name] = f"{error}; rebuilt from the episodes' folders"
        quarantine(files, store, path, str(error))
        for name in ("index.sqlite-wal", "index.sqlite-shm"):
            files.remove_if_there(store / name)
        return Index(files, path, write=True)


def reconcile(files: Files, store: Path, index: Index, found: Recovery) -> None:
    """Make folders and rows agree, and check the newest episodes whole."""
    for name in files.names(store / "staging"):
        files.remove(store / "staging" / name)
    folders = {
        id: store / "episodes" / day / id for day in files.names(store / "episodes") for id in files.names(store / "episodes" / day)
    }
    rows = index.rows
    for id in folders.keys() & index.evicted():
        files.remove(folders.pop(id))
    found.lost = sorted(rows.keys() - folders.keys())
    broken: dict[str, str] = {}
    adopted: list[Row] = []
    for id in [*sorted(folders.keys() - rows.keys()), *list(rows)[-NEWEST:]]:
        try:
            if id in folders:
                row, _, _ = episodes.load(files, folders[id])
                if id not in rows:
                    adopted.append(row)
        except DamageError as error:
            broken[id] = str(error)
    set_aside(files, store, index, broken, found)
    if found.lost:
        index.forget(found.lost)
    taken = {row.sequence for row in index.rows.values()}
    for row in sorted(adopted, key=lambda row: row.sequence):
        if row.sequence in taken:
            row = row._replace(sequence=index.next_sequence())
        taken.add(row.sequence)
        index.insert([row], late=True)
        found.adopted.append(row.id)
    apply_labels(files, store, index, found)


def set_aside(files: Files, store: Path, index: Index, broken: dict[str, str], found: Recovery) -> None:
    """Quarantine damaged episodes and drop their rows."""
    if not broken:
        return
    for id, why in broken.items():
        found.quarantined[id] = why
        day = next(day for day in files.names(store / "episodes") if files.exists(store / "episodes" / day / id))
        quarantine(files, store, store / "episodes" / day / id, why)
    index.forget(broken)


def apply_labels(files: Files, store: Path, index: Index, found: Recovery) -> None:
    """Bring late labels into the index, where a crash came between the two."""
    for name in files.names(store / "labels"):
        id, _, kind = name.partition(".")
        if kind != "json" or id not in index.rows:
            continue
        try:
            success = bool(unseal(files.read(store / "labels" / name))["success"])
        except (ValueError, KeyError) as error:
            found.quarantined[f"labels/{name}"] = str(error)
            quarantine(files, store, store / "labels" / name, str(error))
            continue
        if index.rows[id].success != success:
            index.label(id, success)


Commit = Callable[[str, dict[str, Any], Episode], None]


def replay_journal(files: Files, store: Path, index: Index, commit: Commit, found: Recovery) -> None:
    """Commit what was acknowledged and not yet committed: whole episodes as they are, open ones as crashed."""
    drafts: dict[str, Draft] = {}
    ended: dict[str, tuple[dict[str, Any], Episode]] = {}
    damaged = {}
    for name in files.names(store / "journal"):
        records, bytes_left = replay(files.read(store / "journal" / name))
        if bytes_left:
            damaged[name] = f"{bytes_left} bytes at its end are damaged; what came before them was kept"
        for record in records:
            _take(record, drafts, ended)
    known = index.rows.keys() | index.evicted()
    for id, (facts, episode) in ended.items():
        if id not in known:
            commit(id, facts, episode)
            found.committed.append(id)
    for id, draft in drafts.items():
        if id not in known and draft.length:
            commit(id, draft.facts, draft.build(terminated=False, truncated=True, success=False, reason="crash"))
            found.crashed.append(id)
    for name in files.names(store / "journal"):
        if name in damaged:
            found.quarantined[f"journal/{name}"] = damaged[name]
            quarantine(files, store, store / "journal" / name, damaged[name])
        else:
            files.remove(store / "journal" / name)
    files.sync_folder(store / "journal")


def _take(record: bytes, drafts: dict[str, Draft], ended: dict[str, tuple[dict[str, Any], Episode]]) -> None:
    id, kind, facts, arrays = unpack(record)
    if kind == "begin":
        drafts[id] = Draft(facts, arrays)
    elif kind == "whole":
        ended[id] = (facts, layout.join(layout.head(facts["head"]), arrays))
    elif id not in drafts:  # its beginning was lost to damage, which is reported
        return
    elif kind == "step":
        if facts["at"] == drafts[id].length:  # steps that follow a gap are none of this episode
            drafts[id].step(arrays)
    elif kind == "decide":
        drafts[id].decide(arrays)
    elif kind == "discard":
        del drafts[id]
    else:
        length = facts.pop("at")
        if drafts[id].length == length:
            draft = drafts.pop(id)
            ended[id] = (draft.facts, draft.build(**facts))


def read_format(files: Files, store: Path) -> dict[str, Any]:
    """Read what a store is, from its FORMAT.json or, where that is damaged, from the copy."""
    for name in ("FORMAT.json", "FORMAT.copy.json"):
        try:
            return unseal(files.read(store / name))
        except (OSError, json.JSONDecodeError, ValueError):
            continue
    raise ValueError(
        f"{store} is no store: it has no readable FORMAT.json. Give the folder that holds one, or make a store with "
        "'embodied collect' or 'embodied data import'."
    )
