"""pi_RL: policy-gradient RL of flow policies (arXiv 2510.25889), with PPO or group-relative advantages.

A decision's likelihood is that of its stochastic denoising steps (`flow.Sampler`): one drawn step (hybrid), every
step on its own (two-layer), or their joint (one-layer). Deviations from the paper and its code, each on purpose:

* The stochastic index is drawn per sample, not per batch, and each sample is weighted by 1 / (K p_index), so the
  expected gradient does not depend on the index law.
* Truncation bootstraps from the true final observation; the reference treats it as failure.
* Value features are computed once per update and detached, the same for rollout and learner; expert features are
  read at one fixed point (x = 0, t = 1) instead of at the sampled noise.
* Advantages are normalised over the whole batch (group-relative ones within their group alone), KL is closed form,
  and a minibatch that finds the policy too far from the rollout's is not stepped on.
* Log-probability, entropy and KL are sums over what a decision drew, never means, so clip ranges speak of decisions.
* Before the first optimiser step of every update the learner must reproduce the rollout's means
  (`ratio/mean_shift_first`), or the run stops.
* A minibatch may be taken in parts and on several processes; the step is that of the whole minibatch in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import tree
from ..agent import FlowAgent
from ..flow import entropy, kl, log_prob, mean_shift
from ..interfaces import Experience
from ..kernels import Clip, Kernel
from ..parallel import Ranks
from ..types import Transition
from .credit import Credit, CriticInput, Rows

MAXIMA = ("ratio/max_abs_dev", "ratio/mean_shift")
"""Figures of which the largest counts, not the mean."""

Minibatch = list[tuple[Tensor, float]]
"""Row indices of each part, and the weight of the part's mean in the minibatch's."""


class PiRL:
    """Trains a `FlowAgent` on its own rollouts [D, N]."""

    def __init__(
        self, agent: FlowAgent, *, learning_rate: float = 5e-5, learning_rate_end: float = 0.5, total_updates: int = 100,
        value_learning_rate: float = 1e-3, epochs: int = 4, minibatch: int = 320, lam: float = 0.95,
        kernel: Kernel | None = None, target_kl: float | None = 0.04, critic: CriticInput = "prefix",
        critic_warmup: int = 3, value_clip: float | None = 0.2, entropy_bonus: float = 0.0, gradient_clip: float = 1.0,
        advantage: Literal["gae", "group"] = "gae", group: int = 1, advantage_clip: float = 4.0,
        shuffle_advantages: bool = False, max_mean_shift: float | None = None, recompute_behaviour: bool = False,
        microbatch: int | None = None, ranks: Ranks | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """`learning_rate_end` is the share of both learning rates that is left after `total_updates`;
        `critic_warmup` counts updates without policy loss; `value_clip` is in units of return, off when None;
        `entropy_bonus` is per nat of a decision; `shuffle_advantages` is the control that must not learn;
        `max_mean_shift` is 1e-4 for a policy that computes in float32 and 5e-2 in bfloat16, unless given;
        `recompute_behaviour` takes the behaviour's means from the learner itself, in the minibatches of the first
        epoch, so that ratios start at exactly 1; `microbatch` is how many rows of a minibatch a process computes at
        once, all when None.
        """
        sizes = (epochs, minibatch, total_updates, *(() if microbatch is None else (microbatch,)))
        if min(sizes) < 1:
            raise ValueError(f"epochs, minibatch, total_updates and microbatch must be at least 1, got {sizes}.")
        if advantage == "group" and group < 2:
            raise ValueError(f"Group-relative advantages need group >= 2 lanes with one start, got {group}.")
        self.policy = agent
        self.kernel = Clip() if kernel is None else kernel
        self.epochs, self.minibatch, self.target_kl = epochs, minibatch, target_kl
        self.critic_warmup, self.value_clip = critic_warmup, value_clip
        self.entropy_bonus, self.gradient_clip = entropy_bonus, gradient_clip
        by_precision = {"float32": 1e-4, "bfloat16": 5e-2}
        self.max_mean_shift = by_precision[agent.policy.precision] if max_mean_shift is None else max_mean_shift
        self.recompute_behaviour, self.microbatch = recompute_behaviour, microbatch
        self.shuffle_advantages = shuffle_advantages
        self.ranks = Ranks() if ranks is None else ranks
        self.updates = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.credit = Credit(
            agent, self.ranks, critic_input=critic, group=group, lam=lam, clip=advantage_clip,
            at_once=minibatch if microbatch is None else microbatch,
        )  # fmt: skip
        self.critic = self.credit.critic() if advantage == "gae" else None
        self.ranks.adopt(agent.policy, *(head for head in (agent.noise_head, self.critic) if head is not None))
        self.parameters = [p for p in agent.parameters() if p.requires_grad]
        groups = [{"params": self.parameters, "lr": learning_rate}]
        if self.critic is not None:
            groups.append({"params": list(self.critic.parameters()), "lr": value_learning_rate})
        self.optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimiser, 1.0, learning_rate_end, total_updates)

    # ------------------------------------------------------------------------------------------------ the update

    def update(self, batches: Experience) -> dict[str, float]:
        """Take one rollout, then several epochs of minibatches over it."""
        self.policy.eval()
        rollout = next(batches)
        context = rollout.chunk.context  # may wait on the host, and goes to the device part by part
        rollout = tree.to(replace(rollout, chunk=replace(rollout.chunk, context=None)), self.policy.device)
        rows, metrics = self.prepare(replace(rollout, chunk=replace(rollout.chunk, context=context)))
        count = self.ranks.largest(int(rows.number.max()) + 1 if len(rows.number) else 0)
        if count:
            metrics |= self._epochs(rows, count)
            self.schedule.step()
        self.updates += 1
        self.policy.version = self.updates
        return metrics | {"update/decisions": float(count), "update/learning_rate": float(self.schedule.get_last_lr()[0])}

    def prepare(self, rollout: Transition) -> tuple[Rows, dict[str, float]]:
        """The rows of a rollout [D, N] that ran, with their advantages, and figures about them."""
        rows, figures = self.credit.rows(rollout, self.critic)
        if self.shuffle_advantages:  # by the update's number: the minibatches' stream must be the same in all processes
            shuffler = torch.Generator().manual_seed(self.updates)
            order = torch.randperm(len(rows.advantage), generator=shuffler)
            rows = replace(rows, advantage=rows.advantage[order.to(rows.advantage.device)])
        return rows, figures

    def _epochs(self, rows: Rows, count: int) -> dict[str, float]:
        learn_policy = self.critic is None or self.updates >= self.critic_warmup
        first: dict[str, float] = {}
        records: list[dict[str, float]] = []
        steps = 0
        plan = self._minibatches(rows, count)
        if self.recompute_behaviour:
            rows, first = self._recompute(rows, plan)
        for epoch in range(self.epochs):
            for minibatch in plan if epoch == 0 else self._minibatches(rows, count):
                check = "ratio/mean_shift_first" not in first  # the ratio contract holds while the critic warms up, too
                logs = self._accumulate(rows, minibatch, policy=learn_policy, check=check)
                records.append(logs)
                first |= self._check_ratio(logs["ratio/mean_shift"], logs["ratio/max_abs_dev"]) if check else {}
                if learn_policy and self.target_kl is not None and logs["kl/behaviour"] > 1.5 * self.target_kl:
                    learn_policy = False
                    for parameter in self.parameters:
                        parameter.grad = None
                if not learn_policy and self.critic is None:
                    return _means(records) | first | {"update/policy_steps": float(steps)}
                steps += learn_policy
                norm = self._step()
                if learn_policy:
                    logs["loss/gradient_norm"] = norm
        return _means(records) | first | {"update/policy_steps": float(steps)}

    def _minibatches(self, rows: Rows, count: int) -> list[Minibatch]:
        """Every row once, in nearly equal minibatches: a small remainder would step as far as a whole one.

        All processes draw the same order of all rows, and each takes those that it has.
        """
        order = torch.randperm(count, generator=self.generator).to(rows.number.device)
        places = torch.cat([order.argsort(), order.new_tensor([count])])
        place = places[rows.number]  # of each row of this process in that order
        own, plan, start = place.argsort(), [], 0
        for chosen in order.tensor_split(math.ceil(count / self.minibatch)):
            size = len(chosen)
            at = own[(place[own] >= start) & (place[own] < start + size)]
            start += size
            parts = 1 if self.microbatch is None else math.ceil(self.ranks.largest(len(at)) / self.microbatch)
            # a process without rows for a part computes a weightless one, so that all go in step
            plan.append([(part if len(part) else own[:1], self.ranks.weight(len(part), size)) for part in at.tensor_split(parts)])
        return plan

    def _accumulate(self, rows: Rows, minibatch: Minibatch, *, policy: bool, check: bool) -> dict[str, float]:
        """Put the gradients of a minibatch's losses into the parameters, part by part; figures of the whole."""
        self.optimiser.zero_grad()
        total: dict[str, float] = {}
        for number, (at, weight) in enumerate(minibatch):
            batch = tree.take(rows, at, self.policy.device)
            with self.ranks.accumulate(last=number == len(minibatch) - 1):
                loss, logs = self.ranks.run(self._losses, batch, policy, check)
                if not bool(torch.isfinite(loss)):
                    broken = [name for name, figure in logs.items() if not math.isfinite(figure)] or ["loss"]
                    raise RuntimeError(f"{', '.join(broken)} is not finite at update {self.updates}; the last checkpoint is whole.")
                (loss * weight).backward()
            for name, figure in logs.items():
                before = total.get(name, 0.0)
                total[name] = max(before, figure) if name in MAXIMA else before + figure * weight
        return self.ranks.combine(total, MAXIMA)

    def _losses(self, batch: Rows, policy: bool, check: bool) -> tuple[Tensor, dict[str, float]]:
        losses: list[Tensor] = []
        logs: dict[str, float] = {}
        if policy or check:
            with torch.set_grad_enabled(policy):
                loss, logs = self.policy_loss(batch)
            losses += [loss] * policy
        if self.critic is not None:
            value_loss, value_logs = self.value_loss(batch)
            losses, logs = [*losses, value_loss], logs | value_logs
        return torch.stack(losses).sum(), logs

    def _step(self) -> float:
        """Take one optimiser step and return the policy gradient's norm before clipping."""
        norm = self.ranks.clip(self.parameters, self.gradient_clip)
        if self.critic is not None:
            self.ranks.clip(list(self.critic.parameters()), self.gradient_clip)
        self.optimiser.step()
        return norm

    @torch.no_grad()
    def _recompute(self, rows: Rows, plan: list[Minibatch]) -> tuple[Rows, dict[str, float]]:
        """Take the behaviour's means and stds from the learner, computed in the very parts that will be trained on."""
        mean, std, shift = torch.empty_like(rows.trace.x), torch.empty_like(rows.trace.x), 0.0
        for at, weight in (part for minibatch in plan for part in minibatch):
            batch = tree.take(rows, at, self.policy.device)
            new_mean, new_std = self._replay(batch)
            if weight:
                mask = self.policy.element_mask(batch.executed)[:, None]
                shift = max(shift, float(mean_shift(new_mean, new_std, batch.trace.mean, batch.trace.std, mask).max()))
                mean[at], std[at] = new_mean, new_std.expand_as(new_mean)
        figures = self.ranks.combine({"ratio/rollout_shift": shift}, ("ratio/rollout_shift",))
        self._check_ratio(figures["ratio/rollout_shift"], 0.0)
        return replace(rows, trace=replace(rows.trace, mean=mean, std=std)), figures

    # ------------------------------------------------------------------------------------------------ the losses

    def policy_loss(self, batch: Rows) -> tuple[Tensor, dict[str, float]]:
        """-E[w A log pi] with the kernel's detached weight w; at ratio 1 its gradient is -E[A grad log pi]."""
        agent, trace = self.policy, batch.trace
        mask = agent.element_mask(batch.executed)[:, None]  # [B, 1, H, A]
        mean, std = self._replay(batch)  # [B, L, H, A]
        log_new = log_prob(trace.x_next, mean, std, mask)  # [B, L]
        log_old = log_prob(trace.x_next, trace.mean, trace.std, mask)
        divergence = kl(trace.mean, trace.std, mean, std, mask)
        spread = entropy(std, mask)
        if agent.sampler.form == "joint":
            log_new, log_old, divergence, spread = (
                part.sum(1, keepdim=True) for part in (log_new, log_old, divergence, spread)
            )
        advantage = batch.advantage[:, None].expand_as(log_new)
        log_ratio = (log_new - log_old).detach()
        share = self._index_weight(trace.step)
        weight = self.kernel(log_ratio, advantage, divergence.detach()) * share
        loss = -((weight * advantage).detach() * log_new).mean()
        if self.entropy_bonus:
            loss = loss - self.entropy_bonus * (share * spread).mean()
        ratio = log_ratio.exp()
        logs = {
            "loss/policy": float(loss.detach()),
            "kl/behaviour": float(divergence.detach().sum(1).mean()),
            "ratio/blocked": float((weight == 0).float().mean()),
            "ratio/max_abs_dev": float((ratio - 1).abs().max()),
            "ratio/mean_shift": float(mean_shift(mean.detach(), std.detach(), trace.mean, trace.std, mask).max()),
        }
        return loss, logs

    def _replay(self, batch: Rows) -> tuple[Tensor, Tensor]:
        """Means and stds of a batch's steps under the current weights."""
        context = batch.context if batch.obs is None else self.policy.policy.encode(batch.obs)
        return self.policy.replay(batch.trace, batch.version, context)

    def value_loss(self, batch: Rows) -> tuple[Tensor, dict[str, float]]:
        """Huber loss, the worse of the plain and the clipped step away from the rollout's value (PPO)."""
        assert self.critic is not None and batch.features is not None
        assert batch.value is not None and batch.ret is not None
        value = self.critic(batch.features)  # [B]
        loss = _huber(value, batch.ret)
        logs: dict[str, float] = {}
        if self.value_clip is not None:
            clipped = batch.value + (value - batch.value).clamp(-self.value_clip, self.value_clip)
            loss = torch.maximum(loss, _huber(clipped, batch.ret))
            logs["value/clipped"] = float(((value - batch.value).abs() > self.value_clip).float().mean())
        loss = loss.mean()
        return loss, logs | {"loss/value": float(loss.detach())}

    def _index_weight(self, step: Tensor) -> Tensor:
        """1 / (K p_index) in the hybrid form, [B, 1]: every index law then has the same expected gradient; else 1."""
        sampler = self.policy.sampler
        if sampler.form != "hybrid":
            return torch.ones((), device=step.device)
        return 1 / (sampler.steps * sampler.index_probabilities().to(step.device)[step])

    def _check_ratio(self, shift: float, deviation: float) -> dict[str, float]:
        """The ratio contract: before the first optimiser step learner and rollout agree."""
        if not shift <= self.max_mean_shift:
            raise RuntimeError(
                f"Before the first optimiser step of update {self.updates} the learner's means differ from the rollout's "
                f"by {shift:.2e} std (allowed {self.max_mean_shift:.0e}): weights, precision, dropout or preprocessing "
                "differ between acting and learning."
            )
        return {"ratio/mean_shift_first": shift, "ratio/max_abs_dev_first": deviation}

    # ------------------------------------------------------------------------------------------------ state

    @property
    def policy_state(self) -> dict[str, Tensor]:
        return self.ranks.whole(self.policy.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return self.ranks.whole(self.parts())

    def parts(self) -> dict[str, Any]:
        """The state as this process holds it, to be written by all of them."""
        return {
            "agent": self.policy.state_dict(),
            "critic": None if self.critic is None else self.critic.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "updates": self.updates,
            "acting": self.policy.generator.get_state(),
            "batching": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ranks.load(self.policy, state["agent"])
        if self.critic is not None:
            self.ranks.load(self.critic, state["critic"])
        self.ranks.load(self.optimiser, state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.updates = self.policy.version = int(state["updates"])
        self.policy.generator.set_state(state["acting"])
        self.generator.set_state(state["batching"])


def _huber(guess: Tensor, target: Tensor) -> Tensor:
    return nn.functional.huber_loss(guess, target, reduction="none", delta=10.0)


def _means(records: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average each figure over the minibatches that reported it."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: fmean(record[name] for record in records if name in record) for name in names}
