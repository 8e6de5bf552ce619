"""A bandit with two modes of equal skill and one reward: reinforcement moves the mass, the control does not.

A supervised flow proposes two actions, left and right, about as often; only the right one pays. The ODE sampler, which
is never trained on directly, must come to prefer it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied import learner
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL
from embodied.algorithms.sft import SFT
from embodied.flow import Sampler
from embodied.policies.flow_mlp import FlowMLP
from embodied.rollout.collector import Collector
from embodied.rollout.evaluate import evaluate
from embodied.types import ActionChunk, ChunkResult, Observation, Transition

from ..fields import looking
from ..worlds import PointMass

pytestmark = pytest.mark.learning

RIGHT = np.array([0.5, 0.0])


class Bandit(PointMass):
    """One action, one frame: solved within .3 of the right mode."""

    def step_chunk(self, actions: np.ndarray, lanes: np.ndarray) -> ChunkResult:
        solved = np.linalg.norm(actions[:, 0] - RIGHT, axis=1) < 0.3
        self.over[lanes] = True
        no = np.zeros(len(lanes), bool)
        return ChunkResult(
            reward=solved[:, None].astype(np.float32), executed=np.ones(len(lanes), np.int64), terminated=~no, truncated=no,
            success=solved, invalid=no, observation=self.observe(lanes),
        )  # fmt: skip

    def observe(self, lanes: np.ndarray) -> Observation:
        return replace(looking(len(lanes), 2), privileged=np.zeros((len(lanes), 2), np.float32))

    def see(self) -> dict[str, Any]:
        return {**super().see(), "state": np.zeros((self.num_envs, 2), np.float32)}


class Both:
    """Demonstrations of both modes: 128 actions, half left, half right, std .1."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        sign = np.where(np.arange(128) % 2, 1.0, -1.0)
        actions = sign[:, None] * RIGHT + 0.1 * self.rng.normal(size=(128, 2))
        obs, flat = looking(128, 2), np.zeros(128)
        return Transition(
            obs=obs, chunk=ActionChunk(actions[:, None].astype(np.float32), np.full(128, -1)), executed=np.ones(128, np.int64),
            reward=flat, discount=flat, next_obs=obs, done=flat > 0, success=flat > 0,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def policy() -> FlowMLP:
    torch.manual_seed(0)
    made = FlowMLP(Bandit().embodiment, 1, width=64, blocks=1, features=16)
    made.fit_statistics(np.zeros((2, 2)), np.zeros((2, 2)))
    return made


@pytest.fixture(scope="module")
def supervised() -> dict[str, Tensor]:
    """Weights of a flow that proposes both modes."""
    algorithm = SFT(FlowAgent(policy()), learning_rate=3e-3, cycle_steps=600)
    batches = Both()
    for _ in range(600):
        algorithm.update(batches)
    return algorithm.policy.policy.state_dict()  # type: ignore[attr-defined]


def success(agent: FlowAgent) -> float:
    """Share of right actions under the ODE sampler."""
    return float(np.mean([end.success for end in evaluate(Bandit(256), agent, episodes=2048, seed=99)]))


def reinforce(weights: dict[str, Tensor], sampler: Sampler, group: int = 1, **options: Any) -> tuple[float, float]:
    """ODE success before and after 40 updates of 512 decisions."""
    learned = policy()
    learned.load_state_dict(weights)
    torch.manual_seed(0)
    agent = FlowAgent(learned, sampler, seed=1)
    algorithm = PiRL(agent, learning_rate=1e-4, minibatch=256, total_updates=40, critic_warmup=2, group=group, **options)
    before = success(agent)
    batches = Collector(Bandit(512), agent, decisions=1, group=group, seed=0)
    learner.run(algorithm, batches, start=0, steps=40, log=lambda *_: None, checkpoint=lambda *_: None)
    return before, success(agent)


SAMPLERS = {
    "SDE hybrid": Sampler(level=0.5),
    "SDE two-layer": Sampler(level=0.5, form="two_layer"),
    "learned joint": Sampler(noise="learned", form="joint"),
    "CPS": Sampler(noise="cps", level=0.5),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_t18_reinforcement_moves_the_mass_to_the_rewarded_mode(supervised: dict[str, Tensor], sampler: Sampler) -> None:
    before, after = reinforce(supervised, sampler)
    assert 0.3 < before < 0.65
    assert after > 0.9


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_t18_with_shuffled_advantages_it_does_not(supervised: dict[str, Tensor], sampler: Sampler) -> None:
    before, after = reinforce(supervised, sampler, shuffle_advantages=True)
    assert after < before + 0.1


def test_groups_do_it_without_a_critic(supervised: dict[str, Tensor]) -> None:
    before, after = reinforce(supervised, Sampler(), group=8, advantage="group")
    assert 0.3 < before < 0.65
    assert after > 0.9
