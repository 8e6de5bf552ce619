"""A kernel is the detached weight of the score: w A is the derivative of its surrogate in the log-probability."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from embodied.kernels import Clip, Kernel, KLMask, Reinforce

log_ratios, advantages = st.floats(-2, 2), st.floats(-3, 3)


def weight(kernel: Kernel, log_ratio: float, advantage: float, kl: float = 0.0) -> float:
    return float(kernel(*(torch.tensor([[value]], dtype=torch.float64) for value in (log_ratio, advantage, kl))))


def slope(surrogate: Callable[[float], float], log_ratio: float) -> float:
    """Central difference in the new log-probability."""
    return (surrogate(log_ratio + 1e-6) - surrogate(log_ratio - 1e-6)) / 2e-6


def away(log_ratio: float, *kinks: float) -> None:
    assume(all(abs(math.exp(log_ratio) - kink) > 1e-3 for kink in kinks))


@given(log_ratios, advantages, st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.1, 0.5)]))
def test_clip_is_the_derivative_of_the_clipped_surrogate(log_ratio: float, a: float, bounds: tuple[float, float]) -> None:
    low, high = bounds
    away(log_ratio, 1 - low, 1 + high)

    def surrogate(log_ratio: float) -> float:
        r = math.exp(log_ratio)
        return min(r * a, min(max(r, 1 - low), 1 + high) * a)

    expected = slope(surrogate, log_ratio)
    assert weight(Clip(low, high, dual=None), log_ratio, a) * a == pytest.approx(expected, abs=1e-6)


@given(log_ratios, advantages)
def test_dual_clip_is_the_derivative_of_the_floored_surrogate(log_ratio: float, a: float) -> None:
    away(log_ratio, 0.8, 1.2, 3.0)

    def surrogate(log_ratio: float) -> float:
        r = math.exp(log_ratio)
        clipped = min(r * a, min(max(r, 0.8), 1.2) * a)
        return max(clipped, 3.0 * a) if a < 0 else clipped

    assert weight(Clip(0.2, dual=3.0), log_ratio, a) * a == pytest.approx(slope(surrogate, log_ratio), abs=1e-6)


@given(log_ratios, advantages)
def test_the_kl_mask_is_the_derivative_of_the_unclipped_surrogate_inside_its_trust_region(log_ratio: float, a: float) -> None:
    away(log_ratio, 5.0)

    def surrogate(log_ratio: float) -> float:
        return math.exp(log_ratio) * a

    assert weight(KLMask(0.5), log_ratio, a, kl=0.49) * a == pytest.approx(min(slope(surrogate, log_ratio), 5 * a) if a > 0
        else max(slope(surrogate, log_ratio), 5 * a), abs=1e-5)  # fmt: skip


@given(log_ratios, advantages)
def test_outside_the_trust_region_the_kl_mask_lets_only_the_way_back_through(log_ratio: float, a: float) -> None:
    assume(abs(log_ratio) > 1e-6 and abs(a) > 1e-6)
    outward = (log_ratio > 0) == (a > 0)
    assert (weight(KLMask(0.5), log_ratio, a, kl=0.5) == 0) == outward


@given(log_ratios, advantages)
def test_reinforce_is_the_plain_score(log_ratio: float, a: float) -> None:
    assert weight(Reinforce(), log_ratio, a) == 1


@pytest.mark.parametrize("kernel", [Clip(), Clip(0.2, 0.28), KLMask(), Reinforce()])
@pytest.mark.parametrize("a", [-2.0, 0.5])
def test_t13_at_ratio_one_every_kernel_is_the_score_function(kernel: Kernel, a: float) -> None:
    assert weight(kernel, 0.0, a) == 1


@pytest.mark.parametrize(
    ("ratio", "a", "expected"),
    [
        (1.3, +1.0, 0.0),  # already likelier than allowed
        (1.3, -1.0, 1.3),  # the way back is open
        (0.7, -1.0, 0.0),
        (0.7, +1.0, 0.7),
        (1.1, +1.0, 1.1),
        (3.1, -1.0, 0.0),  # dual clip: r A would run away
        (2.9, -1.0, 2.9),
    ],
)
def test_t13_the_clip_binds_only_outward_and_dual_clip_only_below(ratio: float, a: float, expected: float) -> None:
    assert weight(Clip(), math.log(ratio), a) == pytest.approx(expected)


def test_clip_higher_leaves_more_room_upward() -> None:
    assert weight(Clip(0.2, 0.28), math.log(1.25), 1.0) == pytest.approx(1.25)
    assert weight(Clip(0.2), math.log(1.25), 1.0) == 0


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"low": 1.0}, {"high": 0.0}, {"dual": 1.0}])
def test_impossible_clips_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Clip needs"):
        Clip(**wrong)


def test_an_impossible_trust_region_is_refused() -> None:
    with pytest.raises(ValueError, match="KLMask needs"):
        KLMask(0.0)
