"""A velocity field that is one linear layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from embodied.interfaces import Velocity
from embodied.types import Observation, Spec


class Linear(nn.Module):
    """v = W [x, t, state]; raw units serve as normalised ones."""

    frozen_prefix = True
    precision = "float32"

    def __init__(self, spec: Spec, horizon: int = 1) -> None:
        super().__init__()
        self.spec, self.horizon, self.action_dim = spec, horizon, spec.action_dim
        self.prefix_dim = self.feature_dim = spec.state_dim
        self.layer = nn.Linear(horizon * self.action_dim + 1 + spec.state_dim, horizon * self.action_dim)

    def encode(self, obs: Observation) -> Tensor:
        return obs.state

    def prefix_features(self, context: Tensor) -> Tensor:
        return context

    def velocity(self, x: Tensor, t: Tensor, context: Tensor) -> Velocity:
        v = self.layer(torch.cat([x.flatten(1), t[:, None], context], 1)).reshape(x.shape)
        return Velocity(v=v, features=context[:, None].expand(-1, self.horizon, -1))

    def normalise(self, actions: Tensor) -> Tensor:
        return actions

    def unnormalise(self, actions: Tensor) -> Tensor:
        return actions

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None: ...
