"""`embodied sft`: supervised training from a store of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from .. import checkpoint
from ..agent import FlowAgent
from ..algorithms.sft import SFT
from ..data.experience import Demonstrations
from ..data.store import Store
from ..flow import Sampler
from . import phases, together
from .launch import launch
from .load import adopt, pick_device
from .run import CommandSettings, Run
from .schema import Factory, Part, plain


@dataclass(frozen=True, kw_only=True)
class SftSettings(CommandSettings):
    """Everything that `embodied sft` can be told."""

    store: Path
    """Folder of the store with the episodes to imitate."""
    policy: Annotated[Factory, Part(group="embodied.policies", supplied=("spec",), beside=("path",))]
    sampler: Sampler = field(default_factory=Sampler)
    algorithm: Annotated[Factory, Part(target="embodied.algorithms.sft.SFT", supplied=("agent", "seed", "ranks"))]
    parallel: Literal["replicate", "shard"] = "replicate"
    """How processes that torchrun started share the policy: each holds all of it, or a slice of every parameter."""
    steps: int = 1000
    batch_size: int = 128
    save_every: int = 500
    only_success: bool = True
    """Leave failed episodes out."""


def main(arguments: Sequence[str]) -> int:
    """Train on demonstrations."""
    return launch("sft", SftSettings, execute, arguments, rules=(_positive,), may_change=("steps",))


def execute(settings: SftSettings, run: Run) -> None:
    """Train up to `steps`, saving as it goes."""
    torch.manual_seed(settings.seed)
    run.device = pick_device(settings.device)
    with Store.open(settings.store) as store:
        spec = store.spec
        episodes = [store.read(id) for id in store.ids]
    if settings.only_success:
        episodes = [episode for episode in episodes if episode.success]
    agent = FlowAgent(settings.policy(spec=spec), settings.sampler, seed=settings.seed).to(run.device)
    if path := settings.policy.beside.get("path"):
        adopt(agent, path)  # with its statistics
    else:
        phases.fit_statistics(agent, episodes)
    demonstrations = Demonstrations(
        episodes, horizon=agent.policy.horizon, batch_size=settings.batch_size, seed=settings.seed
    )
    ranks = together.join(run.device, settings.parallel)
    algorithm: SFT = settings.algorithm(agent=agent, seed=settings.seed, ranks=ranks)
    start = 0
    if settings.resume and checkpoint.versions(run.checkpoints):
        trainer = checkpoint.load(run.checkpoints).trainer
        start = int(trainer["step"])
        run.restore(start, "sft", env_steps=0, evaluations=trainer["evaluations"])
        algorithm.load_state_dict(trainer["algorithm"])
        demonstrations.load_state_dict(trainer["experience"])
    description = checkpoint.describe(
        spec, settings.policy.name, settings.policy.settings, sampler=plain(settings.sampler)
    )
    save = phases.Saver(run, agent, description, "sft")
    while start < settings.steps:
        target = min(settings.steps, start + settings.save_every)
        start = phases.supervise(algorithm, demonstrations, run, start=start, steps=target, save=save)
    phases.export(agent, run)
    ranks.leave()
    run.finish()


def _positive(settings: SftSettings) -> str | None:
    numbers = {"steps": settings.steps, "batch_size": settings.batch_size, "save_every": settings.save_every}
    low = [f"{key} is {value}" for key, value in numbers.items() if value < 1]
    return f"{' and '.join(low)}; at least 1 is needed." if low else None
