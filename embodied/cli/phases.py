"""The phases of training: each is a function of what it works on, shared by train, collect, sft and eval."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import checkpoint, learner
from ..agent import FlowAgent
from ..algorithms.perception import Perception
from ..algorithms.sft import SFT
from ..data.encoded import Encoded
from ..data.experience import Demonstrations
from ..data.store import Store
from ..interfaces import Algorithm, Exports, VectorEnv
from ..rollout import record
from ..rollout.collector import Collector
from ..rollout.evaluate import evaluate
from ..rollout.lanes import EpisodeEnd
from ..rollout.scenes import ScenePool
from ..types import Episode
from .run import Run, patient

SEED_SPAN = 10_000_000
"""Lane seeds that one training seed may use; the parts below never share a scene."""
DEMONSTRATIONS, TRAINING, SELECTION, REPORTED, SCENES = 0, 2_000_000, 4_000_000, 6_000_000, 8_000_000


def lane_seed(seed: int, part: int) -> int:
    """First lane seed of a part of a run."""
    return seed * SEED_SPAN + part


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; a checkpoint is on disk."""


@dataclass(frozen=True)
class Saver:
    """Writes checkpoints of one phase: weights, trainer state and how far the run has come."""

    run: Run
    agent: FlowAgent
    description: dict[str, Any]
    phase: str

    def __call__(self, version: int, step: int, algorithm: Algorithm[Any], experience: Any) -> Path:
        trainer = {
            "phase": self.phase, "step": step, "algorithm": algorithm.state_dict(), "experience": experience.state_dict(),
            "env_steps": self.run.env_steps, "figures": dict(self.run.figures), "evaluations": self.run.evaluations,
        }  # fmt: skip
        policy = self.agent.policy
        return checkpoint.save(
            self.run.checkpoints, version, algorithm.policy_state, trainer, self.description, keep=self.run.keep,
            assets=(lambda folder: policy.save(folder, weights=False)) if isinstance(policy, Exports) else None,
        )  # fmt: skip


def export(agent: FlowAgent, run: Run) -> None:
    """Hand a policy that came in a format of its own back in it, as `exported/` in the run's folder."""
    if isinstance(agent.policy, Exports):
        agent.policy.save(run.folder / "exported")


def collect(env: VectorEnv, store: Path, *, episodes: int, noise: float, seed: int) -> list[Episode]:
    """Record `episodes` successful expert episodes of every task into a new store."""
    recorded = record.record(
        env, record.expert(env, noise=noise, seed=seed), episodes=episodes, source="script",
        seed=lane_seed(seed, DEMONSTRATIONS),
    )  # fmt: skip
    episodes_by_task = sorted(recorded, key=lambda episode: env.embodiment.tasks.index(episode.task))
    with Store.create(store, env.embodiment) as opened:
        for episode in episodes_by_task:
            opened.append(episode)
    return episodes_by_task


def fit_statistics(agent: FlowAgent, episodes: Sequence[Episode]) -> None:
    """Give a policy the statistics of its demonstrations.

    Not of random scenes: nothing moves in those, which would make every velocity an outlier.
    """
    agent.policy.fit_statistics(
        np.concatenate([e.state[:-1] for e in episodes]), np.concatenate([e.action for e in episodes])
    )


def perceive(algorithm: Perception, scenes: ScenePool, run: Run, *, steps: int, log_every: int = 25) -> None:
    """Teach the policy's prefix to find what instructions name."""
    with patient() as asked:

        def log(step: int, metrics: dict[str, float]) -> None:
            if step % log_every == 0:
                show = tuple(metrics) if step % (4 * log_every) == 0 else ()
                run.log(step, "perceive", metrics, policy_version=0, show=show)

        learner.run(algorithm, scenes, start=0, steps=steps, log=log, checkpoint=lambda step, state: None, stopped=asked)
        if asked():
            raise Interrupted("Stopped while learning to see; there is no checkpoint of this phase, it starts again.")


def demonstrations(
    agent: FlowAgent, episodes: Sequence[Episode], *, batch_size: int, seed: int
) -> Demonstrations | Encoded:
    """Batches to imitate, encoded once where the encoder does not train."""
    horizon = agent.policy.horizon
    if agent.policy.frozen_prefix:
        return Encoded(episodes, agent.encode, horizon=horizon, batch_size=batch_size, seed=seed)
    return Demonstrations(episodes, horizon=horizon, batch_size=batch_size, seed=seed)


