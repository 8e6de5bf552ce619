"""`embodied collect`: record a scripted expert's demonstrations, or a checkpoint's rollouts, to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ..agent import FlowAgent
from ..checkpoint import require
from ..data.store import Store
from ..interfaces import VectorEnv
from ..rollout import record
from ..types import Episode, Observation
from . import phases
from .launch import launch
from .load import load
from .run import CommandSettings, Run
from .schema import Factory, Part


@dataclass(frozen=True)
class SourceSettings:
    """Who acts: the simulator's expert, or a checkpoint."""

    path: str | None = None
    """A run's folder or checkpoint; the scripted expert when null."""


@dataclass(frozen=True, kw_only=True)
class CollectSettings(CommandSettings):
    """Everything that `embodied collect` can be told."""

    store: Path
    """Folder of the store; episodes are appended to one that exists."""
    sim: Annotated[Factory, Part(group="embodied.sims", supplied=("lanes",))]
    policy: SourceSettings = SourceSettings()
    episodes: int = 16
    """Of every task; only successful ones count for the expert, all for a checkpoint."""
    noise: float = 0.1
    """Std of the expert's action noise, in half action ranges."""
    lanes: int = 32


def main(arguments: Sequence[str]) -> int:
    """Record episodes."""
    return launch("collect", CollectSettings, execute, arguments, rules=(_positive,))


def execute(settings: CollectSettings, run: Run) -> None:
    """Record and store, episode by episode."""
    env: VectorEnv = settings.sim(lanes=settings.lanes)
    store = (
        Store.open(settings.store, write=True)
        if settings.store.exists()
        else Store.create(settings.store, env.embodiment)
    )
    with store:
        require(env.embodiment, store.spec)
        for episode in _record(settings, env):
            store.append(episode)
            run.env_steps += episode.length
        held = len(store)
    run.figures["episodes"] = float(held)
    run.say(f"{settings.store} holds {held} episodes; `embodied data info {settings.store}` describes them.")
    run.finish()


def _record(settings: CollectSettings, env: VectorEnv) -> Iterator[Episode]:
    seed = phases.lane_seed(settings.seed, phases.DEMONSTRATIONS)
    if settings.policy.path is None:
        act = record.expert(env, noise=settings.noise, seed=settings.seed)
        return record.record(env, act, episodes=settings.episodes, source="script", seed=seed)
    agent = load(settings.policy.path, device=settings.device)
    require(env.embodiment, agent.policy.spec)
    return record.record(
        env, _frame_by_frame(agent), episodes=settings.episodes, source="policy", seed=seed, version=agent.version,
        only_success=False,
    )  # fmt: skip


def _frame_by_frame(agent: FlowAgent) -> record.Act:
    """Decide anew in every frame and execute the first action of each chunk."""

    def act(obs: Observation, lanes: np.ndarray) -> np.ndarray:
        return agent.act(obs, explore=False).actions[:, 0]

    return act


def _positive(settings: CollectSettings) -> str | None:
    if settings.episodes < 1 or settings.lanes < 1:
        return f"episodes is {settings.episodes} and lanes {settings.lanes}; at least 1 of each is needed."
    return None
