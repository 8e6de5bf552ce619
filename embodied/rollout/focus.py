"""Play most what still fails: a curriculum over the tasks of one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .lanes import EpisodeEnd

MEMORY = 0.02
"""Weight of the newest episode in a task's running failure rate."""


class Focus:
    """Skips starts of tasks in proportion to how much less they fail than the task that fails most.

    A start is kept with probability 1 - strength * (1 - failure / worst failure): 0 keeps all, 0.8 leaves a fifth of the
    starts of a task that never fails, so that it is not forgotten.
    """

    def __init__(self, strength: float, *, seed: int) -> None:
        if not 0 <= strength < 1:
            raise ValueError(f"focus must lie in [0, 1), got {strength}; 0 plays every task alike.")
        self.strength, self._seed, self._draws = strength, seed, 0
        self.failure: dict[str, float] = {}
        """Running failure rate per task; 1 before the first episode."""

    def learn(self, ends: Sequence[EpisodeEnd]) -> None:
        """Take finished episodes into account."""
        for end in ends:
            before = self.failure.get(end.task, 1.0)
            self.failure[end.task] = before + MEMORY * ((not end.success) - before)

    def skip(self, tasks: Sequence[str]) -> np.ndarray:
        """Draw which of these starts [n] not to play."""
        failure = np.array([self.failure.get(task, 1.0) for task in tasks])
        worst = max([*self.failure.values(), *failure])
        relative = failure / worst if worst > 0 else np.ones(len(failure))
        rng = np.random.Generator(np.random.Philox(key=np.array([self._seed, self._draws], np.uint64)))
        self._draws += 1
        return rng.random(len(failure)) < self.strength * (1 - relative)

    def state_dict(self) -> dict[str, Any]:
        return {"failure": dict(self.failure), "draws": self._draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failure, self._draws = dict(state["failure"]), int(state["draws"])
