"""Real processes, threads and file systems: killed, crowded, full, failing."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from embodied.data.background import StoreFullError
from embodied.data.retention import Quota
from embodied.data.store import Store
from embodied.journal import Files, Log
from embodied.types import Episode

from ..data.episodes import SPEC, make_episode
from ..data.test_recording import begin, step
from ..data.test_store import assert_equal

FORK = multiprocessing.get_context("fork")


def episode_of(seed: int) -> Episode:
    return make_episode(1 + seed % 7, seed=seed)


def write_for_ever(path: Path, seed: int, acknowledged: Connection) -> None:
    """Append and record episodes, telling (seed, frames) over the pipe as soon as they are acknowledged."""
    store = Store.open(path, write=True, reserve=0)
    while True:
        seed += 1
        episode = episode_of(seed)
        if seed % 3 == 0:
            store.append(episode, wait=seed % 2 == 0)
            acknowledged.send((seed, episode.length))
            continue
        recorder = begin(store, episode)
        for frame in range(episode.length):
            step(recorder, episode, frame)
            recorder.sync()
            acknowledged.send((seed, frame + 1))
        recorder.finish(terminated=True, truncated=False, success=True, reason="success")


def kill_writers(path: Path, times: int) -> None:
    Store.create(path, SPEC).close()
    random, frames, seed = np.random.default_rng(0), dict[int, int](), 0
    for _ in range(times):
        ours, theirs = FORK.Pipe(duplex=False)
        writer = FORK.Process(target=write_for_ever, args=(path, seed, theirs), daemon=True)
        writer.start()
        time.sleep(random.uniform(0.02, 0.25))
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        theirs.close()
        while ours.poll():
            try:
                which, count = ours.recv()
            except EOFError:
                break
            frames[which] = count
        seed = max(frames, default=seed) + 1
    with Store.open(path, write=True) as store:
        assert not store.recovery.damage
        found = {row.seed: store.read(row.id) for row in store.rows}
        assert len(found) == len(store), "an episode is there twice"
    assert len(frames) > times
    for which, count in frames.items():
        assert found[which].length >= count
    for which, episode in found.items():
        full = episode_of(which)
        np.testing.assert_array_equal(episode.action, full.action[: episode.length])
        np.testing.assert_array_equal(episode.images["front"], full.images["front"][: episode.length + 1])


def test_killing_the_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    kill_writers(tmp_path / "s", 6)


@pytest.mark.slow
def test_killing_the_writer_fifty_times_loses_nothing_acknowledged(tmp_path: Path) -> None:
    kill_writers(tmp_path / "s", 50)


def test_a_second_writer_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        Store.create(path, SPEC),
        pytest.raises(RuntimeError, match=f"open for writing by process {os.getpid()}; a store has one writer"),
    ):
        Store.open(path, write=True)
    _, theirs = FORK.Pipe(duplex=False)
    writer = FORK.Process(target=write_for_ever, args=(path, 0, theirs), daemon=True)
    writer.start()
    deadline = time.monotonic() + 20
    while not len(Store.open(path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match=f"by process {writer.pid}"):
        Store.open(path, write=True)
    writer.kill()
    writer.join()
    Store.open(path, write=True).close()


def test_sixteen_threads_append_without_mixing_rows(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", SPEC)

    def work(thread: int) -> None:
        for turn in range(3):
            episode = episode_of(thread * 3 + turn)
            if turn == 0:
                store.append(episode)
            elif turn == 1:
                store.append(episode, wait=False)
            else:
                recorder = begin(store, episode)
                for frame in range(episode.length):
                    step(recorder, episode, frame)
                    recorder.sync()
                recorder.finish(terminated=True, truncated=False, success=True, reason="success")

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, range(16)))
    store.flush()
    assert sorted(row.seed for row in store.rows) == list(range(48))
    assert [row.sequence for row in store.rows] == list(range(48))
    for row in store.rows:
        assert_equal(store.read(row.id), episode_of(row.seed))
    store.close()


def test_readers_see_whole_episodes_during_commits_and_evictions(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.create(path, SPEC).close()
    writer = Store.open(path, write=True, quota=Quota(total=30_000, protected=()))
    done, wrong, reads = threading.Event(), [], []

    def read() -> None:
        random = np.random.default_rng(0)
        with Store.open(path) as reader:
            while not done.is_set():
                rows = reader.rows
                if rows:
                    row = rows[int(random.integers(len(rows)))]
                    try:
                        assert_equal(reader.read(row.id), episode_of(row.seed))
                        reads.append(row.id)
                    except ValueError:
                        continue  # evicted meanwhile
                    except BaseException as error:
                        wrong.append(error)
                        raise

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seed in range(30):
        writer.append(episode_of(seed))
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(reads) > 10
    assert len(writer) < 30
    writer.close()


class Failing(Files):
    """A disk whose sync fails once, after a number of good ones."""

    def __init__(self, after: int) -> None:
        self.left = after

    def fail(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def log(self, path: Path) -> Log:
        log, sync = super().log(path), Log.sync

        def failing() -> None:
            self.fail()
            sync(log)

        log.sync = failing  # type: ignore[method-assign]
        return log


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_failed_sync_of_a_commit_stops_the_store_until_it_is_opened_again(tmp_path: Path, after: int) -> None:
    path = tmp_path / "s"
    Store.create(path, SPEC).close()
    disk = Failing(10**9)
    store = Store.open(path, write=True, files=disk)
    kept = store.append(episode_of(1))
    disk.left = after
    with pytest.raises(OSError, match="Input/output"):
        store.append(episode_of(2))
    with pytest.raises(RuntimeError, match="failed earlier"):
        store.append(episode_of(3))
    store.close()
    with Store.open(path, write=True) as opened:
        assert opened.ids == (kept,)
        assert_equal(opened.read(kept), episode_of(1))


def test_a_failed_sync_of_the_journal_is_never_acknowledged_later(tmp_path: Path) -> None:
    path, episode = tmp_path / "s", make_episode(5)
    Store.create(path, SPEC).close()
    disk = Failing(10**9)
    store = Store.open(path, write=True, files=disk)
    recorder = begin(store, episode)
    step(recorder, episode, 0)
    recorder.sync()
    step(recorder, episode, 1)
    disk.left = 1
    for _ in range(2):
        with pytest.raises(OSError):
            recorder.sync()
    with pytest.raises(OSError, match="takes no more"):
        step(recorder, episode, 2)
    store.close()
    with Store.open(path, write=True) as opened:
        assert opened.read(recorder.id).length >= 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("reserve", [0, 300_000])
@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_refuses_and_recovers(small_disk: Path, reserve: int, wait: bool) -> None:
    path, ballast = small_disk / "s", small_disk / "ballast"
    Store.create(path, SPEC).close()
    ballast.write_bytes(bytes(900_000))
    store = Store.open(path, write=True, reserve=reserve)
    stored = []
    with pytest.raises(StoreFullError, match=r"full|reserve"):
        for seed in range(200):
            stored.append(store.append(make_episode(20, seed=seed), wait=wait))
            store.flush()
    assert len(stored) > 3
    with Store.open(path) as reader:
        for i, id in enumerate(reader.ids):
            assert_equal(reader.read(id), make_episode(20, seed=i))
    ballast.unlink()
    after = store.append(make_episode(20, seed=900), wait=wait)
    store.flush()
    assert_equal(store.read(after), make_episode(20, seed=900))
    store.close()
    with Store.open(path, write=True, reserve=0) as opened:
        assert not opened.recovery.damage
        assert set(stored) <= set(opened.ids), "what was acknowledged is there"
        assert len(opened) <= len(stored) + 2


def test_recording_on_a_full_disk_keeps_what_was_acknowledged(small_disk: Path) -> None:
    path, ballast = small_disk / "s", small_disk / "ballast"
    Store.create(path, SPEC).close()
    episode = make_episode(400)
    store = Store.open(path, write=True, reserve=0)
    recorder = begin(store, episode)
    ballast.write_bytes(bytes(shutil.disk_usage(path).free - 60_000))
    frame = 0
    with pytest.raises(StoreFullError):
        for frame in range(400):
            step(recorder, episode, frame)
            recorder.sync()
    assert frame > 10
    ballast.unlink()
    for late in range(frame, 400):
        step(recorder, episode, late)
    recorder.finish(terminated=True, truncated=False, success=True, reason="success")
    store.flush()
    np.testing.assert_array_equal(store.read(recorder.id).images["wrist"], episode.images["wrist"])
    store.close()
