"""Advantages by hand: generalised advantage estimation, groups, normalisation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from embodied.advantages import gae, group_relative, normalise


def column(*values: float) -> Tensor:
    """D decisions in one lane, [D, 1]."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def estimate(
    discount: list[float], done: list[bool], next_value: list[float], reward: tuple[float, ...] = (1.0, 1.0, 1.0)
) -> list[float]:
    value = column(0.5, 0.6, 0.7)
    return gae(
        column(*reward), column(*discount), torch.tensor(done)[:, None], value, column(*next_value), lam=0.95
    ).flatten().tolist()


def test_n1_a_time_limit_bootstraps_from_where_it_stopped_and_cuts_the_lambda_sum() -> None:
    # A2 = 1 + .9 * .8 - .7 = 1.02; A1 = 1 + .9 * 2 - .6 = 2.2; A0 = 1 + .9 * .6 - .5 + .9 * .95 * 2.2 = 2.921
    advantage = estimate([0.9, 0.9, 0.9], [False, True, False], [0.6, 2.0, 0.8])
    assert advantage == pytest.approx([2.921, 2.2, 1.02], abs=1e-9)
    returns = [a + v for a, v in zip(advantage, [0.5, 0.6, 0.7], strict=True)]
    assert returns == pytest.approx([3.421, 2.8, 1.72], abs=1e-9)


@pytest.mark.parametrize("after", [2.0, -7.0, math.nan, math.inf])
def test_n2_a_termination_bootstraps_from_nothing_whatever_comes_after(after: float) -> None:
    advantage = estimate([0.9, 0.0, 0.9], [False, True, False], [0.6, after, 0.8])
    assert advantage == pytest.approx([1.382, 0.4, 1.02], abs=1e-9)


def test_n3_a_chunk_counts_as_many_frames_as_ran() -> None:
    # gamma .9, chunks of 4, then 2 frames: delta = r + gamma^k V' - V
    advantage = gae(
        column(1.0, 0.5), column(0.9**4, 0.9**2), torch.tensor([[False], [False]]), column(0.2, 0.3), column(0.3, 0.4), lam=0.95
    ).flatten()
    second = 0.5 + 0.9**2 * 0.4 - 0.3
    assert advantage.tolist() == pytest.approx([1.0 + 0.9**4 * 0.3 - 0.2 + 0.9**4 * 0.95 * second, second])


rewards = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


@given(rewards, st.floats(0.5, 1))
def test_t12_lambda_1_is_the_discounted_return_minus_the_value(reward: list[float], gamma: float) -> None:
    steps = len(reward)
    value = torch.linspace(-1, 1, steps + 1, dtype=torch.float64)
    advantage = gae(
        column(*reward), torch.full((steps, 1), gamma, dtype=torch.float64), torch.zeros(steps, 1, dtype=torch.bool),
        value[:-1, None], value[1:, None], lam=1.0,
    )  # fmt: skip
    for start in range(steps):
        tail = sum(gamma**i * r for i, r in enumerate(reward[start:])) + gamma ** (steps - start) * float(value[-1])
        assert float(advantage[start]) == pytest.approx(tail - float(value[start]), abs=1e-9)


def test_t12_lambda_0_is_the_one_step_error() -> None:
    value, after = column(0.5, 0.6), column(0.6, 0.8)
    advantage = gae(column(1, 2), column(0.9, 0.9), torch.zeros(2, 1, dtype=torch.bool), value, after, lam=0.0)
    torch.testing.assert_close(advantage, column(1, 2) + 0.9 * after - value)


def test_lanes_do_not_mix() -> None:
    torch.manual_seed(0)
    reward, value, after = torch.randn(3, 5, 4, dtype=torch.float64)
    done = torch.rand(5, 4) < 0.4
    discount = torch.full((5, 4), 0.9, dtype=torch.float64)
    together = gae(reward, discount, done, value, after, lam=0.95)
    for lane in range(4):
        alone = gae(*(part[:, [lane]] for part in (reward, discount, done, value, after)), lam=0.95)
        torch.testing.assert_close(together[:, [lane]], alone)


