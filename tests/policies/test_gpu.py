"""What only a GPU shows: contexts that wait in pinned memory, CUDA graphs, the precision of training on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL
from embodied.flow import Sampler
from embodied.types import Transition

from . import checkpoints
from .conftest import SPEC, seen, stir

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def agent(family: str, *, contexts: Any = "device", **settings: Any) -> FlowAgent:
    torch.manual_seed(0)
    policy = checkpoints.build(family, replace(SPEC, privileged_names=("p",)), **settings)
    stir(policy.network)
    return FlowAgent(policy, Sampler(steps=2), contexts=contexts).to("cuda")


def rollout(acting: FlowAgent) -> Transition:
    rng, rows, obs = np.random.default_rng(0), [], tree.to_numpy(replace(seen(8), privileged=torch.zeros(8, 1)))
    for _ in range(3):
        rows.append(
            Transition(
                obs=obs, chunk=acting.act(obs, explore=True), executed=np.full(8, acting.policy.horizon),
                reward=rng.normal(size=8).astype(np.float32), discount=np.full(8, 0.9, np.float32), next_obs=obs,
                done=np.zeros(8, bool), success=np.zeros(8, bool),
            )
        )
    return tree.stack(rows)


class Once:
    def __init__(self, batch: Transition) -> None:
        self.batch = batch

    def __next__(self) -> Transition:
        return self.batch


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_contexts_that_wait_on_the_host_make_the_same_update(family: str, precision: str) -> None:
    states = []
    for contexts in ("device", "host"):
        acting = agent(family, contexts=contexts, precision=precision)
        batch = rollout(acting)
        assert all(leaf.device.type == ("cuda" if contexts == "device" else "cpu") for leaf in tree.leaves(batch.chunk.context))
        algorithm = PiRL(acting, critic="prefix", critic_warmup=0, minibatch=12, microbatch=5)
        metrics = algorithm.update(Once(batch))  # type: ignore[arg-type]
        assert metrics["ratio/mean_shift_first"] <= (1e-4 if precision == "float32" else 5e-2)
        states.append(algorithm.policy_state)
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_a_captured_expert_acts_like_the_eager_one(family: str) -> None:
    obs = tree.to_numpy(seen())
    eager, captured = agent(family), agent(family, compile=True)
    for _ in range(4):  # warm-up, capture, replays
        torch.testing.assert_close(
            torch.as_tensor(captured.act(obs, explore=False).actions), torch.as_tensor(eager.act(obs, explore=False).actions),
            rtol=0, atol=1e-4,
        )  # fmt: skip
