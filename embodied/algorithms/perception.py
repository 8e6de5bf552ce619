"""Perception pre-training: find what instructions name in random scenes, without demonstrations or actions.

The stand-in for a large model's pre-training. It needs a simulator that labels scenes (`HasScenes`) and a policy that
learns from them (`Perceives`); it is privileged knowledge of the simulator, but none about how to act.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import tree
from ..agent import FlowAgent
from ..interfaces import Perceives
from ..types import Scenes


class Perception:
    """Trains a policy's prefix, whatever of it is frozen later."""

    def __init__(
        self, agent: FlowAgent, *, learning_rate: float = 3e-3, total_steps: int = 500, gradient_clip: float = 1.0, seed: int = 0
    ) -> None:
        if not isinstance(agent.policy, Perceives):
            raise ValueError(f"{type(agent.policy).__name__} has no perception_loss; leave the phase 'perceive' out.")
        self.policy = agent
        self.perceiver: Perceives = agent.policy
        self.gradient_clip = gradient_clip
        self.parameters = [p for module in self.perceiver.prefix_modules() for p in module.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=1e-4, fused=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, learning_rate, total_steps=total_steps)

    def update(self, batches: Iterator[Scenes]) -> dict[str, float]:
        """One optimiser step on the next batch of scenes."""
        trained_later = [p.requires_grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        loss, metrics = self.perceiver.perception_loss(tree.to(next(batches), self.policy.device))
        if not bool(torch.isfinite(loss)):
            raise RuntimeError(f"perception loss is {float(loss.detach())} at step {self.schedule.last_epoch}; check the scenes' labels.")
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.gradient_clip)
        self.optimiser.step()
        self.schedule.step()
        for parameter, later in zip(self.parameters, trained_later, strict=True):
            parameter.requires_grad_(later)
        return metrics | {"loss/perception": float(loss.detach())}

    @property
    def policy_state(self) -> dict[str, Tensor]:
        return self.policy.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "agent": self.policy.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["agent"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
