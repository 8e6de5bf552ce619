"""Named figures: where they go and what they mean."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np


class Sink(Protocol):
    """Takes one record of figures at a time."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Record `step`, `phase`, `wall_s`, `env_steps`, `policy_version` and named figures."""
        ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line, flushed line by line. Numbers that are not finite become null: JSON has none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({k: _finite(v) for k, v in record.items()}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, record: Mapping[str, Any]) -> None:
        for name, value in _figures(record).items():
            self._writer.add_scalar(f"{record['phase']}/{name}", value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Weights & Biases, `offline` (files in the run's folder, to be synced later) or `online`."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], mode: Literal["offline", "online"]) -> None:
        import wandb

        self._run = wandb.init(dir=str(folder), project="embodied", name=name, config=dict(config), mode=mode)

    def write(self, record: Mapping[str, Any]) -> None:
        figures = {f"{record['phase']}/{name}": value for name, value in _figures(record).items()}
        self._run.log({**figures, "env_steps": record["env_steps"], "wall_s": record["wall_s"]})

    def close(self) -> None:
        self._run.finish()


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Bound a success rate by Wilson's score interval, 95 % by default; (0, 1) for no trials.

    With p = successes / n: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z √(p(1-p)/n) it stays
    inside [0, 1] and has width at p = 1.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0 … n, got {successes} of {n}.")
    if n == 0:
        return 0.0, 1.0
    p, spread = successes / n, z * z / n
    centre = p + spread / 2
    half = z * math.sqrt(p * (1 - p) / n + spread / (4 * n))
    # At p = 0 and 1 a bound is exactly p; rounding must not push it past.
    low = 0.0 if successes == 0 else (centre - half) / (1 + spread)
    high = 1.0 if successes == n else (centre + half) / (1 + spread)
    return low, high


def explained_variance(prediction: np.ndarray, target: np.ndarray) -> float:
    """1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant; nan if targets are equal."""
    variance = float(np.var(target))
    return 1.0 - float(np.var(target - prediction)) / variance if variance > 0 else math.nan


RECORD = ("step", "phase", "wall_s", "env_steps", "policy_version")
"""The keys of a record that are no figures."""


def _figures(record: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in record.items() if k not in RECORD and v is not None}


def _finite(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
