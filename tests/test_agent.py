"""An acting flow policy: what it draws, what it remembers, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied import tree
from embodied.agent import FlowAgent
from embodied.flow import Sampler, log_prob, mean_shift
from embodied.types import ActionChunk, Observation, Trace

from .fields import Toy, looking
from .samplers import every_sampler
from .worlds import PointMass

SPEC = PointMass().embodiment


def agent(sampler: Sampler | None = None, seed: int = 0, **options: Any) -> FlowAgent:
    torch.manual_seed(seed)
    return FlowAgent(Toy(SPEC, **options), sampler, seed=seed)


def seen(batch: int = 6) -> Observation:
    return replace(looking(batch, 2), state=np.random.default_rng(0).normal(size=(batch, 2)).astype(np.float32))


def replayed(acting: FlowAgent, obs: Observation, chunk: ActionChunk) -> tuple[Tensor, Tensor, Trace]:
    """Means and stds that the agent's present parameters give the chunk's drawn steps."""
    given = tree.to(chunk, "cpu")
    assert given.trace is not None
    with torch.no_grad():
        mean, std = acting.replay(given.trace, given.version, acting.policy.encode(tree.to(obs, "cpu")))
    return mean, std, given.trace


@every_sampler
def test_t8_the_learner_reproduces_what_the_rollout_drew(sampler: Sampler) -> None:
    acting, obs = agent(sampler), seen()
    acting.version = 3
    mean, std, trace = replayed(acting, obs, acting.act(obs, explore=True))
    mask = acting.element_mask(torch.full((6,), 2))[:, None]
    assert float(mean_shift(mean, std, trace.mean, trace.std, mask).max()) <= 1e-5
    log_ratio = log_prob(trace.x_next, mean, std, mask) - log_prob(trace.x_next, trace.mean, trace.std, mask)
    assert float(log_ratio.abs().max()) < 1e-5


@every_sampler
def test_t8_neither_the_order_nor_the_size_of_a_batch_matters(sampler: Sampler) -> None:
    acting, obs = agent(sampler), seen()
    chunk = acting.act(obs, explore=True)
    mean, std, _ = replayed(acting, obs, chunk)
    std = std.expand_as(mean)
    for at in (np.array([4, 1, 5, 0, 2, 3]), np.array([2]), np.array([5, 3])):
        part_mean, part_std, _ = replayed(acting, tree.index(obs, at), tree.index(chunk, at))
        torch.testing.assert_close(part_mean, mean[at], rtol=0, atol=1e-5)
        torch.testing.assert_close(part_std.expand_as(part_mean), std[at], rtol=0, atol=1e-5)


@every_sampler
def test_b02_a_trace_is_float32_from_end_to_end(sampler: Sampler) -> None:
    chunk = agent(sampler).act(seen(), explore=True)
    steps = 1 if sampler.form == "hybrid" else 4
    assert chunk.trace is not None
    assert chunk.trace.x.shape == chunk.trace.x_next.shape == chunk.trace.mean.shape == (6, steps, 3, 4)
    assert np.broadcast_shapes(chunk.trace.std.shape, chunk.trace.mean.shape) == chunk.trace.mean.shape
    assert chunk.trace.step.shape == (6, steps) and chunk.trace.step.dtype == np.int64
    for leaf in (chunk.trace.x, chunk.trace.x_next, chunk.trace.mean, chunk.trace.std, chunk.actions):
        assert leaf.dtype == np.float32 and np.isfinite(leaf).all()
    assert chunk.actions.shape == (6, 3, 2) and chunk.version.tolist() == [0] * 6


@every_sampler
def test_t17_one_seed_acts_alike(sampler: Sampler) -> None:
    one, same, other = agent(sampler, 0), agent(sampler, 0), agent(sampler, 0)
    other.generator.manual_seed(1)
    for explore in (True, False, True):
        a, b, c = (each.act(seen(), explore).actions for each in (one, same, other))
        assert (a == b).all() and (a != c).any()


def test_without_exploration_nothing_is_drawn_but_the_initial_noise() -> None:
    acting, obs = agent(Sampler(level=0.9)), seen()
    chunk = acting.act(obs, explore=False)
    assert chunk.trace is None and chunk.context is None
    quiet = agent(Sampler(level=0.1)).act(obs, explore=False)
    assert (chunk.actions == quiet.actions).all()


@pytest.mark.parametrize("form", ["hybrid", "two_layer"])
def test_the_noise_of_each_row_is_that_of_the_version_that_acted(form: Any) -> None:
    sampler = Sampler(level=0.8, level_end=0.4, anneal_versions=4, form=form)
    acting, obs = agent(sampler), seen()
    chunks = []
    for version in (0, 2):
        acting.version = version
        chunks.append(acting.act(obs, explore=True))
    both = tree.concat(chunks)
    acting.version = 4
    mean, std, trace = replayed(acting, tree.concat([obs, obs]), both)
    torch.testing.assert_close(std, trace.std, rtol=0, atol=1e-6)
    torch.testing.assert_close(mean, trace.mean, rtol=0, atol=1e-5)


def test_b09_actions_are_what_was_drawn_and_are_never_clipped() -> None:
    acting = agent(Sampler(form="two_layer"))
    chunk = acting.act(seen(200), explore=True)
    assert chunk.trace is not None
    drawn = torch.as_tensor(chunk.trace.x_next[:, -1])  # the last step ends in the action
    assert (chunk.actions == acting.policy.unnormalise(drawn).numpy()).all()
    assert np.abs(chunk.actions).max() > 2  # beyond the limits of +-1


def test_b04_dropout_is_off_whenever_the_agent_acts_or_is_replayed() -> None:
    acting, obs = agent(dropout=0.5), seen()
    mean, _, trace = replayed(acting, obs, acting.act(obs, explore=True))
    torch.testing.assert_close(mean, trace.mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_context_is_kept_only_where_encoding_again_would_give_the_same(frozen: bool) -> None:
    chunk = agent(frozen_prefix=frozen).act(seen(), explore=True)
    assert (chunk.context is not None) == frozen


def test_learned_noise_stays_within_its_bounds_and_differs_between_elements() -> None:
    chunk = agent(Sampler(noise="learned", std_bounds=(0.04, 0.1))).act(seen(), explore=True)
    assert chunk.trace is not None
    std = chunk.trace.std
    assert std.shape == (6, 1, 3, 4) and std.min() >= 0.04 and std.max() <= 0.1 and std.std() > 0


def test_only_executed_frames_and_real_dims_carry_likelihood() -> None:
    mask = agent(padding=2).element_mask(torch.tensor([1, 3]))
    assert mask.sum((1, 2)).tolist() == [1 * 2, 3 * 2] and mask[0, 0].tolist() == [1, 1, 0, 0]


# ---------------------------------------------------------------------------------------------------- refusals


def test_nan_in_a_state_is_refused_with_lane_and_field() -> None:
    obs = seen()
    obs.state[4, 1] = np.nan
    with pytest.raises(RuntimeError, match=r"state 'y' of lane 4 is nan"):
        agent().act(obs, explore=False)


def test_infinity_in_privileged_state_is_refused_with_lane_and_entry() -> None:
    obs = replace(seen(), privileged=np.zeros((6, 3)))
    assert obs.privileged is not None
    obs.privileged[2, 1] = np.inf
    with pytest.raises(RuntimeError, match=r"privileged entry 1 of lane 2 is inf"):
        agent().act(obs, explore=False)


def test_a_non_finite_action_is_refused_with_lane_and_version() -> None:
    acting = agent()
    acting.version = 7
    with torch.no_grad():
        acting.policy.readout.bias.fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"non-finite action in lane 0 at version 7"):
        acting.act(seen(), explore=True)
