"""Turn a velocity field into a policy: encode once, integrate, and keep what the likelihood needs."""

from __future__ import annotations

import copy
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from . import tree
from .critics import NoiseHead
from .flow import Field, Level, Sampler, bounded_std, element_mask, generate, replay
from .interfaces import Context, FlowPolicy, Velocity
from .types import ActionChunk, Observation, Trace


class FlowAgent(nn.Module):
    """A `FlowPolicy` that acts.

    Without exploration the chunk is the ODE's, random through its initial noise alone. With it, the sampler's
    steps are drawn and traced. Rollout (`act`) and learner (`replay`) call the same transition.
    """

    def __init__(
        self, policy: FlowPolicy, sampler: Sampler | None = None, *, contexts: Literal["device", "host"] = "device", seed: int = 0
    ) -> None:
        """`contexts` is where those of a rollout wait for the learner: a large model's may not fit the device."""
        super().__init__()
        self.policy, self.contexts = policy, contexts
        self.sampler = Sampler() if sampler is None else sampler
        self.noise_head = (
            NoiseHead(policy.feature_dim, policy.action_dim) if self.sampler.noise == "learned" else None
        )
        self.version = 0
        """Policy version that acts now; the learner sets it with the weights."""
        self.generator = torch.Generator().manual_seed(seed)
        self.eval()  # dropout stays off on both sides, or the ratio compares different networks

    def copy(self, *, seed: int) -> FlowAgent:
        """The same weights with a random stream of its own, so that evaluating does not disturb training."""
        twin = copy.copy(self)
        twin.generator = torch.Generator().manual_seed(seed)
        return twin

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        """Propose one chunk per row of `obs` [B, ...], NumPy in and out."""
        require_finite(obs, self.policy.spec.state_names)
        context = self.policy.encode(tree.to(obs, self.device))
        batch = len(obs.state)
        shape = (batch, self.policy.horizon, self.policy.action_dim)
        x = torch.randn(shape, generator=self.generator).to(self.device)
        version = torch.full((batch,), self.version, device=self.device)
        stochastic = self.sampler.draw_steps(batch, self.generator).to(self.device) if explore else None
        action, trace = generate(
            self.field(context), x, steps=self.sampler.steps, generator=self.generator,
            noise=self.sampler.noise, stochastic=stochastic, level=self.level(version) if explore else None,
        )  # fmt: skip
        actions = self.policy.unnormalise(action)  # [B, H, spec.action_dim]
        if not bool(torch.isfinite(actions).all()):
            lane = int((~torch.isfinite(actions)).flatten(1).any(1).nonzero()[0])
            raise RuntimeError(f"The policy proposed a non-finite action in lane {lane} at version {self.version}.")
        return ActionChunk(
            actions=actions.float().cpu().numpy(),
            version=version.cpu().numpy(),
            trace=None if trace is None else tree.to_numpy(trace),
            context=self._kept(context) if explore and self.policy.frozen_prefix else None,
        )

    def _kept(self, context: Context) -> Context:
        return context if self.contexts == "device" else tree.to(context, "cpu")

    @torch.no_grad()
    def encode(self, obs: Observation) -> Context:
        """Encode NumPy observations [B, ...] to keep, where the encoder does not train."""
        return self.policy.encode(tree.to(obs, self.device))

    def field(self, context: Context) -> Field:
        """The velocity field with its context filled in."""

        def velocity(x: Tensor, t: Tensor) -> Velocity:
            return self.policy.velocity(x, t, context)

        return velocity

    def level(self, version: Tensor) -> Level:
        """The noise level that the policy versions [B] acted with."""
        head = self.noise_head
        if head is not None:
            low, high = self.sampler.std_bounds
            return lambda velocity: bounded_std(head(velocity.features), low, high)
        column = self.sampler.level_at(version)[:, None, None]
        return lambda velocity: column

    def replay(self, trace: Trace, version: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Mean and std [B, L, H, A] of traced steps under the current parameters, all L in one call."""
        likelihoods = trace.step.shape[1]
        return replay(
            self.field(tree.repeat(context, likelihoods)), trace, steps=self.sampler.steps,
            noise=self.sampler.noise, level=self.level(version.repeat_interleave(likelihoods)),
        )  # fmt: skip

    def element_mask(self, executed: Tensor) -> Tensor:
        """float32 [B, H, A]: executed frames x real action dims."""
        return element_mask(executed, (self.policy.horizon, self.policy.action_dim), self.policy.spec.action_dim)


def require_finite(obs: Observation, state_names: tuple[str, ...]) -> None:
    """Refuse NaN and infinities in an observation, naming lane and field."""
    state = np.asarray(obs.state)
    if not np.isfinite(state).all():
        lane, entry = np.argwhere(~np.isfinite(state))[0]
        raise RuntimeError(f"state '{state_names[entry]}' of lane {lane} is {state[lane, entry]}; check the sensor or simulator.")
    if obs.privileged is not None and not np.isfinite(obs.privileged).all():
        lane, entry = np.argwhere(~np.isfinite(obs.privileged))[0]
        raise RuntimeError(f"privileged entry {entry} of lane {lane} is {obs.privileged[lane, entry]}; check the simulator.")
