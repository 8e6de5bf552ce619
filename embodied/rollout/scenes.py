"""A pool of labelled random scenes to learn seeing from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import tree
from ..interfaces import HasScenes, VectorEnv
from ..types import Scenes


class ScenePool:
    """`count` random scenes, rendered once, drawn in shuffled passes of batches."""

    def __init__(self, env: VectorEnv, *, count: int, batch_size: int, seed: int) -> None:
        if not isinstance(env, HasScenes):
            raise ValueError(f"{type(env).__name__} cannot show labelled scenes; leave the phase 'perceive' out.")
        if not 1 <= batch_size <= count:
            raise ValueError(f"batch_size is {batch_size}; it must lie between 1 and the number of scenes, {count}.")
        rounds = -(-count // env.num_envs)
        self.scenes: Scenes = tree.concat([env.scenes(seed + i) for i in range(rounds)])
        """[B, ...] all of them."""
        self._batch_size = batch_size
        self._rng = np.random.default_rng(seed)
        self._queue: np.ndarray = np.zeros(0, np.int64)

    def __iter__(self) -> Iterator[Scenes]:
        return self

    def __next__(self) -> Scenes:
        if len(self._queue) < self._batch_size:
            self._queue = self._rng.permutation(len(self.scenes.targets))
        rows, self._queue = self._queue[: self._batch_size], self._queue[self._batch_size :]
        return tree.index(self.scenes, rows)
