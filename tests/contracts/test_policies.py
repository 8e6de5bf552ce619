"""What every flow policy promises, tried on each that is installed under the entry-point group `embodied.policies`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied import plugins, tree
from embodied.interfaces import FlowPolicy, Velocity
from embodied.types import Observation, Spec
from tests.policies import checkpoints

SPEC = Spec(
    robot="contract", tasks=("reach", "push"), state_names=tuple("abcde"), action_names=("x", "y", "grip"),
    action_low=(-1.0, -0.2, 0.0), action_high=(1.0, 0.6, 1.0), control_hz=10.0, cameras=(("front", 64, 64),), prompts=True,
)  # fmt: skip
BATCH = 5


def seen(batch: int = BATCH, seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    words = ["reach the red cube", "push the blue can to the left", ""]
    return Observation(
        images={name: rng.integers(0, 256, (batch, h, w, 3), np.uint8) for name, h, w in SPEC.cameras},
        state=rng.normal(size=(batch, SPEC.state_dim)).astype(np.float32),
        prompt=np.array([words[row % 3] for row in range(batch)]), time=np.arange(batch) / 10,
    )  # fmt: skip


def data() -> tuple[np.ndarray, np.ndarray]:
    """States whose last entry never changes, actions inside their limits whose last never changes."""
    rng = np.random.default_rng(1)
    states = rng.normal(3, 2, (200, SPEC.state_dim)).astype(np.float32)
    actions = rng.uniform(SPEC.action_low, SPEC.action_high, (200, SPEC.action_dim)).astype(np.float32)
    states[:, -1], actions[:, -1] = 7.0, 1.0
    return states, actions


def build(name: str, *, fitted: bool = True) -> Any:
    """The policy as the command line builds it: (spec, horizon) and defaults, or a small checkpoint where one is needed."""
    torch.manual_seed(0)
    policy = make(name, SPEC, 4)
    if fitted:
        policy.fit_statistics(*data())
    return policy.eval()


def make(name: str, spec: Spec, horizon: int) -> Any:
    if name in checkpoints.FAMILIES:
        return checkpoints.build(name, spec, horizon, statistics=False)
    return plugins.load("embodied.policies", name)(spec, horizon)


def at(policy: Any, batch: int = BATCH, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A point of the flow for each row."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, policy.horizon, policy.action_dim, generator=generator)
    return x, torch.linspace(0.1, 1, batch)


def speak(policy: Any, obs: Observation, x: Tensor, t: Tensor) -> Velocity:
    return policy.velocity(x, t, policy.encode(tree.to(obs, "cpu")))


@pytest.mark.parametrize("name", plugins.names("embodied.policies"))
class TestFlowPolicy:
    def test_it_is_a_flow_policy_and_a_module(self, name: str) -> None:
        policy = build(name)
        assert isinstance(policy, FlowPolicy) and isinstance(policy, nn.Module)
        assert policy.spec == SPEC and policy.horizon == 4 and policy.action_dim >= SPEC.action_dim

    def test_shapes_are_as_declared(self, name: str) -> None:
        policy, (x, t) = build(name), at(build(name))
        context = policy.encode(tree.to(seen(), "cpu"))
        assert all(len(leaf) == BATCH for leaf in tree.leaves(context))
        assert policy.prefix_features(context).shape == (BATCH, policy.prefix_dim)
        velocity = policy.velocity(x, t, context)
        assert velocity.v.shape == x.shape and velocity.features.shape == (BATCH, 4, policy.feature_dim)
        assert bool(velocity.v.isfinite().all())

    def test_equal_inputs_give_equal_outputs(self, name: str) -> None:
        policy, (x, t) = build(name), at(build(name))
        one, same = (speak(policy, seen(), x, t) for _ in range(2))
        assert torch.equal(one.v, same.v) and torch.equal(one.features, same.features)

    def test_rows_do_not_see_each_other(self, name: str) -> None:
        policy, (x, t), obs = build(name), at(build(name)), seen()
        whole = speak(policy, obs, x, t)
        for rows in (torch.tensor([4, 2, 0, 1, 3]), torch.tensor([2])):
            part = speak(policy, tree.index(obs, rows), x[rows], t[rows])
            torch.testing.assert_close(part.v, whole.v[rows], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(part.features, whole.features[rows], rtol=1e-4, atol=1e-5)

    def test_the_velocity_depends_on_sample_time_and_state(self, name: str) -> None:
        policy, (x, t), obs = build(name), at(build(name)), seen()
        _wake(policy)
        v = speak(policy, obs, x, t).v
        assert not torch.allclose(speak(policy, obs, x + 0.5, t).v, v)
        assert not torch.allclose(speak(policy, obs, x, t * 0.5).v, v)
        assert not torch.allclose(speak(policy, replace(obs, state=obs.state + 1), x, t).v, v)

    def test_one_encoding_serves_many_denoising_steps(self, name: str) -> None:
        policy, obs = build(name), seen()
        x, t = at(policy, 3 * BATCH)
        context = policy.encode(tree.to(obs, "cpu"))
        together = policy.velocity(x, t, tree.repeat(context, 3)).v
        one_by_one = [policy.velocity(x[k::3], t[k::3], context).v for k in range(3)]
        torch.testing.assert_close(together, torch.stack(one_by_one, 1).flatten(0, 1), rtol=1e-4, atol=1e-5)
        alone = policy.velocity(x[:3], t[:3], tree.index(tree.repeat(context, 3), slice(0, 3))).v
        torch.testing.assert_close(alone, together[:3], rtol=1e-4, atol=1e-5)

    def test_b31_normalisation_inverts_constant_dims_included(self, name: str) -> None:
        policy, (_, actions) = build(name), data()
        raw = torch.as_tensor(actions[:40].reshape(10, 4, -1))
        normal = policy.normalise(raw)
        assert normal.shape == (10, 4, policy.action_dim) and float(normal.abs().max()) < 10
        torch.testing.assert_close(policy.unnormalise(normal), raw, rtol=1e-5, atol=1e-5)
        outside = torch.full_like(raw, 3.0)  # not clipped, either (B09)
        torch.testing.assert_close(policy.unnormalise(policy.normalise(outside)), outside, rtol=1e-5, atol=1e-4)

    def test_b65_a_state_that_never_changes_does_no_harm(self, name: str) -> None:
        policy, (x, t) = build(name), at(build(name))
        states, _ = data()
        usual = replace(seen(), state=states[:BATCH])
        off = replace(usual, state=usual.state + np.array([0, 0, 0, 0, 1e-3], np.float32))
        shift = (speak(policy, off, x, t).v - speak(policy, usual, x, t).v).detach()
        assert float(shift.abs().max()) < 0.1

    def test_b67_without_statistics_it_refuses_to_act(self, name: str) -> None:
        with pytest.raises(RuntimeError, match="statistics"):
            build(name, fitted=False).encode(tree.to(seen(), "cpu"))

    def test_statistics_travel_in_the_state(self, name: str) -> None:
        fitted, fresh = build(name), build(name, fitted=False)
        with torch.no_grad():
            for parameter in fitted.parameters():
                parameter.add_(0.01)
        fresh.load_state_dict(fitted.state_dict())
        x, t = at(fitted)
        assert torch.equal(speak(fresh, seen(), x, t).v, speak(fitted, seen(), x, t).v)
        assert torch.equal(fresh.unnormalise(x), fitted.unnormalise(x))

    def test_statistics_with_nan_are_refused(self, name: str) -> None:
        states, actions = data()
        states[3, 1] = np.nan
        with pytest.raises(ValueError, match="NaN"):
            build(name, fitted=False).fit_statistics(states, actions)

    def test_a_state_of_another_size_is_refused(self, name: str) -> None:
        obs = seen()
        with pytest.raises(ValueError, match="state has 4 numbers"):
            build(name).encode(tree.to(replace(obs, state=obs.state[:, :4]), "cpu"))

    def test_the_gradient_reaches_every_trainable_parameter(self, name: str) -> None:
        policy = build(name)
        _wake(policy)
        x, t = at(policy)
        velocity = speak(policy, seen(), x, t)
        (velocity.v.square().sum() + velocity.features.square().sum()).backward()
        reached = {n for n, p in policy.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}
        assert reached == {n for n, p in policy.named_parameters() if p.requires_grad}

    def test_master_weights_are_float32(self, name: str) -> None:
        assert {p.dtype for p in build(name).parameters() if p.requires_grad} == {torch.float32}

    def test_a_frozen_prefix_depends_on_no_trainable_parameter(self, name: str) -> None:
        policy = build(name)
        if not policy.frozen_prefix:
            assert any(leaf.requires_grad for leaf in tree.leaves(policy.encode(tree.to(seen(), "cpu"))))
            return
        before = policy.encode(tree.to(seen(), "cpu"))
        assert not any(torch.is_tensor(leaf) and leaf.requires_grad for leaf in tree.leaves(before))
        _wake(policy)
        for one, other in zip(tree.leaves(before), tree.leaves(policy.encode(tree.to(seen(), "cpu"))), strict=True):
            assert torch.equal(one, other)

    def test_an_impossible_horizon_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="horizon"):
            make(name, SPEC, 0)


def _wake(policy: nn.Module) -> None:
    """Move every trainable parameter off its start: a readout that starts at zero would hide what lies before it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
