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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import tree
from ..advantages import gae, group_relative, normalise
from ..agent import FlowAgent
from ..critics import ValueHead
from ..flow import entropy, kl, log_prob, mean_shift
from ..interfaces import Context, Experience
from ..kernels import Clip, Kernel
from ..types import Observation, Trace, Transition

CriticInput = Literal["prefix", "expert", "privileged"]


@dataclass(frozen=True)
class Rows:
    """What one update trains on: R decisions that ran."""

    obs: Observation | None
    """Kept only where the encoder trains and must run again."""
    context: Context
    """The rollout's own encoding, where the encoder is frozen."""
    trace: Trace
    version: Tensor
    executed: Tensor
    advantage: Tensor
    features: Tensor | None = None
    """Critic input [R, F]; absent without a critic, as are the next two."""
    value: Tensor | None = None
    """What the critic said before the update, [R]."""
    ret: Tensor | None = None
    """What it should say: advantage + value, [R]."""


class PiRL:
    """Trains a `FlowAgent` on its own rollouts [D, N]."""

    def __init__(
        self, agent: FlowAgent, *, learning_rate: float = 5e-5, learning_rate_end: float = 0.5, total_updates: int = 100,
        value_learning_rate: float = 1e-3, epochs: int = 4, minibatch: int = 320, lam: float = 0.95,
        kernel: Kernel | None = None, target_kl: float | None = 0.04, critic: CriticInput = "prefix",
        critic_warmup: int = 3, value_clip: float | None = 0.2, entropy_bonus: float = 0.0, gradient_clip: float = 1.0,
        advantage: Literal["gae", "group"] = "gae", group: int = 1, advantage_clip: float = 4.0,
        shuffle_advantages: bool = False, max_mean_shift: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """`learning_rate_end` is the share of both learning rates that is left after `total_updates`;
        `critic_warmup` counts updates without policy loss; `value_clip` is in units of return, off when None;
        `entropy_bonus` is per nat of a decision; `shuffle_advantages` is the control that must not learn;
        `max_mean_shift` is 1e-4 for a policy that computes in float32 and 5e-2 in bfloat16, unless given.
        """
        if min(epochs, minibatch, total_updates) < 1:
            raise ValueError(f"epochs, minibatch and total_updates must be at least 1, got {epochs}, {minibatch}, {total_updates}.")
        if advantage == "group" and group < 2:
            raise ValueError(f"Group-relative advantages need group >= 2 lanes with one start, got {group}.")
        self.policy = agent
        self.kernel = Clip() if kernel is None else kernel
        self.epochs, self.minibatch, self.lam, self.target_kl = epochs, minibatch, lam, target_kl
        self.critic_input, self.critic_warmup, self.value_clip = critic, critic_warmup, value_clip
        self.entropy_bonus, self.gradient_clip, self.advantage_clip = entropy_bonus, gradient_clip, advantage_clip
        self.advantage, self.group, self.shuffle_advantages = advantage, group, shuffle_advantages
        by_precision = {"float32": 1e-4, "bfloat16": 5e-2}
        self.max_mean_shift = by_precision[agent.policy.precision] if max_mean_shift is None else max_mean_shift
        self.updates = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.critic = ValueHead(self._critic_width()).to(agent.device) if advantage == "gae" else None
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
        rows, metrics = self.prepare(tree.to(next(batches), self.policy.device))
        count = len(rows.advantage)
        if count:
            metrics |= self._epochs(rows)
            self.schedule.step()
        self.updates += 1
        self.policy.version = self.updates
        return metrics | {"update/decisions": float(count), "update/learning_rate": float(self.schedule.get_last_lr()[0])}

    def _epochs(self, rows: Rows) -> dict[str, float]:
        learn_policy = self.critic is None or self.updates >= self.critic_warmup
        first: dict[str, float] = {}
        records: list[dict[str, float]] = []
        steps = 0
        for batch in self._minibatches(rows):
            losses: list[Tensor] = []
            logs: dict[str, float] = {}
            if learn_policy or not first:  # the ratio contract holds while the critic warms up, too
                policy_loss, logs = self.policy_loss(batch)
                first = first or self._check_ratio(logs)
                if self.target_kl is not None and logs["kl/behaviour"] > 1.5 * self.target_kl:
                    learn_policy = False
                losses += [policy_loss] * learn_policy
            steps += len(losses)
            if self.critic is not None:
                value_loss, value_logs = self.value_loss(batch)
                losses, logs = [*losses, value_loss], logs | value_logs
            records.append(logs)
            if not losses:
                break
            norm = self._step(torch.stack(losses).sum(), logs)
            if learn_policy:
                logs["loss/gradient_norm"] = norm
        return _means(records) | first | {"update/policy_steps": float(steps)}

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        """Every row once an epoch, in nearly equal parts: a small remainder would step as far as a whole minibatch."""
        count = len(rows.advantage)
        for _ in range(self.epochs):
            order = torch.randperm(count, generator=self.generator).to(rows.advantage.device)
            for at in order.tensor_split(math.ceil(count / self.minibatch)):
                yield tree.index(rows, at)

    def _step(self, loss: Tensor, logs: dict[str, float]) -> float:
        """Take one optimiser step and return the policy gradient's norm before clipping."""
        if not bool(torch.isfinite(loss)):
            broken = [name for name, figure in logs.items() if not math.isfinite(figure)] or ["loss"]
            raise RuntimeError(f"{', '.join(broken)} is not finite at update {self.updates}; the last checkpoint is whole.")
        self.optimiser.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.gradient_clip))
        if self.critic is not None:
            nn.utils.clip_grad_norm_(self.critic.parameters(), self.gradient_clip)
        self.optimiser.step()
        return norm

    # ------------------------------------------------------------------------------------------------ the losses

    def policy_loss(self, batch: Rows) -> tuple[Tensor, dict[str, float]]:
        """-E[w A log pi] with the kernel's detached weight w; at ratio 1 its gradient is -E[A grad log pi]."""
        agent, trace = self.policy, batch.trace
        context = batch.context if batch.obs is None else agent.policy.encode(batch.obs)
        mask = agent.element_mask(batch.executed)[:, None]  # [B, 1, H, A]
        mean, std = agent.replay(trace, batch.version, context)  # [B, L, H, A]
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

    def _check_ratio(self, logs: dict[str, float]) -> dict[str, float]:
        """The ratio contract: before the first optimiser step learner and rollout agree."""
        shift = logs["ratio/mean_shift"]
        if not shift <= self.max_mean_shift:
            raise RuntimeError(
                f"Before the first optimiser step of update {self.updates} the learner's means differ from the rollout's "
                f"by {shift:.2e} std (allowed {self.max_mean_shift:.0e}): weights, precision, dropout or preprocessing "
                "differ between acting and learning."
            )
        return {"ratio/mean_shift_first": shift, "ratio/max_abs_dev_first": logs["ratio/max_abs_dev"]}

    # ------------------------------------------------------------------------------------------------ the batch

    @torch.no_grad()
    def prepare(self, rollout: Transition) -> tuple[Rows, dict[str, float]]:
        """Values, returns and advantages of a rollout [D, N], then its rows that ran."""
        valid = rollout.executed > 0  # [D, N]
        flat = tree.flatten(rollout)
        trace = flat.chunk.trace
        if trace is None:
            raise ValueError("These transitions carry no trace, hence no likelihood; collect them with exploration on.")
        frozen = self.policy.policy.frozen_prefix
        context = self._encode(flat.obs) if frozen and flat.chunk.context is None else flat.chunk.context
        features = value = ret = None
        if self.critic is not None:
            advantage, features, value, ret = self._estimate(rollout, flat.obs, context)
        else:
            advantage, valid = self._group_advantage(rollout, valid)
        metrics = _summary(rollout, advantage, valid, value, ret)
        if self.critic is not None:
            advantage = normalise(advantage, valid)
        advantage = advantage.clamp(-self.advantage_clip, self.advantage_clip)
        keep = valid.flatten().nonzero().squeeze(1)
        advantage = advantage.flatten()[keep]
        if self.shuffle_advantages:
            advantage = advantage[torch.randperm(len(advantage), generator=self.generator).to(advantage.device)]
        rows = Rows(
            obs=None if frozen else tree.index(flat.obs, keep), context=tree.index(context, keep) if frozen else None,
            trace=tree.index(trace, keep), version=flat.chunk.version[keep], executed=flat.executed[keep],
            advantage=advantage, features=None if features is None else features[keep],
            value=None if value is None else value.flatten()[keep], ret=None if ret is None else ret.flatten()[keep],
        )  # fmt: skip
        return rows, metrics

    def _estimate(self, rollout: Transition, obs: Observation, context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Advantages [D, N], critic features [D * N, F], values and returns [D, N]."""
        assert self.critic is not None
        features = self._value_features(obs, context)
        self.critic.fit(features)
        value = self.critic(features).reshape(rollout.reward.shape)  # [D, N]
        next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
        cut = rollout.done.clone()  # where the next row is not where this decision led
        cut[-1] = True
        after = tree.index(rollout.next_obs, cut)
        next_value[cut] = self.critic(self._value_features(after, None))
        advantage = gae(rollout.reward, rollout.discount, rollout.done, value, next_value, self.lam)
        return advantage, features, value, advantage + value

    def _group_advantage(self, rollout: Transition, valid: Tensor) -> tuple[Tensor, Tensor]:
        """GRPO: the return of each lane's episode, compared within its group; groups without spread are dropped.

        Discounted by gamma per frame, as any return here: with gamma below 1 an earlier success scores higher, with
        gamma 1 successes are equal.
        """
        nothing = torch.zeros_like(rollout.reward)
        score = gae(rollout.reward, rollout.discount, rollout.done, nothing, nothing, lam=1.0)[0]  # [N]
        group = torch.arange(len(score), device=score.device) // self.group
        advantage, spread = group_relative(score, group)
        return advantage.expand_as(rollout.reward), valid & spread

    def _value_features(self, obs: Observation, context: Context | None) -> Tensor:
        """Critic input [B, F]; no gradient runs through it, as `prepare` takes none."""
        agent = self.policy
        if self.critic_input == "privileged":
            if obs.privileged is None:
                raise ValueError("critic=privileged needs observations with privileged state; use critic=prefix.")
            return obs.privileged.float()
        if context is None:
            context = self._encode(obs)
        if self.critic_input == "prefix":
            return agent.policy.prefix_features(context).float()
        batch = len(obs.state)
        x = torch.zeros(batch, agent.policy.horizon, agent.policy.action_dim, device=agent.device)
        velocity = agent.policy.velocity(x, torch.ones(batch, device=agent.device), context)
        return velocity.features.mean(1).float()

    def _encode(self, obs: Observation) -> Context:
        """Encode in slices of the minibatch size, so that memory does not grow with the rollout."""
        slices = torch.arange(len(obs.state), device=self.policy.device).split(self.minibatch)
        return tree.concat([self.policy.policy.encode(tree.index(obs, at)) for at in slices])

    def _critic_width(self) -> int:
        policy = self.policy.policy
        if self.critic_input == "privileged":
            if not policy.spec.privileged_names:
                raise ValueError("critic=privileged needs an environment with privileged observations; use critic=prefix.")
            return len(policy.spec.privileged_names)
        return policy.prefix_dim if self.critic_input == "prefix" else policy.feature_dim

    # ------------------------------------------------------------------------------------------------ state

    @property
    def policy_state(self) -> dict[str, Tensor]:
        return self.policy.state_dict()

    def state_dict(self) -> dict[str, Any]:
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
        self.policy.load_state_dict(state["agent"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.updates = self.policy.version = int(state["updates"])
        self.policy.generator.set_state(state["acting"])
        self.generator.set_state(state["batching"])


def _summary(
    rollout: Transition, advantage: Tensor, valid: Tensor, value: Tensor | None, ret: Tensor | None
) -> dict[str, float]:
    count = int(valid.sum())
    figures = {
        "advantage/mean_abs": float((advantage.abs() * valid).sum() / max(count, 1)),
        "advantage/kept": float(valid.float().mean()),
        "rollout/success_per_decision": float(rollout.success.float().mean()),
    }
    if value is None or ret is None or not count:
        return figures
    spread = ret[valid].var(correction=0)
    explained = 1 - (ret - value)[valid].var(correction=0) / spread if float(spread) > 0 else torch.tensor(0.0)
    return figures | {"value/mean": float(value[valid].mean()), "value/explained_variance": float(explained)}


def _huber(guess: Tensor, target: Tensor) -> Tensor:
    return nn.functional.huber_loss(guess, target, reduction="none", delta=10.0)


def _means(records: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average each figure over the minibatches that reported it."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: fmean(record[name] for record in records if name in record) for name in names}
