"""`embodied train`: demonstrations, supervised training, reinforcement learning, final evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch

from .. import checkpoint
from ..agent import FlowAgent
from ..data.store import Store
from ..flow import Sampler
from ..interfaces import VectorEnv
from ..parallel import Ranks
from ..rollout.collector import Collector
from ..rollout.scenes import ScenePool
from ..types import Episode
from . import media, phases, together
from .launch import launch
from .load import adopt, pick_device
from .run import CommandSettings, Run
from .schema import Factory, Part, plain

Phase = Literal["collect", "perceive", "sft", "rl", "final"]


@dataclass(frozen=True)
class CollectSettings:
    """Demonstrations from the simulator's scripted expert."""

    episodes: int = 16
    """Successful episodes of every task."""
    noise: float = 0.1
    """Std of the expert's action noise, in half action ranges."""


@dataclass(frozen=True)
class PerceiveSettings:
    """Learning to see in random scenes, before any action is imitated; for policies that can."""

    steps: int = 0
    """0 leaves the phase out."""
    scenes: int = 8192
    batch_size: int = 128


@dataclass(frozen=True)
class SuperviseSettings:
    """How long supervised training goes on."""

    steps: int = 500
    """Steps of the first round; each further round doubles what was trained so far."""
    max_steps: int = 8000
    gain: float = 0.05
    """Training has converged once doubling its steps gains less than this share of episodes; the longer one is undone."""
    batch_size: int = 128
    extra_s: float = 0.0
    """A control: seconds of supervised training in the place of reinforcement."""


@dataclass(frozen=True)
class RolloutSettings:
    """What one update of reinforcement learning sees."""

    lanes: int = 128
    decisions: int = 10
    """Per lane and update."""
    gamma: float = 0.97
    """Discount per frame."""
    execute: int | None = None
    """Actions executed of each chunk; all of them when null."""
    group: int = 1
    """Neighbouring lanes that share a restored start (group-relative advantages)."""
    focus: float = 0.0
    """How much less often a task is played that fails less than the worst: 0 not at all, 0.8 down to a fifth."""
    contexts: Literal["device", "host"] = "device"
    """Where a frozen encoder's results wait for the learner; a large model's may not fit the device."""
    updates: int = 100
    checkpoint_every: int = 10


@dataclass(frozen=True)
class EvalSettings:
    """How success is measured, with the ODE sampler."""

    lanes: int = 256
    every: int = 10
    """Updates between evaluations on the selection scenes."""
    episodes: int = 256
    """Of each of those."""
    final_episodes: int = 512
    """Of the reported start and end, on scenes used for nothing else."""
    film: bool = True
    """Leave a video of the start and of the end."""
    also: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changed simulators in which the end is measured as well: a name, and the settings of `sim` that differ."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(CommandSettings):
    """Everything that `embodied train` can be told."""

    phases: tuple[Phase, ...] | None = None
    """Which phases run; all by default, and rl and final when `policy.path` names a trained policy."""
    sim: Annotated[Factory, Part(group="embodied.sims", supplied=("lanes",))]
    policy: Annotated[Factory, Part(group="embodied.policies", supplied=("spec",), beside=("path",))]
    sampler: Sampler = field(default_factory=Sampler)
    collect: CollectSettings = CollectSettings()
    perception: Annotated[Factory, Part(target="embodied.algorithms.perception.Perception", supplied=("agent", "seed", "total_steps"))]
    perceive: PerceiveSettings = PerceiveSettings()
    sft: Annotated[Factory, Part(target="embodied.algorithms.sft.SFT", supplied=("agent", "seed", "ranks"))]
    supervise: SuperviseSettings = SuperviseSettings()
    algorithm: Annotated[Factory, Part(target="embodied.algorithms.pi_rl.PiRL", supplied=("agent", "seed", "ranks"))]
    parallel: Literal["replicate", "shard"] = "replicate"
    """How processes that torchrun started share the policy: each holds all of it, or a slice of every parameter."""
    rollout: RolloutSettings = RolloutSettings()
    eval: EvalSettings = EvalSettings()


def main(arguments: Sequence[str]) -> int:
    """Run the command line's experiment, or one per job of a sweep."""
    return launch("train", TrainSettings, execute, arguments, rules=RULES, may_change=("rollout.updates", "eval", "phases"))


