"""Bad input is refused in one line that says what to do, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.data.experience import Demonstrations
from embodied.data.store import Store
from embodied.types import Episode, Spec

from .episodes import SPEC, make_episode

GOOD = make_episode(6, decisions=2)
OTHER = Spec(**{**vars(SPEC), "control_hz": 20.0})


def poisoned(array: np.ndarray) -> np.ndarray:
    bad = array.copy()
    bad.reshape(-1)[1] = np.nan
    return bad


BAD: dict[str, tuple[Callable[[], Episode], str]] = {
    "no frames": (lambda: replace(GOOD, action=GOOD.action[:0]), "0 frames"),
    "short reward": (lambda: replace(GOOD, reward=GOOD.reward[:-1]), r"reward is float32 \[5\].* takes float32 \[6\]"),
    "one state too few": (lambda: replace(GOOD, state=GOOD.state[:-1]), r"state is float32 \[6, 3\]"),
    "NaN in the state": (lambda: replace(GOOD, state=poisoned(GOOD.state)), r"state is not finite at \[0, 1\]"),
    "NaN in the action": (lambda: replace(GOOD, action=poisoned(GOOD.action)), "action is not finite"),
    "float64 actions": (lambda: replace(GOOD, action=GOOD.action.astype(np.float64)), "action is float64"),
    "an action dim too many": (lambda: replace(GOOD, action=np.zeros((6, 3), np.float32)), r"action is float32 \[6, 3\]"),
    "float pictures": (lambda: replace(GOOD, images={n: i / 255 for n, i in GOOD.images.items()}), "images/.* float64"),
    "a camera too few": (lambda: replace(GOOD, images={"front": GOOD.images["front"]}), "Record all of them"),
    "another schema": (lambda: replace(GOOD, schema=OTHER.schema), "schema"),
    "an unknown source": (lambda: replace(GOOD, source=np.full(6, 3, np.uint8)), "source holds 3"),
    "pictures out of range": (lambda: replace(GOOD, image_rows=GOOD.image_rows + 1), "image_rows must ascend"),
    "overlapping decisions": (lambda: replace(GOOD, executed=GOOD.executed + 1), "Decisions must follow"),
    "time running back": (lambda: replace(GOOD, time=-GOOD.time), "backwards"),
    "another horizon": (lambda: replace(GOOD, chunk=GOOD.chunk[:, :3]), r"chunk is float32 \[2, 3, 2\]"),
}


@pytest.mark.parametrize("make, words", BAD.values(), ids=BAD)
@pytest.mark.parametrize("wait", [True, False])
def test_a_bad_episode_is_refused(tmp_path: Path, make: Callable[[], Episode], words: str, wait: bool) -> None:
    with Store.create(tmp_path / "s", SPEC, horizon=4) as store:
        with pytest.raises(ValueError, match=words) as caught:
            store.append(make(), wait=wait)
        assert "\n" not in str(caught.value)
        assert len(store) == 0
        assert not [p for folder in ("staging", "episodes", "journal") for p in (store.path / folder).iterdir()]


def expect(kind: type[Exception], words: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_store_is_refused(tmp_path: Path) -> None:
    expect(ValueError, "is no store", Store.open, tmp_path)
    expect(ValueError, "is no store", Store.open, tmp_path / "missing")
    (tmp_path / "FORMAT.json").write_text("{}")
    expect(ValueError, "is no store", Store.open, tmp_path)
    expect(FileExistsError, "exists", Store.create, tmp_path, SPEC)


def test_an_unknown_episode_is_refused(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", SPEC) as store:
        expect(ValueError, "No episode 'x'", store.read, "x")
        expect(ValueError, "No episode 'x'", store.label, "x", True)


def test_a_reader_does_not_write(tmp_path: Path) -> None:
    Store.create(tmp_path / "s", SPEC).close()
    with Store.open(tmp_path / "s") as store:
        expect(RuntimeError, "open for reading", store.append, GOOD)


def test_an_empty_store_has_nothing_to_learn_from(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", SPEC) as store:
        expect(ValueError, "0 episodes", Demonstrations, store, horizon=4, batch_size=2, seed=0)
