"""`embodied bench store`: what the store costs beside what people use, side by side in one run.

Every ratio is taken between the best of several alternating rounds. Pictures are drawn, with noise of +-2.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, Dataset, default_collate
from tqdm import tqdm

from ..journal import Files
from ..types import Episode, Observation, Spec
from .experience import Demonstrations, Replay
from .index import Index
from .interop import lerobot
from .interop.fields import Fields
from .interop.replay_buffer import ReplayBuffer
from .store import Store

BATCH, HORIZON = 256, 16
CAMERAS = (("front", 64, 64), ("wrist", 64, 64))
SPEC = Spec(
    robot="bench",
    tasks=("bench",),
    state_names=tuple(f"joint_{i}" for i in range(8)),
    action_names=tuple(f"motor_{i}" for i in range(6)),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
    control_hz=10.0,
    cameras=CAMERAS,
)
STATE_SPEC = Spec(**{**vars(SPEC), "cameras": ()})


def run(minutes: float = 5.0) -> dict[str, float]:
    """Measure everything; `minutes` is the length of the shuffled read that watches memory."""
    figures: dict[str, float] = {}
    parts = (_against_lerobot, _against_dp_state, _acknowledge, _commit, _quarter, _foreign, _open_many)
    with tempfile.TemporaryDirectory(prefix="embodied-bench-") as folder:
        for part in tqdm(parts, desc="bench store", disable=None):
            place = Path(folder) / part.__name__
            place.mkdir()
            figures |= part(place)
        figures |= _growth(Path(folder), minutes)
    return figures


def make_episode(length: int, seed: int, spec: Spec) -> Episode:
    """An episode with smooth motion, and pictures of a gradient, a moving square and noise."""
    random = np.random.default_rng(seed)
    pictures = {name: _draw(length + 1, h, random) for name, h, _ in spec.cameras}
    walk = np.cumsum(random.normal(0, 0.05, (length + 1, spec.state_dim + spec.action_dim)), 0).astype(np.float32)
    action = np.clip(walk[:length, spec.state_dim :], -1, 1)
    return Episode(
        requested=action,
        action=action,
        reward=np.zeros(length, np.float32),
        source=np.full(length, 2, np.uint8),
        version=np.full(length, -1, np.int64),
        governed=np.zeros(length, np.uint8),
        state=np.ascontiguousarray(walk[:, : spec.state_dim]),
        time=np.arange(length + 1) / spec.control_hz,
        images=pictures,
        image_rows=np.arange(length + 1 if pictures else 0),
        frame=np.zeros(0, np.int64),
        executed=np.zeros(0, np.int64),
        chunk=np.zeros((0, 0, spec.action_dim), np.float32),
        trace=None,
        terminated=True,
        truncated=False,
        success=True,
        reason="success",
        task="bench",
        prompt="bench",
        seed=seed,
        schema=spec.schema,
    )


def _draw(count: int, size: int, random: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[:size, :size]
    back = (np.stack([2 * x + 40, 2 * y + 60, x + y + 50], -1) % 200 + 20).astype(np.int16)
    frames = back + random.integers(-2, 3, (count, size, size, 3), np.int16)
    start, colour = random.integers(0, size // 2, 2), random.integers(0, 256, 3)
    for t in range(count):
        top, left = (start + t // 4) % (size - 12)
        frames[t, top : top + 12, left : left + 12] = colour
    return frames.astype(np.uint8)


def _fill(path: Path, episodes: int, length: int, spec: Spec = SPEC) -> Store:
    with Store.create(path, spec) as store:
        for seed in range(episodes):
            store.append(make_episode(length, seed, spec))
    return Store.open(path)


def best(*jobs: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each job, the best of alternating rounds."""
    seconds = [float("inf")] * len(jobs)
    for _ in range(rounds):
        for i, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            seconds[i] = min(seconds[i], time.perf_counter() - start)
    return seconds


def _take(source: Iterator[Any], batches: int) -> None:
    for _ in range(batches):
        next(source)


