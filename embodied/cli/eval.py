"""`embodied eval`: measure a checkpoint in simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..checkpoint import require
from ..interfaces import VectorEnv
from . import media, phases
from .launch import launch
from .load import description, load
from .run import CommandSettings, Run
from .schema import Factory, Part, factory

SIM = Part(group="embodied.sims", supplied=("lanes",))


@dataclass(frozen=True)
class CheckpointSettings:
    """What to measure."""

    path: str
    """A run's folder, or one checkpoint in it."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(CommandSettings):
    """Everything that `embodied eval` can be told."""

    policy: CheckpointSettings
    sim: Annotated[Factory, SIM] | None = None
    """Where to measure; by default the simulator that the policy was trained in."""
    episodes: int = 512
    lanes: int = 256
    explore: bool = False
    """Sample as in training (SDE) instead of along the ODE."""
    film: bool = True


def main(arguments: Sequence[str]) -> int:
    """Evaluate a checkpoint."""
    return launch("eval", EvaluationSettings, execute, arguments, rules=(_shared,))


def execute(settings: EvaluationSettings, run: Run) -> None:
    """Play the episodes and write the rates."""
    agent = load(settings.policy.path, device=settings.device)
    run.device = str(agent.device)
    sim = settings.sim or _trained_in(settings.policy.path)
    env: VectorEnv = sim(lanes=settings.lanes)
    require(env.embodiment, agent.policy.spec)
    seed = phases.lane_seed(settings.seed, phases.REPORTED)
    rates = phases.measure(
        env, agent, run, phase="final", episodes=settings.episodes, seed=seed, explore=settings.explore
    )
    run.figures |= {f"final/{task}": rate for task, rate in rates.items()}
    if settings.film:
        media.film(sim, agent, run.media / "after.mp4", seed=seed)
    run.finish()


def _trained_in(path: str) -> Factory:
    saved = description(path).get("sim")
    if saved is None:
        raise ValueError(f"{path} does not say which simulator it was trained in; choose one with sim=… .")
    return factory(saved, SIM, "sim")


def _shared(settings: EvaluationSettings) -> str | None:
    if settings.lanes < 1 or settings.episodes < settings.lanes or settings.episodes % settings.lanes:
        return f"episodes is {settings.episodes}; it must be a multiple of lanes, {settings.lanes}, so that every lane plays as many."
    return None
