"""Batches hold what was recorded, whatever the cache holds, and the same ones after a resume."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from embodied import tree
from embodied.data.experience import Demonstrations, Replay
from embodied.data.sampling import Fresh, Mixture
from embodied.data.store import Store
from embodied.types import Episode, Transition

from .episodes import SPEC, STATE_SPEC, make_episode

LENGTHS = (3, 2, 4, 9, 1)
EPISODES = [make_episode(n, seed=n, success=n % 2 == 0) for n in LENGTHS]
SMALL = 50_000
"""Bytes of cache that hold a part of twenty episodes."""


def assert_same(one: Transition, other: Transition) -> None:
    tree.map(np.testing.assert_array_equal, one, other)


def check(batch: Transition, episodes: dict[int, Episode], horizon: int, gamma: float, successors: bool) -> None:
    """Hold a batch against the episodes: `state` and `action` tell row and episode."""
    for i in range(len(batch.executed)):
        frame, number = (int(v) for v in batch.obs.state[i, :2])
        episode = episodes[number]
        k = min(horizon, episode.length - frame)
        assert batch.executed[i] == k
        np.testing.assert_array_equal(batch.chunk.actions[i, :k], episode.action[frame : frame + k])
        np.testing.assert_array_equal(batch.chunk.actions[i, k:], np.repeat(episode.action[-1:], horizon - k, 0))
        np.testing.assert_array_equal(batch.obs.state[i], episode.state[frame])
        np.testing.assert_array_equal(batch.next_obs.state[i], episode.state[frame + k])
        last = frame + k == episode.length
        assert batch.done[i] == last
        assert batch.success[i] == (last and episode.success)
        assert batch.discount[i] == np.float32(0 if last and episode.terminated else gamma**k)
        np.testing.assert_allclose(batch.reward[i], sum(gamma**j * episode.reward[frame + j] for j in range(k)), rtol=1e-6)
        assert batch.obs.prompt[i] == episode.prompt
        assert batch.obs.time[i] == episode.time[frame]
        assert batch.chunk.version[i] == episode.version[frame]
        for name, pictures in episode.images.items():
            np.testing.assert_array_equal(batch.obs.images[name][i], pictures[frame])
            if successors and not (last and episode.terminated):
                np.testing.assert_array_equal(batch.next_obs.images[name][i], pictures[frame + k])


@pytest.mark.parametrize("horizon", [1, 2, 5, 20])
def test_replay_never_crosses_an_episode(horizon: int) -> None:
    source = Replay(EPISODES, horizon=horizon, batch_size=32, seed=0, gamma=0.9)
    for _ in range(3):
        check(next(source), {e.seed: e for e in EPISODES}, horizon, 0.9, successors=True)


def test_a_pass_of_demonstrations_visits_every_frame_once() -> None:
    source = Demonstrations(EPISODES, horizon=4, batch_size=19, seed=0)
    assert len(source) == 19
    for _ in range(3):
        batch = next(source)
        check(batch, {e.seed: e for e in EPISODES}, 4, 1.0, successors=False)
        assert batch.next_obs.images == {}
        seen = sorted((int(n), int(f)) for f, n, _ in batch.obs.state)
        assert seen == sorted((n, f) for n in LENGTHS for f in range(n))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    with Store.create(tmp_path_factory.mktemp("experience") / "s", SPEC) as made:
        for seed in range(20):
            made.append(make_episode(10, seed=seed, decisions=seed % 2))
        made.write_column("advantage", [(row.id, row.seed + np.arange(10) / 10) for row in made.rows], {})
        made.write_column("reward/dense", [(row.id, np.full(10, row.seed)) for row in made.rows], {})
    return Store.open(made.path)


@pytest.mark.parametrize("cache_bytes", [SMALL, 1 << 30])
@pytest.mark.parametrize("kind", [Demonstrations, Replay])
def test_batches_do_not_depend_on_what_is_cached(store: Store, kind: type, cache_bytes: int) -> None:
    source = kind(store, horizon=3, batch_size=8, seed=0, cache_bytes=cache_bytes)
    episodes = {row.seed: store.read(row.id) for row in store.rows}
    for _ in range(60):
        check(next(source), episodes, 3, 1.0, successors=kind is Replay)
    assert source.figures["cache/bytes"] <= cache_bytes
    assert source.figures["cache/hit_rate"] > 0.3


def test_columns_come_along(store: Store) -> None:
    source = Replay(store, horizon=2, batch_size=64, seed=0, advantage="advantage", reward="reward/dense")
    batch = next(source)
    frame, number = batch.obs.state[:, 0], batch.obs.state[:, 1]
    np.testing.assert_allclose(batch.advantage, number + frame / 10, rtol=1e-6)
    np.testing.assert_allclose(batch.reward, number * batch.executed, rtol=1e-6)
    with pytest.raises(ValueError, match="No column 'advantge'"):
        Replay(store, horizon=2, batch_size=4, seed=0, advantage="advantge")


def test_pictures_at_decision_rows_only_give_the_decisions_as_windows() -> None:
    dense = make_episode(9)
    rows = np.array([0, 4, 7, 9])
    sparse = replace(dense, image_rows=rows, images={name: p[rows] for name, p in dense.images.items()})
    batch = next(Replay([sparse], horizon=4, batch_size=64, seed=0))
    starts = batch.obs.state[:, 0].astype(int)
    assert set(starts.tolist()) == {0, 4, 7}
    np.testing.assert_array_equal(batch.executed, np.array([4, 0, 0, 0, 3, 0, 0, 2])[starts])
    for i, start in enumerate(starts):
        np.testing.assert_array_equal(batch.obs.images["wrist"][i], dense.images["wrist"][start])
        if start != 7:
            after = start + batch.executed[i]
            np.testing.assert_array_equal(batch.next_obs.images["wrist"][i], dense.images["wrist"][after])
    with pytest.raises(ValueError, match="Take a longer horizon"):
        next(Replay([sparse], horizon=2, batch_size=64, seed=0))
    assert set(next(Demonstrations([sparse], horizon=2, batch_size=3, seed=0)).obs.state[:, 0]) == {0.0, 4.0, 7.0}


def test_interventions_are_the_frames_of_a_person() -> None:
    episode = make_episode(9, decisions=3)
    human = replace(episode, source=np.array([0, 0, 1, 1, 0, 0, 0, 1, 0], np.uint8))
    strategy = Mixture([("intervention", 0.5), ("online", 0.5)])
    batch = next(Replay([human, make_episode(5, seed=1, decisions=1)], horizon=2, batch_size=64, seed=0, strategy=strategy))
    assert set(batch.obs.state[:32, 0].tolist()) == {2.0, 3.0, 7.0}
    assert len(np.unique(batch.obs.state[32:, :2], axis=0)) > 10


def test_named_sources_are_strata(store: Store) -> None:
    others = [make_episode(5, seed=100 + i) for i in range(3)]
    strategy = Mixture([("mine", 0.25), ("theirs", 0.75)])
    source = Replay({"mine": others, "theirs": store}, horizon=2, batch_size=40, seed=0, strategy=strategy)
    assert (next(source).obs.state[:, 1] >= 100).sum() == 10


def test_sources_with_other_cameras_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="The sources have cameras"):
        Replay({"a": store, "b": [make_episode(3, spec=STATE_SPEC)]}, horizon=2, batch_size=4, seed=0)


@pytest.mark.parametrize("cache_bytes", [SMALL, 1 << 30])
def test_the_batch_after_a_resume_is_bit_identical(store: Store, cache_bytes: int) -> None:
    def make() -> Replay:
        return Replay(store, horizon=3, batch_size=8, seed=3, strategy=Mixture([("demo", 0.4), ("online", 0.6, Fresh(0.3, 20))]), cache_bytes=cache_bytes)

    straight, resumed = make(), make()
    for _ in range(37):
        next(straight)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(10):
        assert_same(next(straight), next(resumed))


@pytest.mark.parametrize("cache_bytes", [SMALL, 1 << 30])
def test_demonstrations_resume_bit_identically(store: Store, cache_bytes: int) -> None:
    def make() -> Demonstrations:
        return Demonstrations(store, horizon=3, batch_size=7, seed=3, cache_bytes=cache_bytes)

    straight, resumed = make(), make()
    for _ in range(40):
        next(straight)
    resumed.load_state_dict(straight.state_dict())
    for _ in range(40):
        assert_same(next(straight), next(resumed))


def test_episodes_that_came_after_a_checkpoint_do_not_change_the_next_batch(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", SPEC) as growing:
        growing.append(make_episode(5, seed=1))
        source = Replay(growing, horizon=2, batch_size=16, seed=0)
        next(source)
        state = source.state_dict()
        growing.append(make_episode(50, seed=2))
        resumed = Replay(growing, horizon=2, batch_size=16, seed=0)
        resumed.load_state_dict(state)
        one, other = next(source), next(resumed)
        assert_same(one, other)
        assert set(one.obs.state[:, 1]) == {1.0}
        assert_same(one := next(source), next(resumed))
        assert set(one.obs.state[:, 1]) == {1.0, 2.0}, "from then on they take part"


def test_ranks_draw_different_frames_and_share_a_pass(store: Store) -> None:
    ranks = [Replay(store, horizon=2, batch_size=16, seed=0, rank=r, ranks=4) for r in range(4)]
    drawn = {next(source).obs.state[:, :2].tobytes() for source in ranks}
    assert len(drawn) == 4
    shares = [Demonstrations(store, horizon=2, batch_size=50, seed=0, rank=r, ranks=4) for r in range(4)]
    seen = [tuple(row) for source in shares for row in next(source).obs.state[:, :2]]
    assert len(set(seen)) == 200


@pytest.mark.parametrize("kind", [Demonstrations, Replay])
def test_a_pickled_copy_draws_the_same_batches(store: Store, kind: type) -> None:
    source = kind(store, horizon=2, batch_size=5, seed=0)
    next(source)
    copy = pickle.loads(pickle.dumps(source))
    assert_same(next(source), next(copy))


def collate(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_processes_draw_streams_of_their_own(store: Store, method: str) -> None:
    source = Demonstrations(store, horizon=2, batch_size=25, seed=0)
    next(source)  # the parent has decoded before it forks
    dataset = Batches(source)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method, collate_fn=collate, timeout=60)
    seen = [tuple(row) for batch in loader for row in batch.obs.state[:, :2]]
    assert len(seen) == 150
    assert len(set(seen)) == 150


class Batches(torch.utils.data.IterableDataset):
    """Three batches of each worker."""

    def __init__(self, source: Demonstrations) -> None:
        self.source = source

    def __iter__(self) -> Any:
        source = iter(self.source)
        source.load_state_dict({"pass": 0, "at": 0})
        return (next(source) for _ in range(3))
