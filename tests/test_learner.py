"""The loop, and that a stopped run goes on as if it had not stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied import checkpoint, learner, tree
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL
from embodied.algorithms.sft import SFT
from embodied.flow import Sampler
from embodied.interfaces import Algorithm, Experience
from embodied.policies.flow_mlp import FlowMLP
from embodied.rollout.collector import Collector

from .algorithms.test_sft import Log
from .worlds import PointMass

Build = Callable[[], tuple[Algorithm, Experience]]


def agent(sampler: Sampler) -> tuple[FlowAgent, PointMass]:
    torch.manual_seed(0)
    env = PointMass(6, time_limit=7)
    policy = FlowMLP(env.embodiment, 3, width=16, blocks=1, features=4)
    policy.fit_statistics(np.array([[-1.0, -1.0], [1.0, 1.0]]), np.zeros((2, 2)))
    return FlowAgent(policy, sampler), env


def reinforced(sampler: Sampler, *, group: int = 1, **options: Any) -> tuple[Algorithm, Experience]:
    acting, env = agent(sampler)
    algorithm = PiRL(
        acting, group=group, advantage="group" if group > 1 else "gae", critic_warmup=3, minibatch=8, learning_rate=1e-3,
        total_updates=20, **options,
    )  # fmt: skip
    return algorithm, Collector(env, acting, decisions=4, group=group, seed=5)


def imitated() -> tuple[Algorithm, Experience]:
    return SFT(agent(Sampler())[0], cycle_steps=7, ema_decay=0.9), Log()


CASES: dict[str, Build] = {
    "hybrid, annealed": lambda: reinforced(Sampler(level=0.8, level_end=0.3, anneal_versions=15)),
    "two-layer": lambda: reinforced(Sampler(form="two_layer")),
    "joint, learned noise": lambda: reinforced(Sampler(noise="learned", form="joint"), entropy_bonus=0.01),
    "groups": lambda: reinforced(Sampler(), group=3),
    "supervised, averaged": imitated,
}


def train(algorithm: Algorithm, batches: Experience, start: int, steps: int) -> list[dict[str, float]]:
    logged: list[dict[str, float]] = []
    learner.run(
        algorithm, batches, start=start, steps=steps, log=lambda version, metrics: logged.append(metrics),
        checkpoint=lambda version, state: None,
    )  # fmt: skip
    return logged


@pytest.mark.parametrize("build", CASES.values(), ids=CASES.keys())
def test_b109_ten_updates_a_resume_and_ten_more_are_twenty(build: Build, tmp_path: Path) -> None:
    straight, its_batches = build()
    figures = train(straight, its_batches, 0, 20)

    first, its_first = build()
    resumed = train(first, its_first, 0, 10)
    checkpoint.save(tmp_path, 10, first.policy_state, {"algorithm": first.state_dict(), "batches": its_first.state_dict()}, {})
    second, its_second = build()
    trainer = checkpoint.load(tmp_path).trainer
    second.load_state_dict(trainer["algorithm"])
    its_second.load_state_dict(trainer["batches"])
    resumed += train(second, its_second, 10, 20)

    assert resumed == figures  # every figure, to the last bit
    one, two = (tree.leaves(each.state_dict()) for each in (straight, second))
    assert len(one) == len(two) > 10
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b


class Counting:
    """An algorithm that only counts."""

    policy: Any = None

    def __init__(self) -> None:
        self.updates = 0
        self.materialised = 0

    def update(self, batches: Experience) -> dict[str, float]:
        self.updates += 1
        return {"updates": float(self.updates)}

    @property
    def policy_state(self) -> dict[str, torch.Tensor]:
        self.materialised += 1
        return {"weight": torch.tensor(float(self.updates))}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


def test_every_version_is_published_logged_and_checkpointed_after_its_update() -> None:
    events: list[tuple[str, int, float]] = []
    reached = learner.run(
        Counting(), Log(), start=3, steps=5,
        publish=lambda version, weights: events.append(("publish", version, float(weights()["weight"]))),
        log=lambda version, metrics: events.append(("log", version, metrics["updates"])),
        checkpoint=lambda version, state: events.append(("checkpoint", version, state()["updates"])),
    )  # fmt: skip
    assert reached == 5
    assert events == [(what, version, version - 3) for version in (4, 5) for what in ("publish", "log", "checkpoint")]


def test_weights_that_nobody_wants_are_not_made() -> None:
    algorithm = Counting()
    learner.run(algorithm, Log(), start=0, steps=4, log=lambda *_: None, checkpoint=lambda *_: None)
    assert algorithm.updates == 4 and algorithm.materialised == 0


def test_a_stop_comes_after_a_whole_update_and_says_which_version_was_reached() -> None:
    algorithm = Counting()
    saved: list[int] = []
    reached = learner.run(
        algorithm, Log(), start=0, steps=100, log=lambda *_: None, checkpoint=lambda version, _: saved.append(version),
        stopped=lambda: algorithm.updates >= 3,
    )  # fmt: skip
    assert reached == algorithm.updates == 3 and saved == [1, 2, 3]


def test_a_run_that_is_complete_does_nothing() -> None:
    algorithm = Counting()
    reached = learner.run(algorithm, Log(), start=5, steps=5, log=lambda *_: None, checkpoint=lambda *_: None)
    assert reached == 5 and algorithm.updates == 0
