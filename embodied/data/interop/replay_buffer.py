"""Diffusion-policy replay buffers: `data/*` with the frames of all episodes end to end, `meta/episode_ends`.

zarr format 2 or 3, a folder or one zip file. Read in place, an episode a block: chunks in these files usually
hold many frames, so that reading frame by frame decodes each chunk again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.core.array_spec import ArrayConfigParams
from zarr.errors import ChunkNotFoundError
from zarr.storage import LocalStore, ZipStore

from ...types import Episode, Spec
from .. import layout
from ..columns import Columns
from ..episodes import DamageError
from ..index import Row, summarise
from .fields import Fields, assemble, bounds, check_ends, choose_pictures, choose_scale, describe

STRICT: ArrayConfigParams = {"write_empty_chunks": True, "read_missing_chunks": False}
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
"""zarr's newer way through the codecs: a fifth faster on blocks of small chunks."""


class ReplayBuffer:
    """Episodes of a replay buffer, as a source to learn from without conversion.

    Columns computed for it lie under `side`, by default beside it.
    """

    spec: Spec
    rows: Sequence[Row]

    def __init__(self, path: str | Path, fields: Fields | None = None, *, side: str | Path | None = None) -> None:
        self._path, self._fields = Path(path), fields or Fields()
        self.columns = Columns(side if side is not None else self._path.with_name(self._path.name + ".columns"))
        self._arrays, ends = _open(self._path, missing_is_zero=self._fields.missing_is_zero)
        check_ends(ends, {name: array.shape[0] for name, array in self._arrays.items()})
        self._kept: dict[str, tuple[int, np.ndarray]] = {}
        self._ends = ends.astype(np.int64)
        self._starts = np.concatenate([[0], self._ends[:-1]])
        action, state, self._cameras = _roles(self._arrays, self._fields)
        total = int(ends[-1])
        self._action = self._numbers("action", [action], total)
        self._state = self._numbers("state", state, total)
        first = {name: self._block(key, 0, int(ends[0])) for name, key in self._cameras.items()}
        self._pictures = {name: choose_pictures(self._cameras[name], array, self._fields) for name, array in first.items()}
        low, high = bounds([self._action])
        sizes = {name: self._pictures[name](array[:1]).shape for name, array in first.items()}
        self.spec = describe(
            self._fields,
            robot=self._path.name.partition(".")[0],
            hz=None,
            state_names=[f"state_{i}" for i in range(self._state.shape[1])],
            action_names=[f"action_{i}" for i in range(self._action.shape[1])],
            low=low,
            high=high,
            cameras=[(name, shape[1], shape[2]) for name, shape in sizes.items()],
            tasks=(self._fields.task,),
            prompts=False,
        )
        bare = [self._assemble(i, {}) for i in range(len(self._ends))]
        facts = {"stratum": "demo", "created": 0.0}
        self.rows = [
            summarise(episode, facts, id=f"{i:09d}", sequence=i, bytes=0) for i, episode in enumerate(bare)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayBuffer, (self._path, self._fields)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def cameras(self) -> Sequence[tuple[str, int, int]]:
        return self.spec.cameras

    def _numbers(self, what: str, names: Sequence[str], total: int) -> np.ndarray:
        """Read whole columns of numbers, end to end, in SI units."""
        blocks = [self._block(name, 0, total) for name in names]
        values = np.concatenate([block.reshape(total, -1) for block in blocks], 1).astype(np.float64)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values).all(1)))
            raise ValueError(f"{' + '.join(names)} is not finite at row {row} of {self._path}. Repair it at its source.")
        labels = [f"{name}_{i}" for name, block in zip(names, blocks, strict=True) for i in range(block.reshape(total, -1).shape[1])]
        return choose_scale(what, labels, *bounds([values]), self._fields)(values)

    def _block(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read rows, whole chunks at a time; neighbours that share a chunk decode it once if read in order."""
        array = self._arrays[name]
        depth = array.chunks[0]
        first, last = start // depth * depth, min(-(-stop // depth) * depth, array.shape[0])
        kept_at, kept = self._kept.get(name, (-1, np.zeros(0)))
        try:
            if kept_at == first:
                rows = kept if last <= first + depth else np.concatenate([kept, np.asarray(array[first + depth : last])])
            else:
                rows = np.asarray(array[first:last])
            tail = (last - 1) // depth * depth
            if depth > (stop - start) // 4:  # decoding a small chunk again is cheaper than joining
                self._kept[name] = (tail, rows[tail - first :].copy())
            return rows[start - first : stop - first]
        except ChunkNotFoundError as error:
            raise DamageError(
                f"{self._path}: {name} lacks chunks in rows {start} to {stop}. They were lost, or zarr left out zeros when "
                "it wrote them; if you know that, say --missing-is-zero."
            ) from error
        except (OSError, ValueError, RuntimeError) as error:
            raise DamageError(f"{self._path}: {name} cannot be read in rows {start} to {stop} ({str(error).splitlines()[0]}).") from error

    def _assemble(self, number: int, images: Mapping[str, np.ndarray]) -> Episode:
        rows = slice(int(self._starts[number]), int(self._ends[number]))
        return assemble(
            self.spec,
            action=self._action[rows],
            state=self._state[rows],
            images=images,
            reward=None,
            success=self._fields.success,
            task=self._fields.task,
            prompt="",
            seed=number,
        )

    def _seen(self, number: int) -> Iterator[tuple[str, np.ndarray]]:
        """Pictures of one episode [T, h, w, 3] by camera."""
        start, stop = int(self._starts[number]), int(self._ends[number])
        return ((name, self._pictures[name](self._block(key, start, stop))) for name, key in self._cameras.items())

    def read(self, id: str) -> Episode:
        """Read one episode: a block of each camera."""
        return self._assemble(int(id), dict(self._seen(int(id))))

    def load(self, id: str, out: Mapping[str, Sequence[np.ndarray]] | None = None) -> layout.Tables:
        if not out:
            return layout.split(self.read(id))[1]
        tables = layout.split(self._assemble(int(id), {}))[1]
        length = len(tables["frames"])
        tables["observations"]["image"] = np.append(np.arange(length), -1)
        places = {name: (size, i) for size, names in layout.stacks(self.cameras).items() for i, name in enumerate(names)}
        for name, pictures in self._seen(int(id)):
            size, camera = places[name]
            for i, page in enumerate(out[size]):
                part = pictures[i * layout.CHUNK_ROWS : (i + 1) * layout.CHUNK_ROWS]
                page[: len(part), camera] = part
        return tables

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(row.id) for row in self.rows)


def _open(path: Path, *, missing_is_zero: bool) -> tuple[dict[str, zarr.Array[Any]], np.ndarray]:
    """Open the arrays of a replay buffer, and read its episode ends."""
    try:
        store = ZipStore(path, mode="r") if path.is_file() else LocalStore(path, read_only=True)
        root = zarr.open_group(store, mode="r")
        names = [name for name, _ in root["data"].arrays()]  # type: ignore[union-attr]
        config: ArrayConfigParams = {"read_missing_chunks": missing_is_zero}
        with zarr.config.set({"codec_pipeline.path": FUSED}):  # an array keeps the pipeline it was opened with
            arrays = {name: zarr.open_array(store, path=f"data/{name}", mode="r", config=config) for name in names}
        return arrays, np.asarray(zarr.open_array(store, path="meta/episode_ends", mode="r", config=STRICT)[...])
    except (OSError, KeyError, ValueError, ChunkNotFoundError) as error:
        raise ValueError(
            f"{path} is no replay buffer ({str(error).splitlines()[0]}). It needs zarr arrays under data/ and meta/episode_ends."
        ) from error


def _roles(arrays: Mapping[str, zarr.Array[Any]], fields: Fields) -> tuple[str, list[str], dict[str, str]]:
    """Say which arrays are the action, the state and the cameras."""
    for name in (*fields.state, *fields.cameras.values(), *([fields.action] if fields.action else [])):
        if name not in arrays:
            raise ValueError(f"There is no column '{name}'. Present: {', '.join(sorted(arrays))}.")
    action = fields.action or ("action" if "action" in arrays else "")
    cameras = dict(fields.cameras) or {name: name for name, array in arrays.items() if array.ndim == 4}
    flat = [name for name, array in arrays.items() if array.ndim == 2 and name != action]
    state = list(fields.state) or (["state"] if "state" in flat else flat)
    if not action or (len(state) != 1 and not fields.state):
        raise ValueError(
            f"It is not plain which of {', '.join(sorted(arrays))} are the action and the state. Say --action COLUMN and "
            "--state COLUMN,COLUMN."
        )
    return action, state, cameras


def write(path: str | Path, episodes: Sequence[Episode], *, zarr_format: Literal[2, 3] = 2) -> int:
    """Write episodes as a replay buffer; returns how many. The last observation has no place in it."""
    root = zarr.create_group(LocalStore(path), zarr_format=zarr_format)
    data, meta = root.create_group("data"), root.create_group("meta")
    columns = {
        "action": [episode.action for episode in episodes],
        "state": [episode.state[:-1] for episode in episodes],
        **{name: [episode.images[name][: episode.length] for episode in episodes] for name in episodes[0].images},
    }
    for name, parts in columns.items():
        rows = np.concatenate(parts)
        depth = max(1, min(len(rows), int(2e6 // max(rows[0].nbytes, 1))))
        data.create_array(name, data=rows, chunks=(depth, *rows.shape[1:]), config=STRICT)
    ends = np.cumsum([episode.length for episode in episodes])
    meta.create_array("episode_ends", data=ends.astype(np.int64), chunks=(len(ends),), config=STRICT)
    return len(episodes)
