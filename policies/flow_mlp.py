"""FlowMLP: a small state-based flow policy, for a first result in a minute."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from ..interfaces import Precision, Velocity
from ..types import Observation, Spec
from .normalise import Normaliser


class FlowMLP(nn.Module):
    """Residual MLP velocity field on the state vector alone; the instruction is not read.

    Its prefix is the normalised state, which no parameter touches, so it counts as frozen.
    """

    def __init__(self, spec: Spec, horizon: int = 4, *, width: int = 256, blocks: int = 2, features: int = 64) -> None:
        super().__init__()
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 action per chunk, got {horizon}.")
        self.spec, self.horizon, self.action_dim = spec, horizon, spec.action_dim
        self.prefix_dim, self.feature_dim, self.frozen_prefix = spec.state_dim, features, True
        self.precision: Precision = "float32"
        self.normaliser = Normaliser(spec)
        self.embed = nn.Linear(horizon * spec.action_dim + spec.state_dim + 2 * len(_FREQUENCIES), width)
        self.blocks = nn.ModuleList(_Residual(width) for _ in range(blocks))
        self.expand = nn.Linear(width, horizon * features)
        self.readout = nn.Linear(features, spec.action_dim)

    def encode(self, obs: Observation) -> Tensor:
        """Normalised state [B, S]."""
        return self.normaliser.state(obs.state)

    def prefix_features(self, context: Tensor) -> Tensor:
        return context

    def velocity(self, x: Tensor, t: Tensor, context: Tensor) -> Velocity:
        h = self.embed(torch.cat([x.flatten(1), embed_time(t), context], -1))
        for block in self.blocks:
            h = block(h)
        features = nn.functional.silu(self.expand(h)).unflatten(-1, (self.horizon, self.feature_dim))  # [B, H, F]
        return Velocity(v=self.readout(features), features=features)

    def normalise(self, actions: Tensor) -> Tensor:
        return self.normaliser.action(actions)

    def unnormalise(self, actions: Tensor) -> Tensor:
        return self.normaliser.raw_action(actions)

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None:
        self.normaliser.fit(states)


_FREQUENCIES = [2**i * math.pi for i in range(4)]


def embed_time(t: Tensor) -> Tensor:
    """Sines and cosines of flow time t [B] at four octaves: [B, 8]."""
    angles = t[:, None] * torch.tensor(_FREQUENCIES, dtype=t.dtype, device=t.device)
    return torch.cat([angles.sin(), angles.cos()], -1)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.net(h)
