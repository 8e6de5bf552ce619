"""What the decisions of a rollout are worth: values, returns and advantages, and the rows that an update trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .. import tree
from ..advantages import gae, group_relative, normalise
from ..agent import FlowAgent
from ..critics import ValueHead
from ..interfaces import Context
from ..parallel import Ranks
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
    number: Tensor
    """Each row's place among the rows of all processes, int64 [R]."""
    features: Tensor | None = None
    """Critic input [R, F]; absent without a critic, as are the next two."""
    value: Tensor | None = None
    """What the critic said before the update, [R]."""
    ret: Tensor | None = None
    """What it should say: advantage + value, [R]."""


class Credit:
    """Estimates the advantages of a `FlowAgent`'s rollouts [D, N], with a critic or within groups."""

    def __init__(
        self, agent: FlowAgent, ranks: Ranks, *, critic_input: CriticInput, group: int, lam: float, clip: float,
        at_once: int,
    ) -> None:  # fmt: skip
        """`at_once` is how many rows a process encodes at a time."""
        self.policy, self.ranks = agent, ranks
        self.critic_input, self.group, self.lam, self.clip, self.at_once = critic_input, group, lam, clip, at_once

    def critic(self) -> ValueHead:
        """A new value head of the input's width."""
        policy = self.policy.policy
        if self.critic_input == "privileged":
            if not policy.spec.privileged_names:
                raise ValueError("critic=privileged needs an environment with privileged observations; use critic=prefix.")
            width = len(policy.spec.privileged_names)
        else:
            width = policy.prefix_dim if self.critic_input == "prefix" else policy.feature_dim
        return ValueHead(width).to(self.policy.device)

    @torch.no_grad()
    def rows(self, rollout: Transition, critic: ValueHead | None) -> tuple[Rows, dict[str, float]]:
        """Values, returns and advantages of a rollout [D, N], then its rows that ran."""
        valid = rollout.executed > 0  # [D, N]
        flat = tree.flatten(rollout)
        trace = flat.chunk.trace
        if trace is None:
            raise ValueError("These transitions carry no trace, hence no likelihood; collect them with exploration on.")
        frozen = self.policy.policy.frozen_prefix
        context = self._encode(flat.obs) if frozen and flat.chunk.context is None else flat.chunk.context
        features = value = ret = None
        if critic is not None:
            advantage, features, value, ret = self._estimate(rollout, flat.obs, context, critic)
        else:
            advantage, valid = self._group_advantage(rollout, valid)
        everywhere = self._everyones(valid)  # [D, all N]
        metrics = _summary(everywhere, self._everyones(rollout.success), self._everyones(advantage))
        if value is not None and ret is not None:
            metrics |= _value_summary(everywhere, self._everyones(value), self._everyones(ret))
            advantage = self._own(normalise(self._everyones(advantage), everywhere), len(valid))
        advantage = advantage.clamp(-self.clip, self.clip)
        number = self._own((everywhere.flatten().cumsum(0) - 1).reshape(everywhere.shape), len(valid)).flatten()
        keep = valid.flatten().nonzero().squeeze(1)
        if not len(keep) and self.ranks.size > 1:  # a row to go in step with; its place is in no minibatch
            keep, number = torch.zeros_like(number[:1]), torch.full_like(number, -1)
        advantage = advantage.flatten()[keep]
        rows = Rows(
            obs=None if frozen else tree.index(flat.obs, keep), context=_rows(context, keep, len(number)) if frozen else None,
            trace=tree.index(trace, keep), version=flat.chunk.version[keep], executed=flat.executed[keep],
            advantage=advantage, number=number[keep], features=None if features is None else features[keep],
            value=None if value is None else value.flatten()[keep], ret=None if ret is None else ret.flatten()[keep],
        )  # fmt: skip
        return rows, metrics

    def _estimate(
        self, rollout: Transition, obs: Observation, context: Context, critic: ValueHead
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Advantages [D, N], critic features [D * N, F], values and returns [D, N]."""
        features = self._value_features(obs, context)
        critic.fit(self.ranks.gather(features))
        value = critic(features).reshape(rollout.reward.shape)  # [D, N]
        next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
        cut = rollout.done.clone()  # where the next row is not where this decision led
        cut[-1] = True
        after = tree.index(rollout.next_obs, cut)
        next_value[cut] = critic(self._value_features(after, None))
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
        if self.critic_input == "privileged":
            if obs.privileged is None:
                raise ValueError("critic=privileged needs observations with privileged state; use critic=prefix.")
            return obs.privileged.float()
        features = [self._summarise(obs, context, at)[:rows] for at, rows in self._slices(len(obs.state))]
        return torch.cat(features)

    def _summarise(self, obs: Observation, context: Context | None, at: slice) -> Tensor:
        """Critic input of some rows."""
        agent = self.policy
        part = agent.policy.encode(tree.index(obs, at)) if context is None else tree.index(context, at)
        if self.critic_input == "prefix":
            return agent.policy.prefix_features(part).float().to(agent.device)
        part, batch = tree.to(part, agent.device), at.stop - at.start
        x = torch.zeros(batch, agent.policy.horizon, agent.policy.action_dim, device=agent.device)
        return agent.policy.velocity(x, torch.ones(batch, device=agent.device), part).features.mean(1).float()

    def _encode(self, obs: Observation) -> Context:
        """Encode in slices, so that memory does not grow with the rollout."""
        parts = [tree.index(self.policy.policy.encode(tree.index(obs, at)), slice(0, rows)) for at, rows in self._slices(len(obs.state))]
        return tree.concat(parts)

    def _slices(self, rows: int) -> Iterator[tuple[slice, int]]:
        """Slices of at most a part's size, as many on every process, and how many of their rows count."""
        for part in torch.arange(rows).tensor_split(math.ceil(self.ranks.largest(rows) / self.at_once)):
            start = int(part[0]) if len(part) else 0
            yield slice(start, start + max(len(part), 1)), len(part)

    # ------------------------------------------------------------------------------------------------ the processes

    def _everyones(self, part: Tensor) -> Tensor:
        """[D, N] of every process side by side, [longest D, all N]; missing decisions are 0."""
        missing = self.ranks.largest(len(part)) - len(part)
        return self.ranks.gather(torch.cat([part, part.new_zeros(missing, part.shape[1])]), 1)

    def _own(self, everyones: Tensor, decisions: int) -> Tensor:
        """The inverse: this process's [D, N]."""
        return everyones.chunk(self.ranks.size, 1)[self.ranks.rank][:decisions]


def _summary(valid: Tensor, success: Tensor, advantage: Tensor) -> dict[str, float]:
    return {
        "advantage/mean_abs": float((advantage.abs() * valid).sum() / valid.sum().clamp(min=1)),
        "advantage/kept": float(valid.float().mean()),
        "rollout/success_per_decision": float(success.float().mean()),
    }


def _value_summary(valid: Tensor, value: Tensor, ret: Tensor) -> dict[str, float]:
    if not bool(valid.any()):
        return {}
    spread = ret[valid].var(correction=0)
    explained = 1 - (ret - value)[valid].var(correction=0) / spread if float(spread) > 0 else torch.tensor(0.0)
    return {"value/mean": float(value[valid].mean()), "value/explained_variance": float(explained)}


def _rows(context: Context, keep: Tensor, count: int) -> Context:
    """Rows of a context; all of them without a copy, which for a large model's prefixes takes gigabytes."""
    return context if len(keep) == count else tree.index(context, keep)
