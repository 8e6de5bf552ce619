"""Record an episode frame by frame, each frame durable soon after it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..types import SOURCES, Observation, Source, Trace
from .draft import Draft, Kind, observed, pack
from .validate import check_step

if TYPE_CHECKING:
    from .writer import Writer


class Recorder:
    """One open episode. `Store.begin` makes it; `finish` or `discard` ends it."""

    id: str

    def __init__(self, writer: Writer, id: str, draft: Draft) -> None:
        self.id = id
        self._writer, self._draft = writer, draft
        self._ticket = 0
        self._open = True

    def __len__(self) -> int:
        """Frames so far."""
        return self._draft.length

    def decide(self, chunk: np.ndarray, trace: Trace | None = None) -> None:
        """Record what the policy proposes before the next frame: chunk [H, A], trace [L, H, A]."""
        traced = {} if trace is None else {name: np.asarray(value) for name, value in vars(trace).items()}
        arrays = {"chunk": np.asarray(chunk, np.float32), **traced}
        self._journal("decide", {}, arrays)
        self._draft.decide(arrays)

    def step(
        self,
        action: np.ndarray,
        observation: Observation,
        *,
        requested: np.ndarray | None = None,
        reward: float = 0.0,
        source: Source = "policy",
        version: int = -1,
        governed: int = 0,
        snapshot: np.ndarray | None = None,
    ) -> None:
        """Record one frame: the executed action [A] and the observation it led to."""
        arrays: dict[str, np.ndarray] = {
            "requested": np.asarray(action if requested is None else requested, np.float32),
            "action": np.asarray(action, np.float32),
            "reward": np.asarray(reward, np.float32),
            "source": np.asarray(SOURCES.index(source), np.uint8),
            "version": np.asarray(version, np.int64),
            "governed": np.asarray(governed, np.uint8),
            **observed(observation, snapshot),
        }
        check_step(arrays, self._writer.spec)
        if arrays["time"] < self._draft.time:
            raise ValueError(f"time runs backwards from {self._draft.time} to {arrays['time']} s. Use a monotonic clock.")
        self._journal("step", {"at": len(self)}, arrays)
        self._draft.step(arrays)

    def _journal(self, kind: Kind, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if not self._open:
            raise RuntimeError(f"Episode '{self.id}' is closed. Begin another.")
        self._ticket = self._writer.journal(pack(self.id, kind, facts, arrays))

    def sync(self) -> None:
        """Return once every frame so far is durable: this acknowledges them."""
        self._writer.wait(self._ticket)

    def finish(self, *, terminated: bool, truncated: bool, success: bool, reason: str) -> str:
        """Close the episode, durably; its commit follows in the background (`Store.flush` waits). Returns its id."""
        if not len(self):
            raise ValueError(f"Episode '{self.id}' has 0 frames; a recorded episode has at least one. Discard it.")
        end: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "success": success, "reason": reason}
        episode = self._draft.build(**end)
        self._writer.check(episode)
        self._journal("end", {"at": len(self), **end}, {})
        self._open = False
        self.sync()
        self._writer.submit(self.id, self._draft.facts, episode)
        return self.id

    def discard(self) -> None:
        """Drop the episode."""
        self._journal("discard", {}, {})
        self._open = False
        self._writer.release(self.id)
