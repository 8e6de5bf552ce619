"""Improve flow-matching vision-language-action policies by reinforcement learning: in simulation, on robots, from logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import FlowAgent

__all__ = ["load"]


def load(path: str | Path, device: str = "auto") -> FlowAgent:
    """Load a run's or checkpoint's policy, ready to `act(obs)`. Imports torch only now."""
    from .cli.load import load as load_agent

    return load_agent(path, device=device)
