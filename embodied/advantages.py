"""Advantages from rewards: generalised advantage estimation over chunks, group statistics, normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(reward: Tensor, discount: Tensor, done: Tensor, value: Tensor, next_value: Tensor, lam: float) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438) per decision: float32 [D, N].

    delta = reward + discount * next_value - value. `discount` is gamma^k, or 0 after a termination, and
    `next_value` is the value of the *true* next observation, so a truncation bootstraps from where it stopped
    and a termination from nothing. `done` ends the lambda-sum for both. lambda counts decisions, gamma frames.
    """
    # where, not a product: the value after a termination may be anything, NaN included
    delta = reward + torch.where(discount > 0, discount * next_value, 0.0) - value
    advantage = torch.zeros_like(reward)
    running = torch.zeros_like(reward[0])
    for d in reversed(range(len(reward))):
        running = delta[d] + torch.where(done[d], 0.0, discount[d] * lam * running)
        advantage[d] = running
    return advantage


def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
    """Standardise over the valid entries of the whole batch; the others become 0. Finite for any batch.

    One valid entry, or equal ones, give 0.
    """
    count = valid.sum().clamp(min=1)
    kept = torch.where(valid, advantage, 0.0)
    mean = kept.sum() / count
    centred = torch.where(valid, advantage - mean, 0.0)
    std = (centred.square().sum() / count).sqrt()
    floor = 1e-6 * kept.abs().max().clamp(min=1e-6)  # float noise of equal entries is no signal
    return torch.where(std > floor, centred / std.clamp(min=1e-12), 0.0)


def group_relative(score: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """GRPO: (score - group mean) / group std, population std, and whether the group has any spread.

    score: [E] one number per episode. group: int64 [E]. A group of equal scores gives exactly 0 and False.
    """
    groups = int(group.max()) + 1 if len(group) else 0
    count = torch.zeros(groups, dtype=score.dtype, device=score.device).index_add_(0, group, torch.ones_like(score))
    mean = torch.zeros_like(count).index_add_(0, group, score) / count.clamp(min=1)
    centred = score - mean[group]
    variance = torch.zeros_like(count).index_add_(0, group, centred**2) / count.clamp(min=1)
    std = variance.sqrt()[group]
    spread = std > 1e-6 * score.abs().clamp(min=1)
    return torch.where(spread, centred / std.clamp(min=1e-12), 0.0), spread
