"""Damaged files are found, named and set aside; whatever else there is stays readable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied.data.episodes import DamageError
from embodied.data.store import Store

from ..data.episodes import SPEC, make_episode
from ..data.test_recording import begin, step
from ..data.test_store import assert_equal

EPISODES = [make_episode(n, seed=n, decisions=n // 2, traced=True) for n in (2, 4, 6)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": Path.unlink,
}
FILES = [
    "EPISODE.json",
    "zarr.json",
    "frames/zarr.json",
    "frames/c.0.0",
    "observations/c.0.0",
    "decisions/zarr.json",
    "decisions/c.0.0",
    "images/4x5/zarr.json",
    "images/4x5/c.0.0.0.0.0",
]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "pristine"
    with Store.create(path, SPEC) as store:
        ids = [store.append(episode) for episode in EPISODES]
        store.label(ids[0], False)
        store.write_column("advantage", [(id, np.ones(store.row(id).length)) for id in ids], {"model": "m"})
    return path


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "s")
    return tmp_path / "s"


def folder(path: Path, id: str) -> Path:
    return next((path / "episodes").glob(f"*/{id}"))


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_episode_is_named_and_the_rest_is_readable(path: Path, file: str, how: str) -> None:
    with Store.open(path) as store:
        bad, *good = (store.ids[1], store.ids[0], store.ids[2])
        DAMAGE[how](folder(path, bad) / file)
        with pytest.raises(DamageError, match=bad) as caught:
            store.read(bad)
        assert file in str(caught.value)
        for id, episode in zip(good, EPISODES[::2], strict=True):
            assert_equal(replace(store.read(id), success=True), episode)
    with Store.open(path, write=True) as store:
        assert list(store.recovery.quarantined) == [bad]
        assert store.ids == tuple(good)
        assert (path / "quarantine" / bad).is_dir()
    with Store.open(path, write=True) as store:
        assert not store.recovery.damage
        assert store.ids == tuple(good)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["index.sqlite", "FORMAT.json", "LOCK"])
def test_a_damaged_file_of_the_store_costs_no_episode(path: Path, file: str, how: str) -> None:
    DAMAGE[how](path / file)
    with Store.open(path, write=True) as store:
        assert [row.length for row in store.rows] == [2, 4, 6]
        assert [row.success for row in store.rows] == [False, True, True]
        for id, episode in zip(store.ids, EPISODES, strict=True):
            assert_equal(replace(store.read(id), success=True), episode)
    with Store.open(path) as store:
        assert len(store) == 3


def test_every_flipped_byte_of_the_index_is_harmless_or_found(path: Path) -> None:
    content = (path / "index.sqlite").read_bytes()
    for at in range(0, len(content), len(content) // 60):
        flipped = bytearray(content)
        flipped[at] ^= 0x04
        (path / "index.sqlite").write_bytes(flipped)
        with Store.open(path, write=True) as store:
            assert [row.length for row in store.rows] == [2, 4, 6]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_label_is_set_aside(path: Path, how: str) -> None:
    (label,) = (path / "labels").iterdir()
    DAMAGE[how](label)
    with Store.open(path, write=True) as store:
        assert list(store.recovery.quarantined) == ([] if how == "deleted" else [f"labels/{label.name}"])
        assert not store.rows[0].success, "the index still knows"


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["values", "COLUMN.json"])
def test_a_damaged_column_is_named(path: Path, file: str, how: str) -> None:
    with Store.open(path) as store:
        id = store.ids[0]
        DAMAGE[how](path / "columns" / "advantage" / (f"{id}.npy" if file == "values" else file))
        with pytest.raises((DamageError, ValueError), match=r"Column 'advantage'|No column 'advantage'"):
            store.columns.read("advantage", id)
            store.columns.provenance("advantage")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_journal_invents_nothing(tmp_path: Path, how: str) -> None:
    episode = make_episode(8)
    with Store.create(tmp_path / "s", SPEC) as store:
        recorder = begin(store, episode)
        for frame in range(8):
            step(recorder, episode, frame)
        recorder.sync()
    (segment,) = (tmp_path / "s" / "journal").iterdir()
    DAMAGE[how](segment)
    with Store.open(tmp_path / "s", write=True) as store:
        for id in store.ids:
            read = store.read(id)
            assert 0 < read.length < 8
            np.testing.assert_array_equal(read.state, episode.state[: read.length + 1])
        assert bool(store.recovery.quarantined) == (how == "flipped")


def test_a_black_episode_is_no_damage(tmp_path: Path) -> None:
    dark = make_episode(20)
    dark = replace(
        dark,
        images={name: np.zeros_like(pictures) for name, pictures in dark.images.items()},
        action=np.zeros_like(dark.action),
        state=np.zeros_like(dark.state),
    )
    with Store.create(tmp_path / "s", SPEC) as store:
        id = store.append(dark)
    with Store.open(tmp_path / "s", write=True) as store:
        assert not store.recovery.damage
        assert_equal(store.read(id), dark)


def test_a_folder_that_is_gone_is_reported_as_lost(path: Path) -> None:
    with Store.open(path) as store:
        id = store.ids[1]
    shutil.rmtree(folder(path, id))
    with Store.open(path, write=True) as store:
        assert store.recovery.lost == [id]
        assert len(store) == 2


def test_a_folder_without_a_row_is_adopted_in_its_place(path: Path) -> None:
    with Store.open(path) as store:
        ids = store.ids
    kept = path.with_name("kept")
    shutil.move(folder(path, ids[1]), kept)
    with Store.open(path, write=True) as store:
        assert store.ids == (ids[0], ids[2])
    shutil.move(kept, folder(path, ids[0]).with_name(ids[1]))
    with Store.open(path) as reader, Store.open(path, write=True) as store:
        assert store.recovery.adopted == [ids[1]]
        assert store.ids == reader.ids == ids
