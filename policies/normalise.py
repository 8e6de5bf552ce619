"""Normalisation inside a policy; its statistics are buffers and travel in the checkpoint."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..types import Spec


class Normaliser(nn.Module):
    """States are standardised by data statistics, actions by the embodiment's own limits to [-1, 1].

    Limits, not data statistics, for actions: a few demonstrations leave some dims nearly constant, and noise
    scaled by their spread would never explore them.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise ValueError(f"Action limits must be finite to normalise by, got {spec.action_low} and {spec.action_high}.")
        self.names = spec.state_names
        self.register_buffer("action_centre", (high + low) / 2)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("state_mean", torch.full((spec.state_dim,), float("nan")))
        self.register_buffer("state_std", torch.full((spec.state_dim,), float("nan")))
        self.action_centre: Tensor
        self.action_scale: Tensor
        self.state_mean: Tensor
        self.state_std: Tensor

    def fit(self, states: np.ndarray) -> None:
        """Take mean and std from raw states [T, S]. Constant entries keep their unit scale."""
        if not np.isfinite(states).all():
            raise ValueError("States with NaN or infinity give no statistics; check the data with `embodied data verify`.")
        std = states.std(0, dtype=np.float64)
        # a constant entry would be divided by rounding noise (public fault B65)
        std = np.where(std > 1e-6 * np.maximum(np.abs(states).max(0), 1.0), std, 1.0)
        self.state_mean.copy_(torch.as_tensor(states.mean(0, dtype=np.float64)))
        self.state_std.copy_(torch.as_tensor(std))

    def state(self, raw: Tensor) -> Tensor:
        """Raw state [B, S] to zero mean and unit spread, clamped to 10 spreads."""
        if raw.shape[-1] != len(self.names):
            raise ValueError(f"state has {raw.shape[-1]} numbers, the policy was trained with {len(self.names)} ({', '.join(self.names)}).")
        if bool(self.state_mean.isnan().any()):
            raise RuntimeError("The policy has no state statistics; fit them on demonstrations or load a checkpoint that has them.")
        return ((raw.float() - self.state_mean) / self.state_std).clamp(-10, 10)

    def action(self, raw: Tensor) -> Tensor:
        """Raw actions [..., A] to limits at -1 and 1; values outside stay outside."""
        return (raw - self.action_centre) / self.action_scale

    def raw_action(self, normalised: Tensor) -> Tensor:
        """The inverse of `action`; never clipped here, so that likelihoods speak of what was drawn (fault B09)."""
        return normalised * self.action_scale + self.action_centre
