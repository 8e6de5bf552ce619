"""What a person should know of a data set before training on it, and whether its files are sound."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from .episodes import DamageError
from .store import Store

CONSTANT = 1e-6
"""A dim whose range is below this does not move."""


def describe(store: Store) -> dict[str, Any]:
    """Read every episode and count: episodes, frames, success, lengths, sizes, ranges, and what looks odd."""
    rows = store.rows
    lengths = np.array([row.length for row in rows])
    facts: dict[str, Any] = {
        "path": str(store.path),
        "robot": store.spec.robot,
        "control_hz": store.spec.control_hz,
        "cameras": [f"{name} {height}x{width}" for name, height, width in store.spec.cameras],
        "episodes": len(rows),
        "frames": int(lengths.sum()),
        "bytes": sum(row.bytes for row in rows),
        "strata": dict(Counter(row.stratum for row in rows)),
        "tasks": dict(Counter(row.task for row in rows)),
        "ends": dict(Counter(row.reason for row in rows)),
        "columns": store.columns.names,
    }
    if not rows:
        return facts
    facts["success"] = float(np.mean([row.success for row in rows]))
    facts["length"] = {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())}
    tables = [store.load(row.id) for row in rows]
    odd: list[str] = []
    for what, names, values in (
        ("state", store.spec.state_names, np.concatenate([t["observations"]["state"] for t in tables])),
        ("action", store.spec.action_names, np.concatenate([t["frames"]["action"] for t in tables])),
    ):
        facts[what], found = _ranges(what, names, values)
        odd += found
    frozen = [row.id for row, table in zip(rows, tables, strict=True) if _repeated(table) > 0.5]
    if frozen:
        odd.append(f"more than half of the pictures repeat the one before in {len(frozen)} episodes, first {frozen[0]}: a camera froze?")
    facts["odd"] = odd
    return facts


def _ranges(what: str, names: tuple[str, ...], values: np.ndarray) -> tuple[dict[str, list[float]], list[str]]:
    low, high, mean, spread = values.min(0), values.max(0), values.mean(0), values.std(0)
    table, odd = {}, []
    for i, name in enumerate(names):
        table[name] = [float(low[i]), float(high[i]), float(mean[i]), float(spread[i])]
        if high[i] - low[i] < CONSTANT:
            odd.append(f"{what} {name} is always {low[i]:.4g}: a constant dim teaches nothing")
        if "gripper" in name and name[:1] != "d" and (low[i] < -0.05 or high[i] > 1.05):
            odd.append(f"{what} {name} runs from {low[i]:.4g} to {high[i]:.4g}: grippers are 0 closed to 1 open")
    return table, odd


def _repeated(table: dict[str, np.ndarray]) -> float:
    """Share of pictures that equal the one before, of the worst camera."""
    stacks = [stack for name, stack in table.items() if name.startswith("images/") and len(stack) > 1]
    return max((float((stack[1:] == stack[:-1]).all((2, 3, 4)).mean(0).max()) for stack in stacks), default=0.0)


def verify(store: Store) -> list[str]:
    """Check every file of every episode, label and column; one line per damage found."""
    found: list[str] = []
    for id in store.ids:
        try:
            store.check(id)
        except DamageError as error:
            found.append(str(error))
    for name in store.columns.names:
        try:
            for id in store.columns.ids(name):
                store.columns.read(name, id)
        except DamageError as error:
            found.append(str(error))
    return found