def execute(settings: TrainSettings, run: Run) -> None:
    """Run the phases, each from where an interrupted run left it."""
    torch.manual_seed(settings.seed)
    run.device = pick_device(settings.device)
    ranks = together.join(run.device, settings.parallel)
    training = Training(settings, run, ranks)
    wanted = settings.phases or (("rl", "final") if training.pretrained else ("collect", "perceive", "sft", "rl", "final"))
    if "collect" in wanted or "sft" in wanted:
        training.supervise()
    training.report_start()
    if settings.supervise.extra_s > 0:
        training.supervise_on()
    elif "rl" in wanted:
        training.reinforce()
    if "final" in wanted:
        training.finish()
    run.finish()
    ranks.leave()


class Training:
    """The objects of one run, and its phases over them."""

    def __init__(self, settings: TrainSettings, run: Run, ranks: Ranks) -> None:
        self.settings, self.run, self.ranks = settings, run, ranks
        self.together = {"ranks": ranks} if ranks.size > 1 else {}  # an algorithm of somebody's may know no ranks
        self.lanes = together.share(settings.rollout.lanes, ranks, "rollout.lanes")
        self.env: VectorEnv = settings.sim(lanes=self.lanes)
        self.tests: VectorEnv = settings.sim(lanes=settings.eval.lanes)
        policy = settings.policy(spec=self.env.embodiment)
        self.agent = FlowAgent(policy, settings.sampler, contexts=settings.rollout.contexts, seed=settings.seed + ranks.rank * together.APART).to(run.device)
        path = settings.policy.beside.get("path")
        if path:
            adopt(self.agent, path)
        self.pretrained = bool(path) or "path" in settings.policy.settings
        self.description = checkpoint.describe(
            self.env.embodiment, settings.policy.name, settings.policy.settings, sampler=plain(settings.sampler),
            sim=plain(settings.sim),
        )
        self.resumed: dict[str, Any] | None = None
        if settings.resume and checkpoint.versions(run.checkpoints):
            self.resumed = checkpoint.load(run.checkpoints).trainer
            run.restore(
                self.resumed["step"], self.resumed["phase"], env_steps=self.resumed["env_steps"],
                evaluations=self.resumed["evaluations"],
            )  # fmt: skip
            run.figures.update(self.resumed["figures"])

    def supervise(self) -> None:
        """Collect demonstrations and train on them until doubling the steps no longer pays.

        A doubling that did not pay is undone: longer training fits the same few demonstrations more closely, which
        leaves reinforcement less to choose from.
        """
        if self.resumed is not None and self.resumed["phase"] != "sft":
            return
        settings, run, seed = self.settings, self.run, self.settings.seed
        episodes = self._demonstrations()
        if self.resumed is None:
            self._perceive(episodes)
        else:
            self.agent.load_state_dict(self.resumed["algorithm"]["agent"])
        self.sft = settings.sft(agent=self.agent, seed=seed, **self.together)
        self.demonstrations = phases.demonstrations(
            self.agent, episodes, batch_size=settings.supervise.batch_size, seed=seed
        )
        step = self._restore("sft", self.sft, self.demonstrations)
        save = phases.Saver(run, self.agent, self.description, "sft")
        target = 2 * step or settings.supervise.steps
        while step == 0 or target <= settings.supervise.max_steps:
            step = phases.supervise(self.sft, self.demonstrations, run, start=step, steps=target)
            rate = self._success(step)
            if "sft_success" in run.figures:
                run.figures["sft_doubling_gain"] = gain = rate - run.figures["sft_success"]
                if gain < settings.supervise.gain:
                    run.say(f"sft    doubling the steps gained {gain:.1%}: back to those of step {run.figures['sft_steps']:.0f}")
                    _resume(checkpoint.load(run.checkpoints).trainer, self.sft, self.demonstrations)
                    break
            run.figures |= {"sft_steps": float(step), "sft_success": rate}
            save(0, step, self.sft, self.demonstrations)
            target = 2 * step

    def report_start(self) -> None:
        """Measure where reinforcement begins."""
        if self.resumed is not None and self.resumed["phase"] == "rl":
            return
        rates = self._measure("sft")
        self.run.figures |= {f"sft/{task}": rate for task, rate in rates.items()}
        self._film("before.mp4")

    def supervise_on(self) -> None:
        """The control: spend the time of reinforcement on more supervised training."""
        settings = self.settings
        phases.supervise(
            self.sft, self.demonstrations, self.run, start=0, steps=10**9, stop_after_s=settings.supervise.extra_s
        )

    def reinforce(self) -> None:
        """Improve by reinforcement."""
        settings, run, seed = self.settings, self.run, self.settings.seed
        algorithm = settings.algorithm(agent=self.agent, seed=seed, **self.together)
        collector = Collector(
            self.env, self.agent, decisions=settings.rollout.decisions, gamma=settings.rollout.gamma,
            execute=settings.rollout.execute, group=settings.rollout.group, focus=settings.rollout.focus,
            seed=self._seed(phases.TRAINING) + self.ranks.rank * self.lanes,
        )  # fmt: skip
        start = self._restore("rl", algorithm, collector)
        if start == 0:
            media.stills(collector.lanes.observation, run.media / "first_batch.png")
        phases.reinforce(
            algorithm, collector, run, start=start, updates=settings.rollout.updates,
            checkpoint_every=settings.rollout.checkpoint_every,
            save=phases.Saver(run, self.agent, self.description, "rl"), test=self._test,
        )  # fmt: skip

    def finish(self) -> None:
        """Measure the last weights, once, and film them on the scenes of the first film."""
        rates = self._measure("final")
        self.run.figures |= {f"final/{task}": rate for task, rate in rates.items()}
        if "sft/all" in self.run.figures:
            self.run.figures["gain"] = rates["all"] - self.run.figures["sft/all"]
        self._film("after.mp4")
        for name, changes in self.settings.eval.also.items():
            self._measure_changed(name, changes)

    def _measure_changed(self, name: str, changes: dict[str, Any]) -> None:
        settings = self.settings
        env: VectorEnv = settings.sim.changed(changes)(lanes=settings.eval.lanes)
        ends = phases.test(env, self.agent, episodes=settings.eval.final_episodes, seed=self._seed(phases.REPORTED))
        env.close()
        for task, part in phases.by_task(ends).items():
            self.run.figures[f"{name}/{task}"] = rate = sum(end.success for end in part) / len(part)
            self.run.say(f"{name:<6} {task:<12} {rate:6.1%}  {len(part)} episodes")

    def _film(self, name: str) -> None:
        if self.settings.eval.film:
            media.film(self.settings.sim, self.agent, self.run.media / name, seed=self._seed(phases.REPORTED))
        phases.export(self.agent, self.run)

    def _perceive(self, episodes: Sequence[Episode]) -> None:
        """Fit statistics and, where asked to, learn to see."""
        phases.fit_statistics(self.agent, episodes)
        settings = self.settings.perceive
        if not settings.steps:
            return
        seed = self._seed(phases.SCENES)
        scenes = ScenePool(self.tests, count=settings.scenes, batch_size=settings.batch_size, seed=seed)
        algorithm = self.settings.perception(agent=self.agent, seed=self.settings.seed, total_steps=settings.steps)
        phases.perceive(algorithm, scenes, self.run, steps=settings.steps)

    def _demonstrations(self) -> list[Episode]:
        store = self.run.folder / "demonstrations"
        if self.resumed is not None:
            with Store.open(store) as opened:
                return [opened.read(id) for id in opened.ids]
        collect = self.settings.collect
        return phases.collect(self.env, store, episodes=collect.episodes, noise=collect.noise, seed=self.settings.seed)

    def _restore(self, phase: str, algorithm: Any, experience: Any) -> int:
        """Continue a phase from its checkpoint; 0 where there is none."""
        if self.resumed is None or self.resumed["phase"] != phase:
            return 0
        return _resume(self.resumed, algorithm, experience)

    def _measure(self, phase: str) -> dict[str, float]:
        return phases.measure(
            self.tests, self.agent, self.run, phase=phase, episodes=self.settings.eval.final_episodes,
            seed=self._seed(phases.REPORTED),
        )  # fmt: skip

    def _success(self, step: int) -> float:
        ends = phases.test(
            self.tests, self.agent, episodes=self.settings.eval.final_episodes, seed=self._seed(phases.SELECTION)
        )
        figures = phases.episode_figures(ends, "eval")
        self.run.log(step, "sft", figures, policy_version=0, show=("eval/success",))
        return self.ranks.combine({"success": figures["eval/success"]})["success"]  # all must draw the same conclusion

    def _test(self, version: int) -> dict[str, float]:
        every = self.settings.eval.every
        if version % every and version != self.settings.rollout.updates:
            return {}
        ends = phases.test(self.tests, self.agent, episodes=self.settings.eval.episodes, seed=self._seed(phases.SELECTION))
        return phases.episode_figures(ends, "eval")

    def _seed(self, part: int) -> int:
        return phases.lane_seed(self.settings.seed, part)


