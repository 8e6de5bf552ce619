"""Value heads and noise heads: small networks on features that policies expose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.SiLU) -> nn.Sequential:
    """A multilayer perceptron with `activation` between layers and a linear end."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class ValueHead(nn.Module):
    """State value from features [B, F]: float32 [B].

    Inputs are standardised by the statistics of the first batch it saw and clamped to 10 spreads, so that raw
    privileged state and network features are served alike. The statistics are part of its state.
    """

    def __init__(self, features: int, *, hidden: Sequence[int] = (256, 256, 256)) -> None:
        super().__init__()
        self.net = mlp([features, *hidden, 1])
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.02)
        nn.init.zeros_(last.bias)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.zeros(features))  # 0 until fitted
        self.mean: Tensor
        self.std: Tensor

    def fit(self, features: Tensor) -> None:
        """Take input statistics from features [B, F], once; later calls change nothing."""
        if bool(self.std.any()):
            return
        std = features.std(0, correction=0)
        # constant so far (one task, one start): keep its unit, or the first change would arrive as a thousand spreads
        constant = std <= 1e-6 * features.abs().amax(0).clamp(min=1)
        self.mean.copy_(features.mean(0))
        self.std.copy_(torch.where(constant, 1.0, std))

    def forward(self, features: Tensor) -> Tensor:
        if not bool(self.std.any()):
            raise RuntimeError("ValueHead has no input statistics; call fit(features) or load a state first.")
        return self.net(((features.float() - self.mean) / self.std).clamp(-10, 10)).squeeze(-1)


class NoiseHead(nn.Module):
    """Raw log-std per action element from expert features [B, H, F]: [B, H, A] (Flow-Noise; bound it in `flow`)."""

    def __init__(self, features: int, actions: int, *, hidden: Sequence[int] = (128, 64)) -> None:
        super().__init__()
        self.net = mlp([features, *hidden, actions], nn.Tanh)

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features.float())
