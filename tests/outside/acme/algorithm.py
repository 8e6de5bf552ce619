"""Imitate the decisions of a batch that earned most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from embodied import tree
from embodied.agent import FlowAgent
from embodied.flow import draw_times, interpolate, matching_loss
from embodied.interfaces import Experience


class BestOfBatch:
    """Flow matching on the better half of each batch."""

    def __init__(self, agent: FlowAgent, *, learning_rate: float = 1e-3, seed: int = 0) -> None:
        self.policy = agent
        self._optimiser = torch.optim.SGD(agent.parameters(), lr=learning_rate)
        self._generator = torch.Generator().manual_seed(seed)

    def update(self, batches: Experience) -> dict[str, float]:
        batch = tree.flatten(tree.to(next(batches), self.policy.device))
        best = batch.reward.argsort(descending=True)[: len(batch.reward) // 2]
        chosen = tree.index(batch, best)
        policy = self.policy.policy
        action = policy.normalise(chosen.chunk.actions)
        noise = torch.randn(action.shape, generator=self._generator)
        t = draw_times(len(action), self._generator)
        velocity = policy.velocity(interpolate(action, noise, t), t, policy.encode(chosen.obs))
        loss = matching_loss(velocity.v, action, noise, self.policy.element_mask(chosen.executed)).mean()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return {"loss/policy": float(loss.detach())}

    @property
    def policy_state(self) -> dict[str, Tensor]:
        return self.policy.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {"optimiser": self._optimiser.state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimiser.load_state_dict(state["optimiser"])
        self._generator.set_state(state["generator"])
