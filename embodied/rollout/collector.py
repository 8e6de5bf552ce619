"""On-policy experience: D decisions in N lanes per batch, with what the likelihood needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import tree
from ..interfaces import Policy, Snapshots, VectorEnv
from ..types import ActionChunk, ChunkResult, Observation, Transition
from .lanes import EpisodeEnd, Lanes


class Collector:
    """An `Experience` of fresh rollouts. Episodes run on from batch to batch.

    With `group` > 1 (GRPO), every batch starts anew: each run of `group` neighbouring lanes shares one restored
    start, plays one episode, and waits with `executed` 0 once it has ended.
    """

    def __init__(
        self, env: VectorEnv, policy: Policy, *, decisions: int, gamma: float = 0.97, execute: int | None = None,
        group: int = 1, seed: int = 0,
    ) -> None:  # fmt: skip
        if decisions < 1:
            raise ValueError(f"A batch needs at least 1 decision per lane, got {decisions}.")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}.")
        if group > 1 and (env.num_envs % group or not isinstance(env, Snapshots)):
            raise ValueError(
                f"Groups of {group} need a number of lanes that {group} divides (there are {env.num_envs}) and an "
                "environment that can snapshot and restore its lanes."
            )
        self.policy, self.decisions, self.gamma, self.execute, self.group = policy, decisions, gamma, execute, group
        self.lanes = Lanes(env, seed=seed)
        self.frames = 0
        """Frames run in all lanes since the start."""

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        if self.group > 1:
            self._start_groups()
        rows = []
        for _ in range(self.decisions):
            obs = self.lanes.observation
            chunk = self.policy.act(obs, explore=True)
            result = self.lanes.advance(chunk.actions[:, : self.execute])
            self.frames += int(result.executed.sum())
            rows.append(transition(obs, chunk, result, gamma=self.gamma))
            if self.group == 1:
                self.lanes.restart(~self.lanes.active)
        return tree.stack(rows)

    def take_finished(self) -> list[EpisodeEnd]:
        """Hand over the episodes that ended since the last call."""
        return self.lanes.take_finished()

    def state_dict(self) -> dict[str, Any]:
        """Worlds, counters and unfinished returns, for a bit-identical resume where the env has snapshots."""
        env, every = self.lanes.env, np.arange(self.lanes.env.num_envs)
        state: dict[str, Any] = {"frames": self.frames, "ret": self.lanes.ret, "length": self.lanes.length}
        if isinstance(env, Snapshots):
            state["worlds"] = env.snapshot(every)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; an env without snapshots starts fresh episodes instead."""
        env, every = self.lanes.env, np.arange(self.lanes.env.num_envs)
        self.frames = int(state["frames"])
        if "worlds" in state and isinstance(env, Snapshots):
            self.lanes.observation = env.restore(every, np.asarray(state["worlds"]))
            self.lanes.ret, self.lanes.length = np.array(state["ret"]), np.array(state["length"])

    def _start_groups(self) -> None:
        env, every = self.lanes.env, np.arange(self.lanes.env.num_envs)
        self.lanes.restart(np.ones(len(every), bool))
        assert isinstance(env, Snapshots)
        leaders = every - every % self.group
        self.lanes.observation = env.restore(every, env.snapshot(leaders))


def transition(obs: Observation, chunk: ActionChunk, result: ChunkResult, *, gamma: float) -> Transition:
    """View one decision of N lanes as transitions: discounted chunk reward, and gamma^k or 0 as its discount."""
    horizon = result.reward.shape[1]
    weights = np.float32(gamma) ** np.arange(horizon, dtype=np.float32)
    return Transition(
        obs=obs,
        chunk=chunk,
        executed=result.executed,
        reward=(result.reward * weights).sum(1).astype(np.float32),
        discount=np.where(result.terminated, 0, np.float32(gamma) ** result.executed).astype(np.float32),
        next_obs=result.observation,
        done=result.terminated | result.truncated,
        success=result.success,
    )
