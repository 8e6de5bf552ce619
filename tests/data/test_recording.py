"""Episodes recorded frame by frame, labelled, evicted, and given columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied.data.background import StoreFullError
from embodied.data.recorder import Recorder
from embodied.data.retention import Quota
from embodied.data.store import Store
from embodied.types import Episode, Observation

from .episodes import SPEC, make_episode
from .test_store import assert_equal


def observation(episode: Episode, row: int) -> Observation:
    images = {name: pictures[row] for name, pictures in episode.images.items()}
    return Observation(images, episode.state[row], np.array(episode.prompt), episode.time[row])


def begin(store: Store, episode: Episode) -> Recorder:
    return store.begin(observation(episode, 0), task=episode.task, seed=episode.seed)


def step(recorder: Recorder, episode: Episode, frame: int) -> None:
    recorder.step(
        episode.action[frame],
        observation(episode, frame + 1),
        requested=episode.requested[frame],
        reward=float(episode.reward[frame]),
        source="policy" if len(episode.frame) else "script",
        version=int(episode.version[frame]),
        governed=int(episode.governed[frame]),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "s", SPEC)


def test_a_recorded_episode_equals_the_one_appended_whole(store: Store) -> None:
    episode = make_episode(9, decisions=3, traced=True)
    recorder = begin(store, episode)
    for frame in range(9):
        for at, chunk, *trace in zip(episode.frame, episode.chunk, *vars(episode.trace).values(), strict=True):
            if at == frame:
                recorder.decide(chunk, type(episode.trace)(*trace))
        step(recorder, episode, frame)
    id = recorder.finish(terminated=True, truncated=False, success=True, reason="success")
    store.flush()
    assert_equal(store.read(id), episode)


def test_a_decision_ran_until_the_next_one_and_no_longer_than_its_chunk(store: Store) -> None:
    episode = make_episode(7)
    recorder = begin(store, episode)
    for frame in range(7):
        if frame in (0, 2, 3):
            recorder.decide(np.zeros((3, 2)))
        step(recorder, episode, frame)
    recorder.decide(np.zeros((3, 2)))
    id = recorder.finish(terminated=False, truncated=True, success=False, reason="time limit")
    store.flush()
    read = store.read(id)
    np.testing.assert_array_equal(read.frame, [0, 2, 3])
    np.testing.assert_array_equal(read.executed, [2, 1, 3])


def test_an_open_episode_is_recovered_as_crashed(store: Store) -> None:
    episode = make_episode(5)
    recorder = begin(store, episode)
    for frame in range(3):
        step(recorder, episode, frame)
    recorder.sync()
    store.close()
    with Store.open(store.path, write=True) as opened:
        assert opened.recovery.crashed == [recorder.id]
        assert not opened.recovery.damage
        read = opened.read(recorder.id)
        np.testing.assert_array_equal(read.action, episode.action[:3])
        np.testing.assert_array_equal(read.state, episode.state[:4])
        assert (read.terminated, read.truncated, read.success, read.reason) == (False, True, False, "crash")
    with Store.open(store.path, write=True) as again:
        assert again.ids == (recorder.id,)
        assert not again.recovery.crashed


def test_a_frame_that_does_not_fit_is_refused_before_it_is_journalled(store: Store) -> None:
    episode = make_episode(3)
    recorder = begin(store, episode)
    step(recorder, episode, 0)
    for bad in (
        replace(episode, action=np.full((3, 2), np.inf, np.float32)),
        replace(episode, state=np.zeros((4, 2), np.float32)),
        replace(episode, time=episode.time - 1),
        replace(episode, images={"top": episode.images["front"]}),
    ):
        with pytest.raises(ValueError):
            step(recorder, bad, 1)
    step(recorder, episode, 1)
    store.close()
    with Store.open(store.path, write=True) as opened:
        np.testing.assert_array_equal(opened.read(recorder.id).action, episode.action[:2])


def test_a_discarded_episode_leaves_nothing(store: Store) -> None:
    recorder = begin(store, make_episode(2))
    step(recorder, make_episode(2), 0)
    recorder.discard()
    with pytest.raises(RuntimeError, match="closed"):
        step(recorder, make_episode(2), 1)
    store.close()
    with Store.open(store.path, write=True) as opened:
        assert len(opened) == 0
        assert not opened.recovery.crashed


def test_the_journal_is_empty_once_nothing_is_open(store: Store) -> None:
    episodes = [make_episode(2, seed=i) for i in range(2)]
    first, second = (begin(store, episode) for episode in episodes)
    step(first, episodes[0], 0)
    step(second, episodes[1], 0)
    first.finish(terminated=True, truncated=False, success=True, reason="success")
    store.flush()
    assert list((store.path / "journal").iterdir())
    second.finish(terminated=True, truncated=False, success=True, reason="success")
    store.append(make_episode(3), wait=False)
    store.flush()
    assert not list((store.path / "journal").iterdir())


def test_a_late_label_is_what_everyone_reads(store: Store) -> None:
    id = store.append(make_episode(4, success=False))
    store.label(id, True, note="the camera was covered")
    with Store.open(store.path) as reader:
        assert reader.row(id).success
        assert reader.read(id).success
        store.label(id, False)
        assert not reader.row(id).success


def test_labels_survive_the_loss_of_the_index(store: Store) -> None:
    ids = [store.append(make_episode(4, success=False)) for _ in range(3)]
    store.label(ids[1], True)
    store.close()
    for path in store.path.glob("index.sqlite*"):
        path.unlink()
    with Store.open(store.path, write=True) as opened:
        assert opened.ids == tuple(ids)
        assert [row.success for row in opened.rows] == [False, True, False]


def test_a_reader_sees_what_is_committed_and_evicted_meanwhile(store: Store) -> None:
    with Store.open(store.path) as reader:
        assert len(reader) == 0
        id = store.append(make_episode(4, decisions=1))
        assert reader.ids == (id,)
        before = reader.rows
        store.close()
        with Store.open(store.path, write=True, quota=Quota(total=1)) as writer:
            assert writer.evict() == [id]
        assert reader.ids == ()
        assert len(before) == 1


def test_the_oldest_unprotected_episodes_go_first(store: Store) -> None:
    kinds: list[dict] = [{}, {"decisions": 1}, {"decisions": 1}, {"decisions": 1}, {"decisions": 1}]
    episodes = [make_episode(4, seed=i, **kind) for i, kind in enumerate(kinds)]
    episodes[1] = replace(episodes[1], source=np.array([0, 1, 1, 0], np.uint8))  # a person intervened
    ids = [store.append(episode) for episode in episodes]
    sizes = [row.bytes for row in store.rows]
    store.close()
    with Store.open(store.path, write=True, quota=Quota(total=sum(sizes) - sizes[2] - 1)) as opened:
        assert opened.evict() == [ids[2], ids[3]]
        assert opened.ids == (ids[0], ids[1], ids[4])
        assert sorted(p.name for p in (store.path / "episodes").glob("*/*")) == sorted(opened.ids)
        after = opened.append(make_episode(4, decisions=1))
        assert opened.ids[-1] == after
        assert opened.row(after).sequence == 5


def test_a_quota_of_one_stratum_leaves_the_others(store: Store) -> None:
    ids = [store.append(make_episode(4, decisions=1), stratum=name) for name in ("a", "b", "a", "b")]
    size = store.rows[0].bytes
    store.close()
    with Store.open(store.path, write=True, quota=Quota(strata={"a": size + 1})) as opened:
        assert opened.evict() == [ids[0]]


def test_protected_episodes_beyond_the_quota_are_refused_and_nothing_is_written(store: Store) -> None:
    store.append(make_episode(4))
    size = store.rows[0].bytes
    store.close()
    with Store.open(store.path, write=True, quota=Quota(total=size + 1)) as opened:
        with pytest.raises(StoreFullError, match="exceed the quota"):
            opened.append(make_episode(4))
        assert len(opened) == 1
        assert not list((store.path / "staging").iterdir())


def test_columns_lie_beside_the_episodes(store: Store) -> None:
    ids = [store.append(make_episode(n)) for n in (3, 4)]
    made = {"model": "steam", "seed": 1}
    store.write_column("advantage", [(ids[0], np.arange(3, dtype=np.float32))], made)
    store.write_column("reward/progress", [(id, np.zeros((store.row(id).length, 2))) for id in ids], made)
    assert store.columns.names == ["advantage", "reward/progress"]
    assert store.columns.provenance("advantage") == made
    store.write_column("advantage", [(ids[1], np.ones(4, np.float32))], made)
    assert store.columns.ids("advantage") == sorted(ids)
    np.testing.assert_array_equal(store.columns.read("advantage", ids[0]), [0, 1, 2])
    with pytest.raises(ValueError, match="Take another name"):
        store.write_column("advantage", [(ids[1], np.ones(4))], {"model": "recap"})
    with pytest.raises(ValueError, match="3 values"):
        store.write_column("value", [(ids[1], np.ones(3))], made)
    with pytest.raises(ValueError, match="finite"):
        store.write_column("value", [(ids[1], np.full(4, np.nan))], made)
    with pytest.raises(ValueError, match="No column 'value'"):
        store.columns.read("value", ids[0])