def _resume(trainer: dict[str, Any], algorithm: Any, experience: Any) -> int:
    """Put both where a checkpoint left them; the step it was written at."""
    algorithm.load_state_dict(trainer["algorithm"])
    experience.load_state_dict(trainer["experience"])
    return int(trainer["step"])


def _positive(settings: TrainSettings) -> str | None:
    wrong = {
        "rollout.lanes": settings.rollout.lanes, "rollout.decisions": settings.rollout.decisions,
        "eval.lanes": settings.eval.lanes, "eval.every": settings.eval.every, "collect.episodes": settings.collect.episodes,
        "supervise.steps": settings.supervise.steps, "supervise.batch_size": settings.supervise.batch_size,
        "rollout.checkpoint_every": settings.rollout.checkpoint_every,
    }  # fmt: skip
    low = [f"{key} is {value}" for key, value in wrong.items() if value < 1]
    return f"{' and '.join(low)}; at least 1 is needed." if low else None


def _minibatch(settings: TrainSettings) -> str | None:
    batch = settings.rollout.lanes * settings.rollout.decisions
    minibatch = settings.algorithm.settings.get("minibatch", 1)
    if minibatch > batch:
        return (
            f"algorithm.minibatch is {minibatch}, but a batch has {settings.rollout.lanes} lanes x "
            f"{settings.rollout.decisions} decisions = {batch}; lower it or raise rollout.lanes."
        )
    return None


