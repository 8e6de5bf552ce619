"""Supervised flow matching on action chunks (openpi's loss and time law)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import tree
from ..agent import FlowAgent
from ..flow import draw_times, interpolate, matching_loss
from ..interfaces import Experience
from ..types import Transition


class SFT:
    """Train a `FlowAgent`'s policy on executed actions; `Transition.executed` says how many of a chunk are real.

    The learning rate falls along a cosine and restarts every `cycle_steps`, so that any whole number of cycles
    ends annealed and training can be continued to see whether it had converged.
    """

    def __init__(
        self, agent: FlowAgent, *, learning_rate: float = 1e-3, cycle_steps: int = 500, weight_decay: float = 1e-4,
        gradient_clip: float = 1.0, ema_decay: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.policy = agent
        self.gradient_clip = gradient_clip
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimiser, T_0=cycle_steps)
        self.average = _average(agent, ema_decay) if ema_decay is not None else None

    def loss(self, batch: Transition) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss of a batch [B]; frames past the end of an episode carry no gradient."""
        agent = self.policy
        action = agent.policy.normalise(batch.chunk.actions.float())  # [B, H, A]
        noise = torch.randn(action.shape, generator=self.generator).to(action.device)
        t = draw_times(len(action), self.generator).to(action.device)
        context = agent.policy.encode(batch.obs) if batch.chunk.context is None else batch.chunk.context
        velocity = agent.policy.velocity(interpolate(action, noise, t), t, context)
        loss = matching_loss(velocity.v, action, noise, agent.element_mask(batch.executed)).mean()
        return loss, {"loss/policy": float(loss.detach())}

    def update(self, batches: Experience) -> dict[str, float]:
        """One optimiser step on the next batch."""
        batch = tree.to(next(batches), self.policy.device)
        self.policy.train()
        loss, metrics = self.loss(batch)
        if not bool(torch.isfinite(loss)):
            raise RuntimeError(f"loss/policy is {float(loss.detach())} at step {self.schedule.last_epoch}; check the data's actions and states.")
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.gradient_clip)
        self.optimiser.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.policy)
        self.policy.eval()
        return metrics | {"loss/gradient_norm": float(norm), "loss/learning_rate": float(self.schedule.get_last_lr()[0])}

    @property
    def policy_state(self) -> dict[str, Tensor]:
        """Weights to act with: the moving average where one is kept."""
        return (self.policy if self.average is None else self.average.module).state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "agent": self.policy.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["agent"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _average(agent: FlowAgent, decay: float) -> torch.optim.swa_utils.AveragedModel:
    if not 0 < decay < 1:
        raise ValueError(f"ema_decay must lie in (0, 1), got {decay}.")
    return torch.optim.swa_utils.AveragedModel(agent, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
