"""A power cut at any moment loses no acknowledged frame and invents none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from embodied.data.retention import Quota
from embodied.data.store import Store
from embodied.types import Episode, Observation

from ..data.episodes import SPEC, make_episode
from .disk import PowerCut, SimulatedDisk

PATH = Path("/store")


@dataclass
class Promises:
    """What has been acknowledged, by seed of the episode."""

    attempted: dict[int, Episode] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    labels: dict[int, bool] = field(default_factory=dict)
    labelling: dict[int, bool] = field(default_factory=dict)
    droppable: set[int] = field(default_factory=set)


def observation(episode: Episode, row: int) -> Observation:
    images = {name: pictures[row] for name, pictures in episode.images.items()}
    return Observation(images, episode.state[row], np.array(episode.prompt), episode.time[row])


def record(store: Store, seed: int, promises: Promises, random: np.random.Generator) -> None:
    """Record an episode frame by frame, acknowledge some frames, and finish, discard or leave it."""
    episode = make_episode(int(random.integers(1, 6)), seed=seed)
    promises.attempted[seed] = episode
    recorder = store.begin(observation(episode, 0), task=episode.task, seed=seed)
    for frame in range(episode.length):
        recorder.step(
            episode.action[frame],
            observation(episode, frame + 1),
            requested=episode.requested[frame],
            reward=float(episode.reward[frame]),
            source="script",
            governed=int(episode.governed[frame]),
        )
        if random.random() < 0.5:
            recorder.sync()
            promises.frames[seed] = frame + 1
    end = random.choice(["finish", "discard", "leave"], p=[0.6, 0.2, 0.2])
    if end == "finish":
        recorder.finish(terminated=True, truncated=False, success=True, reason="success")
        promises.frames[seed] = episode.length
        promises.whole.add(seed)
        if random.random() < 0.5:
            store.flush()
    elif end == "discard":
        promises.droppable.add(seed)
        recorder.discard()


def work(disk: SimulatedDisk, promises: Promises, random: np.random.Generator, *, rounds: int = 3) -> None:
    """Open, append, record, label, evict, close; several times over."""
    seed = 0
    for turn in range(rounds):
        quota = Quota(total=int(random.integers(8_000, 40_000)), protected=()) if turn % 2 else Quota()
        if turn % 2:
            promises.droppable |= set(range(seed + 100))
        store = Store.open(PATH, write=True, files=disk, quota=quota, reserve=0)
        for _ in range(int(random.integers(1, 4))):
            seed += 1
            if random.random() < 0.5:
                episode = make_episode(int(random.integers(1, 6)), seed=seed)
                promises.attempted[seed] = episode
                store.append(episode, wait=random.random() < 0.5)
                promises.frames[seed] = episode.length
                promises.whole.add(seed)
            else:
                record(store, seed, promises, random)
            store.flush()
            if len(store) and random.random() < 0.4:
                row = store.rows[int(random.integers(len(store)))]
                promises.labelling[row.seed] = not row.success
                store.label(row.id, not row.success)
                promises.labels[row.seed] = not row.success
        store.close()


def check(disk: SimulatedDisk, promises: Promises) -> None:
    """Open what is left, and hold it against what was promised."""
    with Store.open(PATH, write=True, files=disk, reserve=0) as store:
        assert not store.recovery.lost
        assert all(name.startswith("journal/") for name in store.recovery.quarantined)
        found = {}
        for id in store.ids:
            episode = store.read(id)
            assert episode.seed not in found, "an episode is there twice"
            found[episode.seed] = episode
    for seed, episode in found.items():
        full, n = promises.attempted[seed], episode.length
        np.testing.assert_array_equal(episode.action, full.action[:n])
        np.testing.assert_array_equal(episode.state, full.state[: n + 1])
        np.testing.assert_array_equal(episode.images["wrist"], full.images["wrist"][: n + 1])
        np.testing.assert_array_equal(episode.governed, full.governed[:n])
        if seed in promises.whole:
            assert n == full.length
            assert episode.reason == full.reason
        allowed = {promises.labels.get(seed), promises.labelling.get(seed)} - {None} or {full.success}
        if seed not in promises.labels:
            allowed.add(full.success)
        assert episode.reason == "crash" or episode.success in allowed
    for seed, frames in promises.frames.items():
        if seed not in promises.droppable:
            assert seed in found, f"episode {seed} with {frames} acknowledged frames is gone"
            assert found[seed].length >= frames


def crash_points(seed: int, rate: float) -> int:
    """Run the work once; at a share of its operations look at a crash state, and at one crash of its recovery."""
    random, promises, disk = np.random.default_rng([seed, 1]), Promises(), SimulatedDisk()
    Store.create(PATH, SPEC, files=disk).close()
    points = 0

    def look() -> None:
        nonlocal points
        if random.random() < rate:
            points += 1
            left = disk.crash(random)
            if random.random() < 0.3:
                left = interrupt(left, random)
            check(left, promises)

    disk.watch = look
    work(disk, promises, np.random.default_rng([seed, 2]))
    return points


def interrupt(disk: SimulatedDisk, random: np.random.Generator) -> SimulatedDisk:
    """Let recovery begin and cut the power again within it."""
    steps = int(random.integers(1, 60))

    def count() -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise PowerCut

    disk.watch = count
    with suppress(PowerCut):
        Store.open(PATH, write=True, files=disk, reserve=0).close()
    return disk.crash(random)


def test_any_crash_state_keeps_what_was_acknowledged() -> None:
    assert sum(crash_points(seed, rate=0.06) for seed in range(4)) >= 100


@pytest.mark.slow
def test_two_thousand_crash_states_keep_what_was_acknowledged() -> None:
    points = seed = 0
    while points < 2000:
        seed += 1
        points += crash_points(seed, rate=0.5)
