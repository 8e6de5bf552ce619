"""On-policy experience: D decisions in N lanes per batch, with what the likelihood needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import tree
from ..interfaces import Chunked, Foresees, Policy, Snapshots, VectorEnv
from ..types import ActionChunk, ChunkResult, Observation, Transition
from .focus import Focus
from .lanes import EpisodeEnd, Lanes


class Collector:
    """An `Experience` of fresh rollouts. Episodes run on from batch to batch.

    With `group` > 1 (GRPO), every batch starts anew: each run of `group` neighbouring lanes shares one restored
    start, plays one episode, and waits with `executed` 0 once it has ended.
    """

    def __init__(
        self, env: VectorEnv, policy: Policy, *, decisions: int, gamma: float = 0.97, execute: int | None = None,
        group: int = 1, focus: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        """`focus` plays tasks that fail more often (`Focus`)."""
        if decisions < 1:
            raise ValueError(f"A batch needs at least 1 decision per lane, got {decisions}.")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}.")
        if execute is not None and execute < 1:
            raise ValueError(f"At least 1 action of a chunk must be executed, got {execute}.")
        if group > 1 and (env.num_envs % group or not isinstance(env, Snapshots) or not isinstance(env, Chunked)):
            raise ValueError(
                f"Groups of {group} need a number of lanes that {group} divides (there are {env.num_envs}) and an "
                "environment that runs chunks and can snapshot and restore its lanes."
            )
        if focus and not isinstance(env, Foresees):
            raise ValueError(f"focus is {focus}, but this environment cannot tell which task comes next; use 0.")
        self.policy, self.decisions, self.gamma, self.execute, self.group = policy, decisions, gamma, execute, group
        self.lanes = Lanes(env, seed=seed)
        self._focus = Focus(focus, seed=seed)
        self.frames = 0
        """Frames run in all lanes since the start."""
        self._acting_s = self._stepping_s = 0.0

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        if self.group > 1:
            self._start_groups()
        rows = []
        for _ in range(self.decisions):
            obs = self.lanes.observation
            began = time.monotonic()
            chunk = self.policy.act(obs, explore=True)
            acted = time.monotonic()
            result = self.lanes.advance(chunk.actions[:, : self.execute])
            self.frames += int(result.executed.sum())
            rows.append(transition(obs, chunk, result, gamma=self.gamma))
            if self.group == 1:
                self._restart()
            self._acting_s += acted - began
            self._stepping_s += time.monotonic() - acted
            if not self.lanes.active.any():
                break  # every episode of every group is over
        return tree.stack(rows)

    def take_finished(self) -> list[EpisodeEnd]:
        """Hand over the episodes that ended since the last call."""
        return self.lanes.take_finished()

    def take_times(self) -> dict[str, float]:
        """Seconds spent acting and stepping since the last call."""
        times = {"time/act_s": self._acting_s, "time/step_s": self._stepping_s}
        self._acting_s = self._stepping_s = 0.0
        return times | {"time/rollout_s": sum(times.values())}

    def state_dict(self) -> dict[str, Any]:
        """Worlds, counters and unfinished returns, for a bit-identical resume where the env has snapshots."""
        env, every = self.lanes.env, np.arange(self.lanes.env.num_envs)
        lanes = self.lanes
        state: dict[str, Any] = {
            "frames": self.frames, "ret": lanes.ret.copy(), "length": lanes.length.copy(), "succeeded": lanes.succeeded.copy(),
            "focus": self._focus.state_dict(),
        }  # fmt: skip
        if isinstance(env, Snapshots):
            state["worlds"] = env.snapshot(every)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; an env without snapshots starts fresh episodes instead."""
        env, every = self.lanes.env, np.arange(self.lanes.env.num_envs)
        self.frames = int(state["frames"])
        self._focus.load_state_dict(state["focus"])
        if "worlds" in state and isinstance(env, Snapshots):
            self.lanes.observation = env.restore(every, np.asarray(state["worlds"]))
            self.lanes.ret, self.lanes.length = np.array(state["ret"]), np.array(state["length"])
            self.lanes.succeeded = np.array(state["succeeded"])

    def _restart(self) -> None:
        """Begin anew where an episode ended, with a start that is worth playing."""
        idle, env = ~self.lanes.active, self.lanes.env
        self._focus.learn(self.lanes.finished[len(self.lanes.finished) - idle.sum() :])
        if self._focus.strength and isinstance(env, Foresees):
            left = np.flatnonzero(idle)
            while len(left):
                left = left[self._focus.skip(env.next_tasks(left))]
                env.leave_out(left)
        self.lanes.restart(idle)

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
