"""How an episode lies on disk: zarr v3 arrays, encoded and decoded in one place.

An episode is one zarr group of at most five arrays, one shard each, zstd and crc32c:

    frames        uint8 [T, bytes]          a row per frame; the attribute `columns` names dtype and shape of each field
    observations  uint8 [T + 1, bytes]      likewise; the field `image` is the row of the pictures, -1 without
    decisions     uint8 [D, bytes]          likewise; absent in demonstrations
    images/<h>x<w>  uint8 [I, C, h, w, 3]   all cameras of one size; the attribute `cameras` names them

zarr has no record type with array fields, hence rows of bytes: `numpy.dtype(columns)` reads them without a copy.
Chunks that happen to be zero are written, and a missing one is an error, so that lost data never reads as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.array_spec import ArrayConfigParams
from zarr.storage import MemoryStore

from ..types import Episode, Trace
from . import shards

CHUNK_ROWS = 16
"""Pictures per inner chunk: what is decoded at once where one picture is wanted."""
LEVEL = -1
"""Of zstd. Beside level 1, noisy pictures take 16 % more space, decode 8 times and encode 2.6 times as fast (0.1 and
0.65 ms for 64 frames of two 64x64 cameras); flat ones are the same."""
STRICT: ArrayConfigParams = {"write_empty_chunks": True, "read_missing_chunks": False}

Tables = dict[str, np.ndarray]
"""The arrays of one episode by name: record arrays `frames`, `observations`, `decisions`, pictures `images/<h>x<w>`."""


@dataclass(frozen=True)
class Head:
    """What an episode is, apart from its arrays."""

    task: str
    prompt: str
    seed: int
    schema: str
    terminated: bool
    truncated: bool
    success: bool
    reason: str
    cameras: dict[str, tuple[str, ...]]
    """Array of pictures to the cameras stacked in it, in order."""
    scene: tuple[float, ...] | None = None


def spell(head: Head) -> dict[str, Any]:
    """Spell a Head in plain values."""
    return asdict(head)


def head(facts: dict[str, Any]) -> Head:
    """Read a Head back from plain values."""
    cameras = {size: tuple(names) for size, names in facts["cameras"].items()}
    scene = facts["scene"]
    return Head(**{**facts, "cameras": cameras, "scene": None if scene is None else tuple(scene)})


def stacks(cameras: Iterable[tuple[str, int, int]]) -> dict[str, tuple[str, ...]]:
    """Say which cameras, given as (name, height, width), share an array of pictures, and in which order."""
    found: dict[str, tuple[str, ...]] = {}
    for name, height, width in sorted(cameras):
        size = f"images/{height}x{width}"
        found[size] = (*found.get(size, ()), name)
    return found


def split(episode: Episode) -> tuple[Head, Tables]:
    """Lay an episode out as records and stacked pictures."""
    frames = _records(
        requested=episode.requested,
        action=episode.action,
        reward=episode.reward,
        source=episode.source,
        version=episode.version,
        governed=episode.governed,
    )
    image = np.full(episode.length + 1, -1, np.int32)
    image[episode.image_rows] = np.arange(len(episode.image_rows))
    observed = {"state": episode.state, "time": episode.time, "image": image}
    if episode.snapshot is not None:
        observed["snapshot"] = episode.snapshot
    tables = {"frames": frames, "observations": _records(**observed)}
    if len(episode.frame):
        traced = {} if episode.trace is None else {f"trace_{k}": v for k, v in vars(episode.trace).items()}
        tables["decisions"] = _records(frame=episode.frame, executed=episode.executed, chunk=episode.chunk, **traced)
    cameras = stacks((name, *pictures.shape[1:3]) for name, pictures in episode.images.items())
    for size, names in cameras.items():
        tables[size] = np.stack([episode.images[name] for name in names], axis=1)  # [I, C, h, w, 3]
    described = Head(
        task=episode.task,
        prompt=episode.prompt,
        seed=int(episode.seed),
        schema=episode.schema,
        terminated=bool(episode.terminated),
        truncated=bool(episode.truncated),
        success=bool(episode.success),
        reason=episode.reason,
        cameras=cameras,
        scene=None if episode.scene is None else tuple(float(value) for value in episode.scene),
    )
    return described, tables


def join(head: Head, tables: Tables) -> Episode:
    """Build the episode back; pictures are views into their stacks."""
    frames, observed = tables["frames"], tables["observations"]
    decisions = tables.get("decisions", np.zeros(0, [("frame", "<i8"), ("executed", "<i8"), ("chunk", "<f4", (0, 0))]))
    names = decisions.dtype.names or ()
    action_dim = frames["action"].shape[1]
    traced = {name.removeprefix("trace_"): decisions[name] for name in names if name.startswith("trace_")}
    images = {name: tables[size][:, i] for size, cameras in head.cameras.items() for i, name in enumerate(cameras)}
    return Episode(
        requested=frames["requested"],
        action=frames["action"],
        reward=frames["reward"],
        source=frames["source"],
        version=frames["version"],
        governed=frames["governed"],
        state=observed["state"],
        time=observed["time"],
        images=images,
        image_rows=np.flatnonzero(observed["image"] >= 0),
        frame=decisions["frame"],
        executed=decisions["executed"],
        chunk=decisions["chunk"] if len(decisions) else np.zeros((0, 0, action_dim), np.float32),
        trace=Trace(**traced) if traced else None,
        terminated=head.terminated,
        truncated=head.truncated,
        success=head.success,
        reason=head.reason,
        task=head.task,
        prompt=head.prompt,
        seed=head.seed,
        schema=head.schema,
        snapshot=observed["snapshot"] if "snapshot" in (observed.dtype.names or ()) else None,
        scene=None if head.scene is None else np.array(head.scene, np.float64),
    )


def _records(**columns: np.ndarray) -> np.ndarray:
    """Zip columns of equal length into one record array, little-endian and unpadded."""
    length = len(next(iter(columns.values())))
    dtype = np.dtype([(name, column.dtype.newbyteorder("<"), column.shape[1:]) for name, column in columns.items()])
    records = np.empty(length, dtype)
    for name, column in columns.items():
        records[name] = column
    return records


def encode(tables: Tables) -> dict[str, bytes]:
    """Encode arrays as the files of a zarr v3 group, by path within it."""
    files: dict[str, Any] = {}
    root = zarr.create_group(MemoryStore(files))
    for name, table in tables.items():
        attributes: dict[str, Any] = {}
        rows = table
        if table.dtype.names is not None:
            attributes["columns"] = [[n, table.dtype[n].base.str, list(table.dtype[n].shape)] for n in table.dtype.names]
            rows = table.view(np.uint8).reshape(len(table), table.dtype.itemsize)
        depth = CHUNK_ROWS if rows.ndim > 2 else len(rows)
        whole = -(-len(rows) // depth) * depth
        root.create_array(
            name,
            data=rows,
            chunks=(depth, *rows.shape[1:]),
            shards=(whole, *rows.shape[1:]),
            compressors=[ZstdCodec(level=LEVEL), Crc32cCodec()],
            attributes=attributes,
            chunk_key_encoding={"name": "default", "separator": "."},  # folders cost a sync each
            config=STRICT,
        )
    return {path: buffer.to_bytes() for path, buffer in files.items()}


def decode(files: Mapping[str, bytes], out: Mapping[str, Sequence[np.ndarray]] | None = None) -> Tables:
    """Decode what `encode` made. The one place where arrays of a store are opened.

    Arrays named in `out` go there, CHUNK_ROWS rows a piece, and not into the result. ValueError, naming the array,
    if one is missing or not what was written.
    """
    tables: Tables = {}
    for path in files:
        name, _, leaf = path.rpartition("/")
        if leaf != "zarr.json" or not name or name == "images":
            continue
        try:
            shard = shards.plan(files[path])
            content = files[f"{name}/{shard.key}"]
            if out is not None and name in out and shard.rows == CHUNK_ROWS:
                shards.decode(shard, content, out[name])
                continue
            rows = np.empty((shard.chunks * shard.rows, *shard.shape[1:]), np.uint8)
            shards.decode(shard, content, np.split(rows, shard.chunks))
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"array {name}: {error}") from error
        tables[name] = rows[: shard.shape[0]]
        if "columns" in shard.attributes:
            columns = shard.attributes["columns"]
            dtype = np.dtype([(field, kind, tuple(shape)) for field, kind, shape in columns])
            tables[name] = tables[name].view(dtype).reshape(len(tables[name]))
    return tables
