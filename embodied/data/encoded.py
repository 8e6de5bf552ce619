"""Demonstrations whose observations were encoded once, for policies whose encoder does not train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .. import tree
from ..interfaces import Context
from ..types import Observation, Transition
from .experience import Demonstrations, Episodes
from .sampling import stream

ENCODED_AT_ONCE = 256


class Encoded:
    """One pass of demonstrations in memory with its contexts, drawn uniformly; pictures are dropped once encoded."""

    def __init__(
        self, episodes: Episodes, encode: Callable[[Observation], Context], *, horizon: int, batch_size: int, seed: int
    ) -> None:
        demonstrations = Demonstrations(episodes, horizon=horizon, batch_size=ENCODED_AT_ONCE, seed=seed)
        self._rows = len(demonstrations)
        parts = []
        for _ in range(-(-self._rows // ENCODED_AT_ONCE)):
            batch = next(demonstrations)
            blind = replace(batch.obs, images={})
            chunk = replace(batch.chunk, context=encode(batch.obs))
            parts.append(replace(batch, obs=blind, next_obs=blind, chunk=chunk))
        # the last batch runs on into the next pass
        self._table: Transition = tree.index(tree.concat(parts), slice(0, self._rows))
        self._batch_size, self._seed, self._batch = batch_size, seed, 0

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        rows = stream(self._seed, self._batch).integers(0, self._rows, self._batch_size)
        self._batch += 1
        return tree.index(self._table, rows)

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch = int(state["batch"])
