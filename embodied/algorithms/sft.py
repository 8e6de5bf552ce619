"""Supervised flow matching on action chunks (openpi's loss and time law)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..agent import FlowAgent
from ..flow import draw_times, interpolate, matching_loss
from ..interfaces import Experience
from ..parallel import Ranks
from ..types import Transition


class SFT:
    """Train a `FlowAgent`'s policy on executed actions; `Transition.executed` says how many of a chunk are real.

    The learning rate falls along a cosine and restarts every `cycle_steps`, so that any whole number of cycles
    ends annealed and training can be continued to see whether it had converged.
    """

    def __init__(
        self, agent: FlowAgent, *, learning_rate: float = 1e-3, cycle_steps: int = 500, weight_decay: float = 1e-4,
        gradient_clip: float = 1.0, ema_decay: float | None = None, microbatch: int | None = None, ranks: Ranks | None = None,
        seed: int = 0,
    ) -> None:  # fmt: skip
        """`microbatch` is how many rows of a batch a process computes at once, all of its share when None. Every
        process is given the whole batch and takes its share."""
        if microbatch is not None and microbatch < 1:
            raise ValueError(f"microbatch must be at least 1, got {microbatch}.")
        self.policy, self.microbatch = agent, microbatch
        self.ranks = Ranks() if ranks is None else ranks
        self.ranks.adopt(agent.policy, *([] if agent.noise_head is None else [agent.noise_head]))
        self.gradient_clip = gradient_clip
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimiser, T_0=cycle_steps)
        self.average = _average(agent, ema_decay) if ema_decay is not None else None

    def loss(self, batch: Transition) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss of a batch [B]; frames past the end of an episode carry no gradient."""
        action = self.policy.policy.normalise(batch.chunk.actions.float())  # [B, H, A]
        noise, t = self._draw(action)
        return self._loss(batch, action, noise, t)

    def _draw(self, action: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(action.shape, generator=self.generator).to(action.device)
        return noise, draw_times(len(action), self.generator).to(action.device)

    def _loss(self, batch: Transition, action: Tensor, noise: Tensor, t: Tensor) -> tuple[Tensor, dict[str, float]]:
        agent = self.policy
        context = agent.policy.encode(batch.obs) if batch.chunk.context is None else batch.chunk.context
        velocity = agent.policy.velocity(interpolate(action, noise, t), t, context)
        loss = matching_loss(velocity.v, action, noise, agent.element_mask(batch.executed)).mean()
        return loss, {"loss/policy": float(loss.detach())}

    def update(self, batches: Experience) -> dict[str, float]:
        """One optimiser step on the next batch."""
        batch = tree.to(next(batches), self.policy.device)
        self.policy.train()
        metrics = self._accumulate(batch)
        norm = self.ranks.clip(self.parameters, self.gradient_clip)
        self.optimiser.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.policy)
        self.policy.eval()
        return metrics | {"loss/gradient_norm": float(norm), "loss/learning_rate": float(self.schedule.get_last_lr()[0])}

    def _accumulate(self, batch: Transition) -> dict[str, float]:
        """Put the gradient of this process's share into the parameters, part by part; figures of the whole batch."""
        self.optimiser.zero_grad()
        action = self.policy.policy.normalise(batch.chunk.actions.float())  # [B, H, A]
        rows = (batch, action, *self._draw(action))  # drawn for the whole batch, whoever takes which row
        count = len(action)
        share = torch.arange(count, device=action.device)[self.ranks.rank :: self.ranks.size]
        if not len(share):
            raise ValueError(f"A batch of {count} rows is too small for {self.ranks.size} processes.")
        parts = 1 if self.microbatch is None else math.ceil(math.ceil(count / self.ranks.size) / self.microbatch)
        total: dict[str, float] = {}
        for number, at in enumerate(share.tensor_split(parts)):
            used, weight = (at if len(at) else share[:1]), self.ranks.weight(len(at), count)
            with self.ranks.accumulate(last=number == parts - 1):
                loss, logs = self.ranks.run(self._loss, *tree.index(rows, used))
                if not bool(torch.isfinite(loss)):
                    raise RuntimeError(f"loss/policy is {float(loss.detach())} at step {self.schedule.last_epoch}; check the data's actions and states.")
                (loss * weight).backward()
            total = {name: total.get(name, 0.0) + figure * weight for name, figure in logs.items()}
        return self.ranks.combine(total)

    @property
    def policy_state(self) -> dict[str, Tensor]:
        """Weights to act with: the moving average where one is kept."""
        return self.ranks.whole((self.policy if self.average is None else self.average.module).state_dict())

    def state_dict(self) -> dict[str, Any]:
        return self.ranks.whole(self.parts())

    def parts(self) -> dict[str, Any]:
        """The state as this process holds it, to be written by all of them."""
        return {
            "agent": self.policy.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ranks.load(self.policy, state["agent"])
        self.ranks.load(self.optimiser, state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _average(agent: FlowAgent, decay: float) -> torch.optim.swa_utils.AveragedModel:
    if not 0 < decay < 1:
        raise ValueError(f"ema_decay must lie in (0, 1), got {decay}.")
    return torch.optim.swa_utils.AveragedModel(agent, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
