"""The loop of every kind of training: update, publish, log, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .interfaces import Algorithm


def run[Batches](
    algorithm: Algorithm[Batches],
    batches: Batches,
    *,
    start: int,
    steps: int,
    log: Callable[[int, dict[str, float]], None],
    checkpoint: Callable[[int, Callable[[], dict[str, Any]]], None],
    publish: Callable[[int, Callable[[], dict[str, Tensor]]], None] = lambda version, weights: None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Run updates `start` .. `steps` and return the version reached; `stopped` ends it early, after a whole update.

    `publish` and `checkpoint` receive the version and a function, so that weights and state are only
    materialised when they are due.
    """
    version = start
    while version < steps and not stopped():
        metrics = algorithm.update(batches)
        version += 1
        publish(version, lambda: algorithm.policy_state)
        log(version, metrics)
        checkpoint(version, algorithm.state_dict)
    return version
