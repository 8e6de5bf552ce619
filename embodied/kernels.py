"""Policy-gradient kernels: detached weights w(ratio, sign A) so that grad J = A w grad log pi.

Every clipped, gated or masked objective has this gradient; only the weight differs. The trainer owns the one
differentiable line, `(w * A).detach() * log_prob`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Kernel(Protocol):
    """(log_ratio, advantage, kl), all [B, L] and detached -> weight [B, L]."""

    def __call__(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor: ...


class Clip:
    """PPO's clipped surrogate: w = r where the clip does not bind for the sign of A, else 0.

    With `dual`, a negative advantage stops pulling once r > dual (arXiv 1912.09729), where r A would run away.
    """

    def __init__(self, low: float = 0.2, high: float | None = None, *, dual: float | None = 3.0) -> None:
        if not 0 < low < 1 or (high is not None and high <= 0) or (dual is not None and dual <= 1):
            raise ValueError(f"Clip needs 0 < low < 1, high > 0 and dual > 1, got {low}, {high} and {dual}.")
        self.low, self.high, self.dual = low, low if high is None else high, dual

    def __call__(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        blocked = torch.where(advantage >= 0, ratio > 1 + self.high, ratio < 1 - self.low)
        if self.dual is not None:
            blocked = blocked | ((advantage < 0) & (ratio > self.dual))
        return torch.where(blocked, 0.0, ratio)


class Reinforce:
    """w = 1: the plain score function, for strictly on-policy single updates."""

    def __call__(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        return torch.ones_like(log_ratio)


class KLMask:
    """Flow-DPPO: w = r unless the step already moved `threshold` nats away and still moves outward; capped.

    arXiv 2606.11025 states the threshold per dim; here it is the total KL of the step, which does not depend on
    the action's size.
    """

    def __init__(self, threshold: float = 0.5, *, cap: float = 5.0) -> None:
        if threshold <= 0 or cap < 1:
            raise ValueError(f"KLMask needs threshold > 0 and cap >= 1, got {threshold} and {cap}.")
        self.threshold, self.cap = threshold, cap

    def __call__(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        outward = (log_ratio > 0) == (advantage > 0)
        return torch.where((kl >= self.threshold) & outward, 0.0, log_ratio.exp().clamp(max=self.cap))
