"""What is appended is what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied import tree
from embodied.data.store import Store
from embodied.types import Episode

from .episodes import SPEC, make_episode


def assert_equal(one: Episode, other: Episode) -> None:
    def same(a: object, b: object) -> None:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert np.asarray(a).dtype == np.asarray(b).dtype

    tree.map(same, one, other)


@pytest.mark.parametrize(
    "episode",
    [
        make_episode(1),
        make_episode(40, decisions=10, traced=True),
        replace(make_episode(3), snapshot=np.random.default_rng(0).normal(size=(4, 6)), scene=np.array([0.1, np.pi])),
        replace(make_episode(5), images={n: np.zeros((2, 4, 5, 3), np.uint8) for n in ("front", "wrist")}, image_rows=np.array([0, 3])),
    ],
    ids=["one frame", "decisions and trace", "snapshot and scene", "black pictures at some rows"],
)
def test_read_gives_back_what_was_appended(tmp_path: Path, episode: Episode) -> None:
    with Store.create(tmp_path / "s", SPEC) as store:
        id = store.append(episode)
        assert_equal(store.read(id), episode)
    with Store.open(tmp_path / "s") as store:
        assert store.ids == (id,)
        assert store.spec == SPEC
        assert_equal(store.read(id), episode)


def test_rows_describe_episodes_in_order_of_commit(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", SPEC) as store:
        ids = tuple(store.append(make_episode(n, seed=n, success=n % 2 == 0)) for n in range(1, 6))
    with Store.open(tmp_path / "s") as store:
        assert store.ids == ids
        assert [row.length for row in store.rows] == [1, 2, 3, 4, 5]
        assert [row.success for row in store.rows] == [False, True, False, True, False]
        assert {row.stratum for row in store.rows} == {"demo"}


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", SPEC)
    store.close()
    with pytest.raises(RuntimeError, match="is closed"):
        store.append(make_episode(2))
    with pytest.raises(RuntimeError, match="is closed"):
        len(store)
    store.close()