def supervise(
    algorithm: SFT, demonstrations: Demonstrations | Encoded, run: Run, *, start: int, steps: int, save: Saver | None = None,
    stop_after_s: float | None = None, log_every: int = 50,
) -> int:  # fmt: skip
    """Train on demonstrations from step `start` up to `steps`, or for `stop_after_s` seconds; return the step reached."""
    began = time.monotonic()
    with patient() as asked:

        def stopped() -> bool:
            return asked() or (stop_after_s is not None and time.monotonic() - began > stop_after_s)

        def log(step: int, metrics: dict[str, float]) -> None:
            if step % log_every == 0:
                show = ("loss/policy",) if step % (10 * log_every) == 0 else ()
                run.log(step, "sft", metrics, policy_version=0, show=show)

        reached = learner.run(
            algorithm, demonstrations, start=start, steps=steps, log=log, checkpoint=lambda step, state: None, stopped=stopped
        )
        if save is not None:
            save(0, reached, algorithm, demonstrations)
        if asked():
            raise Interrupted(f"Stopped at supervised step {reached}; continue with resume=true.")
    return reached


def reinforce(
    algorithm: Algorithm[Collector], collector: Collector, run: Run, *, start: int, updates: int, checkpoint_every: int, save: Saver,
    test: Callable[[int], dict[str, float]],
) -> None:  # fmt: skip
    """Improve by reinforcement from update `start` to `updates`; `test` measures the policy when it is due."""
    shown = ("episode/success", "eval/success", "kl/behaviour", "value/explained_variance", "time/rollout_s", "time/update_s")
    began = time.monotonic()
    with patient() as asked:

        def log(version: int, metrics: dict[str, float]) -> None:
            nonlocal began
            times = collector.take_times()
            times["time/update_s"] = time.monotonic() - began - times["time/rollout_s"]
            run.env_steps = collector.frames
            figures = metrics | times | episode_figures(collector.take_finished()) | test(version)
            run.log(version, "rl", figures, policy_version=version, show=shown)
            began = time.monotonic()

        def keep(version: int, state: Callable[[], dict[str, Any]]) -> None:
            if version % checkpoint_every == 0 or version == updates or asked():
                save(version, version, algorithm, collector)

        reached = learner.run(
            algorithm, collector, start=start, steps=updates, log=log, checkpoint=keep, stopped=asked
        )
    if reached < updates:
        raise Interrupted(f"Stopped after update {reached} of {updates}; continue with resume=true.")


def measure(
    env: VectorEnv, agent: FlowAgent, run: Run, *, phase: str, episodes: int, seed: int, explore: bool = False
) -> dict[str, float]:
    """Evaluate and add the rows to the run's summary: success rate per task and over all of them."""
    ends = test(env, agent, episodes=episodes, seed=seed, explore=explore)
    rates = {}
    for task, part in by_task(ends).items():
        row = run.evaluation(
            phase, task, policy_version=agent.version, sampler="sde" if explore else "ode", episodes=len(part),
            successes=sum(end.success for end in part),
        )  # fmt: skip
        rates[task] = row["success_rate"]
        run.say(
            f"{phase:<6} {task:<12} {row['success_rate']:6.1%}  [{row['wilson_low']:.1%}, {row['wilson_high']:.1%}]  "
            f"{row['episodes']} episodes"
        )
    return rates


def test(env: VectorEnv, agent: FlowAgent, *, episodes: int, seed: int, explore: bool = False) -> list[EpisodeEnd]:
    """Evaluate without touching the agent's own random stream or anything it learns with."""
    return evaluate(env, agent.copy(seed=seed), episodes=episodes, seed=seed, explore=explore)


def by_task(ends: Sequence[EpisodeEnd]) -> dict[str, list[EpisodeEnd]]:
    """Group episodes by task, `all` last; a world that diverged is no evidence and left out."""
    valid = [end for end in ends if not end.invalid]
    groups = {task: [end for end in valid if end.task == task] for task in sorted({end.task for end in valid})}
    return groups | {"all": valid}


def episode_figures(ends: Sequence[EpisodeEnd], prefix: str = "episode") -> dict[str, float]:
    """Success, return and length of finished episodes, success also per task."""
    if not ends:
        return {}
    figures = {
        f"{prefix}/success": float(np.mean([end.success for end in ends])),
        f"{prefix}/return": float(np.mean([end.ret for end in ends])),
        f"{prefix}/length": float(np.mean([end.length for end in ends])),
        f"{prefix}/count": float(len(ends)),
        f"{prefix}/invalid": float(sum(end.invalid for end in ends)),
    }
    for task, part in by_task(ends).items():
        if task != "all" and part:
            figures[f"{prefix}/success/{task}"] = float(np.mean([end.success for end in part]))
            figures[f"{prefix}/count/{task}"] = float(len(part))
    return figures
