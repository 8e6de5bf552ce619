"""What every vector environment here asks of its caller: whole resets, finite actions, and lanes that still run."""

from __future__ import annotations

from typing import Any

import numpy as np


def lanes_to_reset(options: dict[str, Any] | None, lanes: int) -> np.ndarray:
    """int64 [n]: the lanes of `options["reset_mask"]`, all of them without one."""
    if options is None or "reset_mask" not in options:
        return np.arange(lanes)
    mask = np.asarray(options["reset_mask"])
    if mask.dtype != bool or mask.shape != (lanes,) or not mask.any():
        raise ValueError(
            f"reset_mask must be bool [{lanes}] with at least one lane set, got {mask.dtype} {list(mask.shape)}."
        )
    return np.flatnonzero(mask)


def check_step(actions: np.ndarray, lanes: np.ndarray, ended: np.ndarray, names: tuple[str, ...]) -> None:
    """Refuse actions [n, H, A] of another shape or not finite, and lanes [n] that have `ended` (bool [n])."""
    width = len(names)
    if actions.ndim != 3 or actions.shape[0] != len(lanes) or actions.shape[1] < 1 or actions.shape[2] != width:
        raise ValueError(f"actions has shape {actions.shape}; {len(lanes)} lanes take [{len(lanes)}, H, {width}].")
    wrong = np.argwhere(~np.isfinite(actions))
    if len(wrong):
        row, frame, dim = wrong[0]
        raise ValueError(
            f"Action '{names[dim]}' of lane {lanes[row]}, frame {frame} of the chunk, is {actions[row, frame, dim]}; "
            "actions must be finite."
        )
    if ended.any():
        raise RuntimeError(
            f"Lane {lanes[ended.argmax()]} has ended or was never reset ({ended.sum()} such lanes); reset it before "
            "stepping with options={'reset_mask': ...}."
        )
