"""Velocity fields whose flow is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from embodied.interfaces import Velocity
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