# ------------------------------------------------------------------------------------------------ normalisation


def test_n5_only_valid_entries_are_standardised_and_the_others_do_not_matter() -> None:
    valid = torch.tensor([True, True, True, False])
    for garbage in (99.0, -1e30, math.nan, math.inf):
        found = normalise(torch.tensor([1.0, 2.0, 3.0, garbage]), valid)
        assert found.tolist() == pytest.approx([-1.224745, 0, 1.224745, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("values", "valid"),
    [
        ([5.0], [True]),  # one entry
        ([5.0, 7.0], [False, True]),  # one valid entry
        ([0.1 + 0.2, 0.3], [True, True]),  # equal but for rounding
        ([1.0, 2.0], [False, False]),  # none
    ],
)
def test_n5_without_spread_there_is_no_advantage(values: list[float], valid: list[bool]) -> None:
    for dtype in (torch.float32, torch.float64):
        found = normalise(torch.tensor(values, dtype=dtype), torch.tensor(valid))
        assert found.tolist() == [0.0] * len(values)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=8), st.floats(0.1, 10), st.floats(-10, 10))
def test_normalisation_ignores_scale_and_offset(values: list[float], scale: float, offset: float) -> None:
    given_values = torch.tensor(values, dtype=torch.float64)
    assume(float(given_values.std()) > 1e-2)
    everything = torch.ones(len(values), dtype=torch.bool)
    found = normalise(given_values, everything)
    torch.testing.assert_close(normalise(scale * given_values + offset, everything), found, rtol=1e-6, atol=1e-6)
    assert float(found.mean()) == pytest.approx(0, abs=1e-9)
    assert float(found.square().mean()) == pytest.approx(1, abs=1e-9)


# ------------------------------------------------------------------------------------------------------ groups


def one_group(*scores: float) -> tuple[list[float], list[bool]]:
    advantage, alive = group_relative(torch.tensor(scores), torch.zeros(len(scores), dtype=torch.int64))
    return advantage.tolist(), alive.tolist()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [((1, 1, 2), (-0.707107, -0.707107, 1.414214)), ((1, 0, 0, 0), (1.732051, -0.577350, -0.577350, -0.577350))],
)
def test_n4_a_group_is_standardised_by_its_population(scores: tuple[float, ...], expected: tuple[float, ...]) -> None:
    advantage, alive = one_group(*(float(score) for score in scores))
    assert advantage == pytest.approx(list(expected), abs=1e-6) and all(alive)


@pytest.mark.parametrize("scores", [(1.0, 1.0, 1.0, 1.0), (0.1 + 0.2, 0.3), (0.0, 0.0)])
def test_n4_a_group_of_equal_scores_is_dead(scores: tuple[float, ...]) -> None:
    assert one_group(*scores) == ([0.0] * len(scores), [False] * len(scores))


def test_n4_statistics_are_taken_inside_each_group() -> None:
    advantage, _ = group_relative(torch.tensor([1.0, 0.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 1]))
    assert advantage.tolist() == pytest.approx([1, -1, 1, -1])  # over the batch: -.45, -1.34, 1.34, .45


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=6), st.permutations(range(6)))
def test_n4_permuting_episodes_permutes_the_answer_and_every_group_sums_to_zero(scores: list[float], order: list[int]) -> None:
    score, group = torch.tensor(scores, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    advantage, alive = group_relative(score, group)
    permuted, _ = group_relative(score[order], group[order])
    torch.testing.assert_close(permuted, advantage[order], rtol=1e-9, atol=1e-9)
    assert advantage.reshape(2, 3).sum(1).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert alive.reshape(2, 3).all(1).tolist() == alive.reshape(2, 3).any(1).tolist()  # a group lives or dies whole


def test_t12_group_advantages_ignore_an_affine_change_of_the_reward() -> None:
    score, group = torch.tensor([1.0, 0.0, 0.5, 2.0]), torch.tensor([0, 0, 1, 1])
    torch.testing.assert_close(group_relative(7 * score - 3, group)[0], group_relative(score, group)[0])
