"""Velocity fields whose flow is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from embodied.interfaces import Precision, Velocity
from embodied.types import Observation, Spec


def line(name: str = "line") -> Spec:
    """One state number, one action number."""
    return Spec(
        robot=name, tasks=("pull",), state_names=("s",), action_names=("a",), action_low=(-1.0,), action_high=(1.0,),
        control_hz=10.0,
    )  # fmt: skip


def looking(batch: int, states: int = 1) -> Observation:
    """`batch` rows of a state that says nothing."""
    return Observation(
        images={}, state=np.zeros((batch, states), np.float32), prompt=np.full(batch, ""), time=np.zeros(batch)
    )


@dataclass(frozen=True)
class Gaussian:
    """Actions A ~ N(mean, std^2): x_t = (1 - t) A + t eps is Gaussian, so its velocity and score are linear in x."""

    mean: float
    std: float

    def variance(self, t: Tensor) -> Tensor:
        """Var x_t = (1 - t)^2 std^2 + t^2."""
        return (1 - t) ** 2 * self.std**2 + t**2

    def slope(self, t: Tensor) -> Tensor:
        """dv / dx = Cov(eps - A, x_t) / Var x_t."""
        return (t - (1 - t) * self.std**2) / self.variance(t)

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        """E[eps - A | x_t = x]."""
        return -self.mean + self.slope(t) * (x - (1 - t) * self.mean)

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """d log p_t / dx."""
        return -(x - (1 - t) * self.mean) / self.variance(t)


class ShiftedGaussian(nn.Module):
    """A flow policy with one parameter: the exact velocity of a Gaussian, plus theta."""

    def __init__(self, gaussian: Gaussian, theta: float = 0.0) -> None:
        super().__init__()
        self.spec, self.horizon, self.action_dim = line(), 1, 1
        self.prefix_dim, self.feature_dim, self.frozen_prefix = 1, 1, True
        self.precision: Precision = "float32"
        self.gaussian = gaussian
        self.theta = nn.Parameter(torch.tensor(theta))

    def encode(self, obs: Observation) -> Tensor:
        return torch.as_tensor(obs.state)

    def prefix_features(self, context: Tensor) -> Tensor:
        return context

    def velocity(self, x: Tensor, t: Tensor, context: Tensor) -> Velocity:
        return Velocity(v=self.gaussian.velocity(x, t[:, None, None]) + self.theta, features=torch.ones_like(x))

    def normalise(self, actions: Tensor) -> Tensor:
        return actions

    def unnormalise(self, actions: Tensor) -> Tensor:
        return actions

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None: ...


class Toy(nn.Module):
    """A flow policy with everything that can go wrong: padding dims, an encoder, dropout, statistics."""

    def __init__(
        self, spec: Spec, horizon: int = 3, *, padding: int = 2, frozen_prefix: bool = False, dropout: float = 0.0,
        precision: Precision = "float32",
    ) -> None:  # fmt: skip
        super().__init__()
        self.spec, self.horizon, self.action_dim = spec, horizon, spec.action_dim + padding
        self.prefix_dim, self.feature_dim, self.frozen_prefix = 6, 8, frozen_prefix
        self.precision: Precision = precision
        self.encoder = nn.Linear(spec.state_dim, 6)
        self.encoder.requires_grad_(not frozen_prefix)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(self.action_dim + 7, 8)
        self.mix = nn.Linear(horizon * 8, horizon * 8)
        self.readout = nn.Linear(8, self.action_dim)
        self.register_buffer("scale", torch.full((spec.action_dim,), 2.0))
        self.scale: Tensor

    def encode(self, obs: Observation) -> Tensor:
        return torch.tanh(self.encoder(obs.state))

    def prefix_features(self, context: Tensor) -> Tensor:
        return context

    def velocity(self, x: Tensor, t: Tensor, context: Tensor) -> Velocity:
        shared = torch.cat([context, t[:, None]], -1)[:, None].expand(-1, self.horizon, -1)
        h = self.dropout(torch.tanh(self.hidden(torch.cat([x, shared], -1))))
        features = torch.tanh(self.mix(h.flatten(1))).unflatten(1, (self.horizon, 8))
        return Velocity(v=self.readout(features), features=features)

    def normalise(self, actions: Tensor) -> Tensor:
        padding = torch.zeros(*actions.shape[:-1], self.action_dim - self.spec.action_dim)
        return torch.cat([actions / self.scale, padding], -1)

    def unnormalise(self, actions: Tensor) -> Tensor:
        return actions[..., : self.spec.action_dim] * self.scale

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None:
        self.scale.copy_(torch.as_tensor(np.abs(actions).max(0)))
