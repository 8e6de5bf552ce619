"""Experience from recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..types import Episode, Transition
from .sampling import Frames, stream
from .store import Store


class Demonstrations:
    """Batches of action windows for supervised training: every frame once a pass, in an order of its own.

    `batch.executed` counts the actions of a window that lie within its episode; the rest repeat the last one
    and must not be trained on. `batch.next_obs` has no pictures.
    """

    def __init__(
        self,
        episodes: Store | Sequence[Episode],
        *,
        horizon: int,
        batch_size: int,
        seed: int,
        gamma: float = 1.0,
    ) -> None:
        if isinstance(episodes, Store):
            episodes = [episodes.read(id) for id in episodes.ids]
        if not len(episodes):
            raise ValueError("There are 0 episodes to learn from. Collect or import some first.")
        self._frames = Frames(episodes)
        self._horizon, self._batch_size, self._seed, self._gamma = horizon, batch_size, seed, gamma
        self._drawn = 0
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Frames in a pass."""
        return len(self._frames.anchors)

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        places = np.arange(self._drawn, self._drawn + self._batch_size)
        self._drawn += self._batch_size
        rows = np.empty(len(places), np.int64)
        for number in np.unique(places // len(self)):
            chosen = places // len(self) == number
            rows[chosen] = self._pass(int(number))[places[chosen] % len(self)]
        return self._frames.batch(rows, horizon=self._horizon, gamma=self._gamma)

    def _pass(self, number: int) -> np.ndarray:
        if self._order[0] != number:
            self._order = (number, stream(self._seed, number).permutation(self._frames.anchors))
        return self._order[1]

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn = state["drawn"]