def _evict(folder: Path) -> None:
    """Drop a folder from the page cache, so that reading it reads the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file, contextlib.suppress(AttributeError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _against_lerobot(folder: Path, episodes: int = 20, length: int = 100) -> dict[str, float]:
    """Windows of two cameras: our warm batches and our first pass from disk over LeRobotDataset's, which reads in
    this process or in two loader processes, whichever is faster."""
    store = _fill(folder / "ours", episodes, length)
    lerobot.write(folder / "theirs", SPEC, iter(store), videos=False)
    frames, few = episodes * length, 512
    order = np.random.default_rng(0).permutation(frames)

    def open_theirs() -> Any:
        ahead = {"action": [i / SPEC.control_hz for i in range(HORIZON)]}
        with lerobot.installed() as dataset:
            return dataset("local/theirs", root=folder / "theirs", delta_timestamps=ahead)

    def alone(dataset: Any, count: int) -> None:
        for at in range(0, count, BATCH):
            default_collate([dataset[int(i)] for i in order[at : at + BATCH]])

    def workers(dataset: Any, count: int) -> None:
        loader = DataLoader(torch.utils.data.Subset(dataset, order[:count].tolist()), BATCH, num_workers=2)
        for _ in loader:
            pass

    def first_ours() -> None:
        fresh = Demonstrations(Store.open(folder / "ours"), horizon=HORIZON, batch_size=BATCH, seed=0)
        _take(fresh, -(-frames // BATCH))

    cold_ours = cold_theirs = float("inf")
    for read in (alone, workers):
        _evict(folder / "ours")
        cold_ours = min(cold_ours, best(first_ours, rounds=1)[0])
        _evict(folder / "theirs")
        cold_theirs = min(cold_theirs, best(lambda read=read: read(open_theirs(), frames), rounds=1)[0])  # type: ignore[misc]
    ours, theirs = Demonstrations(store, horizon=HORIZON, batch_size=BATCH, seed=0), open_theirs()
    _take(ours, 20)
    mine, *others = best(
        lambda: _take(ours, 40), lambda: alone(theirs, few), lambda: workers(theirs, few), rounds=3
    )
    return {
        "sample_vs_lerobot": min(others) / few / (mine / (40 * BATCH)),
        "cold_sample_vs_lerobot": cold_theirs / cold_ours,
        "sample_windows_per_s": 40 * BATCH / mine,
    }


class _SequenceSampler(Dataset[Any]):
    """Diffusion policy's in-memory sequence sampling, written from its description: every window that starts up
    to H - 1 frames before an episode or ends as far behind it, padded by repeating the edge frame."""

    def __init__(self, columns: dict[str, np.ndarray], ends: np.ndarray) -> None:
        self._columns = columns
        windows = []
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            for start in range(first - HORIZON + 1, end):
                inside = max(start, first), min(start + HORIZON, end)
                windows.append((*inside, inside[0] - start, inside[1] - start))
        self._windows = np.array(windows)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first, end, before, after = self._windows[index]
        sample = {}
        for name, column in self._columns.items():
            rows = column[first:end]
            if before > 0 or after < HORIZON:
                padded = np.zeros((HORIZON, *column.shape[1:]), column.dtype)
                if before > 0:
                    padded[:before] = rows[0]
                if after < HORIZON:
                    padded[after:] = rows[-1]
                padded[before:after] = rows
                rows = padded
            sample[name] = torch.from_numpy(rows)
        return sample


def _against_dp_state(folder: Path, episodes: int = 200, length: int = 120) -> dict[str, float]:
    """Windows of states and actions over diffusion policy's sampler with its DataLoader, in this process or two."""
    data = [make_episode(length, seed, STATE_SPEC) for seed in range(episodes)]
    ours = Demonstrations(data, horizon=HORIZON, batch_size=BATCH, seed=0)
    columns = {"state": np.concatenate([e.state[:-1] for e in data]), "action": np.concatenate([e.action for e in data])}
    sampler = _SequenceSampler(columns, np.cumsum([e.length for e in data]))

    def theirs(processes: int) -> None:
        loader = DataLoader(sampler, BATCH, shuffle=True, num_workers=processes)
        for _ in loader:
            pass

    _take(ours, len(sampler) // BATCH)
    mine, *others = best(
        lambda: _take(ours, len(sampler) // BATCH), lambda: theirs(0), lambda: theirs(2), rounds=3
    )
    return {"sample_vs_dp_state": min(others) / mine}


def _plain(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _acknowledge(folder: Path, frames: int = 100) -> dict[str, float]:
    """Median wait of an actor for one frame to be durable, over the same bytes appended and fsynced plainly."""
    episode = make_episode(frames, 0, SPEC)
    seen = [
        Observation({n: p[t] for n, p in episode.images.items()}, episode.state[t], np.array("bench"), episode.time[t])
        for t in range(frames + 1)
    ]
    ours, plain = [], []
    with Store.create(folder / "s", SPEC) as store, open(folder / "plain", "wb", buffering=0) as file:
        recorder = store.begin(seen[0], task="bench")
        (segment,) = (folder / "s" / "journal").iterdir()
        for t in range(frames):
            before = segment.stat().st_size
            start = time.perf_counter()
            recorder.step(episode.action[t], seen[t + 1])
            recorder.sync()
            ours.append(time.perf_counter() - start)
            content = os.urandom(segment.stat().st_size - before)
            start = time.perf_counter()
            file.write(content)
            os.fsync(file.fileno())
            plain.append(time.perf_counter() - start)
        recorder.discard()
    return {"ack_vs_plain_fsync": float(np.median(ours) / np.median(plain)), "ack_ms": 1e3 * float(np.median(ours))}


def _commit(folder: Path, rounds: int = 20) -> dict[str, float]:
    """Median commit of a 100-frame episode of two cameras, over its bytes written and fsynced plainly."""
    episode = make_episode(100, 0, SPEC)
    content = b"".join(np.ascontiguousarray(p).tobytes() for p in (*episode.images.values(), episode.state, episode.action))
    ours, plain = [], []
    with Store.create(folder / "s", SPEC) as store:
        for i in range(rounds):
            start = time.perf_counter()
            store.append(episode)
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            _plain(folder / f"plain{i}", content)
            plain.append(time.perf_counter() - start)
    return {"commit_vs_plain_fsync": float(np.median(ours) / np.median(plain)), "commit_ms": 1e3 * float(np.median(ours))}


def _quarter(folder: Path, episodes: int = 160, length: int = 64) -> dict[str, float]:
    """Batches with a quarter of the data in memory, one episode replaced per batch, over batches with all of it;
    and whether four passes use every episode alike (chi-square)."""
    store = _fill(folder / "s", episodes, length)
    frames = episodes * length
    size = frames * 2 * 64 * 64 * 3
    whole, quarter = (
        Replay(store, horizon=HORIZON, batch_size=BATCH, seed=0, cache_bytes=b) for b in (4 * size, size // 4)
    )
    for source in (whole, quarter):
        _take(source, 80)
    loaded, rounds = quarter.figures["cache/loaded"], 10
    each = 4 * frames // BATCH // rounds
    mine, theirs = best(lambda: _take(quarter, each), lambda: _take(whole, each), rounds=rounds)
    replaced = (quarter.figures["cache/loaded"] - loaded) / (rounds * each)
    drawn = np.concatenate([quarter.draw().episode for _ in range(rounds * each)])
    counts = np.bincount(drawn, minlength=episodes)
    expected = rounds * each * BATCH / episodes
    return {
        "quarter_cache_vs_ram": theirs / mine,
        "quarter_cache_replaced_per_batch": replaced,
        "quarter_cache_use_p": _p_value(float(((counts - expected) ** 2 / expected).sum()), episodes - 1),
    }


def _p_value(chi: float, degrees: int) -> float:
    """Probability of a larger chi-square by chance."""
    return float(torch.special.gammaincc(torch.tensor(degrees / 2.0, dtype=torch.float64), torch.tensor(chi / 2.0, dtype=torch.float64)))


def _foreign(folder: Path, episodes: int = 16) -> dict[str, float]:
    """Frames of 96x96 pictures out of a replay buffer, an episode a block, over one index at a time in random order."""
    figures = {}
    for chunk in (8, 161):
        path = folder / f"{chunk}.zarr"
        pictures = np.concatenate([_draw(125, 96, np.random.default_rng(seed)) for seed in range(episodes)])
        root = zarr.create_group(path, zarr_format=2)
        pack = numcodecs.Blosc("zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)  # its compressor for disks
        root.create_array("data/img", data=pictures, chunks=(chunk, 96, 96, 3), compressors=pack)
        for name, dims in (("state", 5), ("action", 2)):
            root.create_array(f"data/{name}", data=np.ones((len(pictures), dims), np.float32), chunks=(1000, dims))
        root.create_array("meta/episode_ends", data=125 * np.arange(1, episodes + 1), chunks=(episodes,))
        array = zarr.open_array(path, path="data/img", mode="r")
        order, few = np.random.default_rng(0).permutation(len(pictures)), 400 if chunk == 8 else 60
        source = ReplayBuffer(path, Fields(hz=10.0))

        def blocks(source: ReplayBuffer = source, count: int = len(pictures)) -> None:
            batches = Demonstrations(source, horizon=1, batch_size=BATCH, seed=0)
            _take(batches, -(-count // BATCH))

        def one_by_one(array: Any = array, rows: Sequence[int] = order[:few].tolist()) -> None:
            for row in rows:
                array[row]

        mine, theirs = best(blocks, one_by_one, rounds=3)
        figures[f"foreign_read_{chunk}"] = theirs / few / (mine / len(pictures))
    return figures


def _open_many(folder: Path, count: int = 100_000) -> dict[str, float]:
    """Seconds to open a store for reading and to list the `count` episodes of its index."""
    with _fill(folder / "s", 8, 10, STATE_SPEC) as store:
        last = store.rows[-1]
    index = Index(Files(), folder / "s" / "index.sqlite", write=True)
    index.insert(last._replace(id=f"{i:026d}", sequence=last.sequence + 1 + i) for i in range(count))
    index.close()

    def list_all() -> None:
        with Store.open(folder / "s") as opened:
            assert len(opened.rows) >= count  # rows are read when they are first asked for

    return {"open_100k_s": best(list_all, rounds=3)[0]}


def _growth(folder: Path, minutes: float) -> dict[str, float]:
    """Growth of this process' memory over a long shuffled read through a cache of a quarter of the data."""
    store = Store.open(folder / "_quarter" / "s")
    source = Demonstrations(store, horizon=HORIZON, batch_size=BATCH, seed=0, cache_bytes=len(store) * 64 * 2 * 64 * 64 * 3 // 4)
    _take(source, 300)
    before, end = _resident(), time.monotonic() + 60 * minutes
    peak = before
    with tqdm(desc="memory", disable=None) as bar:
        while time.monotonic() < end:
            _take(source, 100)
            peak = max(peak, _resident())
            bar.update(100)
    return {"rss_growth_mib": (peak - before) / 2**20}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