def _episodes(settings: TrainSettings, key: str) -> str | None:
    episodes, lanes = getattr(settings.eval, key), settings.eval.lanes
    if lanes < 1 or (episodes >= lanes and episodes % lanes == 0):
        return None
    return f"eval.{key} is {episodes}; it must be a multiple of eval.lanes, {lanes}, so that every lane plays as many."


def _groups(settings: TrainSettings) -> str | None:
    group, lanes = settings.rollout.group, settings.rollout.lanes
    if group < 1 or lanes % group:
        return f"rollout.group is {group}; it must divide rollout.lanes, {lanes}."
    trained = settings.algorithm.settings.get("group", 1)
    if settings.algorithm.settings.get("advantage") == "group" and trained != group:
        return f"algorithm.group is {trained} and rollout.group is {group}; group-relative advantages need them equal."
    return None


def _also(settings: TrainSettings) -> str | None:
    taken = {"sft", "final"} & settings.eval.also.keys()
    if taken:
        return f"eval.also.{min(taken)} has the name of a phase; give it another."
    for changes in settings.eval.also.values():
        settings.sim.changed(changes)
    return None


def _horizon(settings: TrainSettings) -> str | None:
    horizon = settings.policy.settings.get("horizon") or 1  # null: the policy's own
    limit = settings.sim(lanes=1).time_limit
    if horizon > limit:
        return f"policy.horizon is {horizon}, longer than an episode of at most {limit} frames; lower it."
    execute = settings.rollout.execute
    known = settings.policy.settings.get("horizon") is not None
    if execute is not None and (execute < 1 or (known and execute > horizon)):
        return f"rollout.execute is {execute}; it must lie between 1 and policy.horizon, {horizon}."
    return None


RULES = (
    _positive, _minibatch, partial(_episodes, key="episodes"), partial(_episodes, key="final_episodes"), _groups, _horizon, _also
)  # fmt: skip
