"""Supervised flow matching."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.sft import SFT
from embodied.flow import draw_times, interpolate
from embodied.types import ActionChunk, Transition

from ..fields import Toy, looking
from ..worlds import PointMass

SPEC = PointMass().embodiment


def demonstrations(batch: int = 8, seed: int = 0) -> Transition:
    """Chunks of 3 actions of which 1 to 3 ran."""
    rng = np.random.default_rng(seed)
    obs = replace(looking(batch, 2), state=rng.normal(size=(batch, 2)).astype(np.float32))
    actions = rng.normal(size=(batch, 3, 2)).astype(np.float32)
    flat = np.zeros(batch)
    return Transition(
        obs=obs, chunk=ActionChunk(actions, np.full(batch, -1)), executed=1 + np.arange(batch) % 3,
        reward=flat, discount=flat, next_obs=obs, done=flat > 0, success=flat > 0,
    )  # fmt: skip


class Log:
    """Demonstrations again and again, each batch other ones."""

    def __init__(self) -> None:
        self.batches = 0

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        self.batches += 1
        return demonstrations(seed=self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def training(seed: int = 0, dropout: float = 0.0, **options: Any) -> SFT:
    torch.manual_seed(seed)
    return SFT(FlowAgent(Toy(SPEC, dropout=dropout)), **options)


def test_the_loss_is_the_mean_square_velocity_error_over_what_ran() -> None:
    algorithm, batch = training(), tree.to(demonstrations(), "cpu")
    policy = algorithm.policy.policy
    draws = torch.Generator().manual_seed(0)
    action = policy.normalise(batch.chunk.actions)
    noise, t = torch.randn(action.shape, generator=draws), draw_times(8, draws)
    v = policy.velocity(interpolate(action, noise, t), t, policy.encode(batch.obs)).v
    rows = [
        ((v - (noise - action)) ** 2)[row, : batch.executed[row], :2].mean() for row in range(8)
    ]  # real dims of frames that ran
    torch.testing.assert_close(algorithm.loss(batch)[0], torch.stack(rows).mean())


def test_b57_actions_after_the_end_of_an_episode_have_no_error_and_no_gradient() -> None:
    algorithm, batch = training(), tree.to(demonstrations(), "cpu")
    policy = algorithm.policy.policy
    sent: list[torch.Tensor] = []
    policy.readout.register_forward_hook(lambda module, inputs, v: sent.append(v))  # type: ignore[attr-defined]
    loss, _ = algorithm.loss(batch)
    (slope,) = torch.autograd.grad(loss, sent)
    counted = algorithm.policy.element_mask(batch.executed) > 0
    assert bool((slope[~counted] == 0).all()) and bool((slope[counted] != 0).all())


def test_training_lowers_the_loss() -> None:
    algorithm, batches = training(learning_rate=1e-2, cycle_steps=200), Log()
    losses = [algorithm.update(batches)["loss/policy"] for _ in range(200)]
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


def test_a_cycle_of_the_learning_rate_ends_annealed_and_begins_anew() -> None:
    algorithm, batches = training(learning_rate=1e-2, cycle_steps=4), Log()
    rates = [1e-2] + [algorithm.update(batches)["loss/learning_rate"] for _ in range(5)]
    cosine = [0.5 * 1e-2 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert rates == pytest.approx(cosine + cosine[:2])


def test_dropout_works_in_training_and_is_off_afterwards() -> None:
    algorithm = training(dropout=0.5)
    dropped: list[bool] = []
    dropout = algorithm.policy.policy.dropout  # type: ignore[attr-defined]
    dropout.register_forward_hook(lambda module, inputs, output: dropped.append(bool((output == 0).any())))
    algorithm.update(Log())
    assert dropped == [True]
    assert not any(module.training for module in algorithm.policy.modules())


def test_what_was_encoded_before_is_not_encoded_again() -> None:
    algorithm, batch = training(), tree.to(demonstrations(), "cpu")
    encoded = algorithm.policy.policy.encode(batch.obs)
    expected, _ = algorithm.loss(batch)
    algorithm.generator.manual_seed(0)
    unseen = replace(batch, obs=replace(batch.obs, state=batch.obs.state * 0), chunk=replace(batch.chunk, context=encoded))
    assert torch.equal(algorithm.loss(unseen)[0], expected)


def test_the_average_follows_its_recursion_and_is_what_acts() -> None:
    algorithm, batches = training(ema_decay=0.75), Log()
    expected: torch.Tensor | None = None
    for _ in range(4):
        algorithm.update(batches)
        weights = algorithm.policy.policy.readout.weight.detach().clone()  # type: ignore[attr-defined]
        expected = weights if expected is None else 0.75 * expected + 0.25 * weights
    assert expected is not None
    torch.testing.assert_close(algorithm.policy_state["policy.readout.weight"], expected, rtol=0, atol=1e-6)
    assert not torch.equal(algorithm.policy_state["policy.readout.weight"], weights)


def test_the_average_carries_statistics_that_were_fitted_after_it_began() -> None:
    algorithm = training(ema_decay=0.9)
    algorithm.policy.policy.fit_statistics(np.zeros((1, 2)), np.array([[5.0, 7.0]]))
    algorithm.update(Log())
    assert algorithm.policy_state["policy.scale"].tolist() == [5.0, 7.0]


def test_without_an_average_the_trained_weights_act() -> None:
    algorithm = training()
    algorithm.update(Log())
    for name, value in algorithm.policy.state_dict().items():
        assert torch.equal(algorithm.policy_state[name], value)


def test_t14_frozen_parameters_stay_bit_identical() -> None:
    torch.manual_seed(0)
    algorithm = SFT(FlowAgent(Toy(SPEC, frozen_prefix=True)), ema_decay=0.9)
    before = {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
    batches = Log()
    for _ in range(3):
        algorithm.update(batches)
    for state in (algorithm.policy.state_dict(), algorithm.policy_state):
        changed = {name.split(".")[1] for name, value in state.items() if not torch.equal(value, before[name])}
        assert changed == {"hidden", "mix", "readout"}


def test_nan_in_the_data_stops_the_run_and_names_the_loss() -> None:
    class Broken(Log):
        def __next__(self) -> Transition:
            batch = super().__next__()
            batch.chunk.actions[3, 0, 1] = np.nan
            return batch

    with pytest.raises(RuntimeError, match="loss/policy is nan at step 0"):
        training().update(Broken())


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_an_impossible_average_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="ema_decay"):
        training(ema_decay=decay)
