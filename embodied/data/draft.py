"""An episode while it is being recorded, and its form in the journal."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..types import Episode, Observation, Trace

Kind = Literal["begin", "step", "decide", "end", "whole", "discard"]

_ID = 26
_LENGTH = struct.Struct("<I")


def pack(id: str, kind: Kind, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Spell one record: which episode, what kind, plain facts as JSON, arrays as they lie in memory."""
    contents = [np.asarray(array, order="C") for array in arrays.values()]
    shapes = _shapes(tuple((name, a.dtype, a.shape) for name, a in zip(arrays, contents, strict=True)))
    head = f'["{kind}", {json.dumps(facts)}, {shapes}]'.encode()
    return b"".join([id.encode(), _LENGTH.pack(len(head)), head, *(array.tobytes() for array in contents)])


@lru_cache(maxsize=1024)
def _shapes(arrays: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> str:
    """Spell names, dtypes and shapes; frames of an episode repeat them."""
    return json.dumps([[name, d.str if d.names is None else d.descr, shape] for name, d, shape in arrays])


def unpack(payload: bytes) -> tuple[str, Kind, dict[str, Any], dict[str, np.ndarray]]:
    """Read back what `pack` spelled."""
    id = payload[:_ID].decode()
    (size,) = _LENGTH.unpack_from(payload, _ID)
    at = _ID + _LENGTH.size + size
    kind, facts, descr = json.loads(payload[_ID + _LENGTH.size : at])
    arrays = {}
    for name, spelled, shape in descr:
        dtype = np.dtype(spelled if isinstance(spelled, str) else [(n, k, tuple(*s)) for n, k, *s in spelled])
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(payload, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return id, kind, facts, arrays


def observed(observation: Observation, snapshot: np.ndarray | None) -> dict[str, np.ndarray]:
    """Name the arrays of one observation row."""
    row: dict[str, np.ndarray] = {"state": np.asarray(observation.state, np.float32), "time": np.asarray(observation.time, np.float64)}
    if snapshot is not None:
        row["snapshot"] = np.asarray(snapshot, np.float64)
    return row | {f"images/{name}": np.asarray(picture) for name, picture in observation.images.items()}


class Draft:
    """Rows of one open episode, taken in one by one; `build` makes an Episode of them."""

    def __init__(self, facts: dict[str, Any], first: Mapping[str, np.ndarray]) -> None:
        self.facts = facts
        """task, prompt, seed, schema, stratum, created, scene."""
        self._observations = [first]
        self._frames: list[Mapping[str, np.ndarray]] = []
        self._decisions: list[tuple[int, Mapping[str, np.ndarray]]] = []

    @property
    def length(self) -> int:
        return len(self._frames)

    @property
    def time(self) -> float:
        """Capture time of the last observation, seconds."""
        return float(self._observations[-1]["time"])

    def step(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take in a frame and the observation it led to."""
        columns = ("requested", "action", "reward", "source", "version", "governed")
        self._frames.append({name: arrays[name] for name in columns})
        self._observations.append({name: array for name, array in arrays.items() if name not in columns})

    def decide(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take in a decision made before the next frame; of two, the later one counts."""
        if self._decisions and self._decisions[-1][0] == self.length:
            self._decisions.pop()
        self._decisions.append((self.length, arrays))

    def build(self, *, terminated: bool, truncated: bool, success: bool, reason: str) -> Episode:
        """Close the episode: stack what came, and count how many frames each decision ran."""
        frames: dict[str, Any] = {name: np.stack([frame[name] for frame in self._frames]) for name in self._frames[0]}
        pictured = [i for i, row in enumerate(self._observations) if any(name.startswith("images/") for name in row)]
        cameras = [n for n in self._observations[pictured[0]] if n.startswith("images/")] if pictured else []
        images = {n.removeprefix("images/"): np.stack([self._observations[i][n] for i in pictured]) for n in cameras}
        scene = self.facts["scene"]
        return Episode(
            **frames,
            state=np.stack([row["state"] for row in self._observations]),
            time=np.stack([row["time"] for row in self._observations]),
            images=images,
            image_rows=np.array(pictured, np.int64),
            **self._decided(),
            terminated=terminated,
            truncated=truncated,
            success=success,
            reason=reason,
            task=self.facts["task"],
            prompt=self.facts["prompt"],
            seed=self.facts["seed"],
            schema=self.facts["schema"],
            snapshot=np.stack([row["snapshot"] for row in self._observations]) if "snapshot" in self._observations[0] else None,
            scene=None if scene is None else np.array(scene, np.float64),
        )

    def _decided(self) -> dict[str, Any]:
        made = [(frame, arrays) for frame, arrays in self._decisions if frame < self.length]
        starts = np.array([frame for frame, _ in made], np.int64)
        if not made:
            nothing = np.zeros((0, 0, len(self._frames[0]["action"])), np.float32)
            return {"frame": starts, "executed": starts, "chunk": nothing, "trace": None}
        arrays = {name: np.stack([decision[name] for _, decision in made]) for name in made[0][1]}
        chunk = arrays.pop("chunk")
        executed = np.minimum(np.append(starts[1:], self.length) - starts, chunk.shape[1])
        return {"frame": starts, "executed": executed, "chunk": chunk, "trace": Trace(**arrays) if arrays else None}
