"""pi_RL's update: the ratio contract, the losses, what an update touches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied import tree
from embodied.advantages import normalise
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL, Rows
from embodied.flow import Sampler, entropy, kl, log_prob
from embodied.kernels import Clip
from embodied.policies.flow_mlp import FlowMLP
from embodied.rollout.collector import Collector
from embodied.types import Transition

from ..fields import Toy
from ..samplers import every_sampler
from ..worlds import PointMass


def setting(
    sampler: Sampler | None = None, *, lanes: int = 8, decisions: int = 4, group: int = 1, policy: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[PiRL, Collector]:  # fmt: skip
    """A small policy, its algorithm and its worlds."""
    torch.manual_seed(0)
    env = PointMass(lanes, time_limit=9, radius=0.6, limit=1e3)
    agent = FlowAgent(Toy(env.embodiment, **({"frozen_prefix": True} | (policy or {}))), sampler)
    options = {"critic": "privileged", "critic_warmup": 0, "minibatch": 16, "group": group} | options
    if group > 1:
        options |= {"advantage": "group"}
    return PiRL(agent, **options), Collector(env, agent, decisions=decisions, group=group)


def rows_of(algorithm: PiRL, batches: Collector) -> Rows:
    return algorithm.prepare(tree.to(next(batches), "cpu"))[0]


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module: torch.nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def gradient(algorithm: PiRL, loss: Tensor) -> Tensor:
    parts = torch.autograd.grad(loss, algorithm.parameters, allow_unused=True)
    return torch.cat([part.flatten() for part in parts if part is not None])


class Once:
    """One prepared batch, again and again."""

    def __init__(self, batch: Transition) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# ---------------------------------------------------------------------------------------------- the ratio contract


@every_sampler
@pytest.mark.parametrize("frozen", [True, False])
def test_b01_before_the_first_step_of_every_update_the_ratio_is_one(sampler: Sampler, frozen: bool) -> None:
    algorithm, batches = setting(sampler, policy={"frozen_prefix": frozen, "dropout": 0.5})
    for _ in range(3):
        algorithm.policy.train()  # whatever ran in between
        metrics = algorithm.update(batches)
        assert metrics["ratio/mean_shift_first"] <= 1e-5
        assert metrics["ratio/max_abs_dev_first"] < 1e-4


@every_sampler
def test_t17_weights_that_did_not_act_stop_the_run(sampler: Sampler) -> None:
    algorithm, batches = setting(sampler)
    rollout = next(batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.01)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="differ from the rollout's by"):
        algorithm.update(Once(rollout))


def test_a_noise_head_that_did_not_act_stops_the_run() -> None:
    algorithm, batches = setting(Sampler(noise="learned"))
    rollout = next(batches)
    assert algorithm.policy.noise_head is not None
    with torch.no_grad():
        algorithm.policy.noise_head.net[-1].bias.add_(0.05)  # type: ignore[union-attr,operator]
    with pytest.raises(RuntimeError, match="differ from the rollout's by"):
        algorithm.update(Once(rollout))


def test_a_noise_level_of_another_version_stops_the_run() -> None:
    algorithm, batches = setting(Sampler(level=0.8, level_end=0.2, anneal_versions=10))
    rollout = next(batches)
    claimed = replace(rollout, chunk=replace(rollout.chunk, version=rollout.chunk.version + 1))
    with pytest.raises(RuntimeError, match="differ from the rollout's by"):
        algorithm.update(Once(claimed))


def test_the_contract_holds_while_the_critic_warms_up() -> None:
    algorithm, batches = setting(critic_warmup=2)
    assert algorithm.update(batches)["ratio/mean_shift_first"] <= 1e-5
    rollout = next(batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.01)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="update 1"):
        algorithm.update(Once(rollout))


@pytest.mark.parametrize(("precision", "given", "bound"), [("float32", None, 1e-4), ("bfloat16", None, 5e-2), ("bfloat16", 1e-3, 1e-3)])
def test_the_bound_of_the_contract_is_that_of_the_policy_s_precision(precision: str, given: float | None, bound: float) -> None:
    algorithm, batches = setting(policy={"precision": precision}, max_mean_shift=given)
    for share, stops in ((0.5, False), (2.0, True)):
        rollout = tree.to(next(batches), "cpu")
        trace = rollout.chunk.trace
        assert trace is not None
        moved = replace(trace, mean=trace.mean + share * bound * trace.std)
        shifted = Once(replace(rollout, chunk=replace(rollout.chunk, trace=moved)))
        if stops:
            with pytest.raises(RuntimeError, match="differ from the rollout's by"):
                algorithm.update(shifted)
        else:
            assert algorithm.update(shifted)["ratio/mean_shift_first"] == pytest.approx(share * bound, rel=0.1)


def test_transitions_without_a_likelihood_are_refused() -> None:
    algorithm, batches = setting()
    rollout = next(batches)
    with pytest.raises(ValueError, match="no trace"):
        algorithm.update(Once(replace(rollout, chunk=replace(rollout.chunk, trace=None))))


# --------------------------------------------------------------------------------------------------- policy loss


def densities(algorithm: PiRL, rows: Rows) -> Tensor:
    """log pi of the drawn steps under the present parameters, [R, L]."""
    agent, context = algorithm.policy, rows.context
    mean, std = agent.replay(rows.trace, rows.version, context)
    return log_prob(rows.trace.x_next, mean, std, agent.element_mask(rows.executed)[:, None])


@pytest.mark.parametrize("form", ["hybrid", "two_layer", "joint"])
def test_t13_at_ratio_one_the_gradient_is_that_of_reinforce(form: Any) -> None:
    algorithm, batches = setting(Sampler(form=form))
    rows = rows_of(algorithm, batches)
    score = densities(algorithm, rows)
    score = score.sum(1) if form == "joint" else score.mean(1)
    expected = gradient(algorithm, -(rows.advantage * score).mean())
    torch.testing.assert_close(gradient(algorithm, algorithm.policy_loss(rows)[0]), expected, rtol=1e-4, atol=1e-6)


class Watching(Clip):
    """PPO's kernel, which remembers what it was asked."""

    def __call__(self, log_ratio: Tensor, advantage: Tensor, kl: Tensor) -> Tensor:
        self.log_ratio, self.kl = log_ratio, kl
        return super().__call__(log_ratio, advantage, kl)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(noise="learned", std_bounds=(0.08, 0.16))], ids=["sde", "learned"])
def test_t10_the_joint_ratio_is_the_product_of_the_steps_ratios(sampler: Sampler) -> None:
    seen = {}
    for form in ("two_layer", "joint"):
        kernel = Watching()
        algorithm, batches = setting(replace(sampler, form=form), kernel=kernel)
        rows = rows_of(algorithm, batches)
        with torch.no_grad():
            algorithm.policy.policy.readout.bias.add_(0.03)  # type: ignore[attr-defined]
        algorithm.policy_loss(rows)
        seen[form] = kernel
    steps, joint = seen["two_layer"], seen["joint"]
    assert steps.log_ratio.shape[1] == 4 and joint.log_ratio.shape[1] == 1
    torch.testing.assert_close(joint.log_ratio, steps.log_ratio.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(joint.kl, steps.kl.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
    assert float(joint.log_ratio.abs().max()) > 0.1


@every_sampler
def test_neither_the_order_nor_the_size_of_a_minibatch_changes_loss_or_gradient(sampler: Sampler) -> None:
    algorithm, batches = setting(sampler)
    rows = rows_of(algorithm, batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.01)  # type: ignore[attr-defined]
    whole = gradient(algorithm, algorithm.policy_loss(rows)[0])
    order = torch.randperm(len(rows.advantage), generator=torch.Generator().manual_seed(0))
    shuffled = gradient(algorithm, algorithm.policy_loss(tree.index(rows, order))[0])
    torch.testing.assert_close(shuffled, whole, rtol=1e-3, atol=1e-5)
    parts = [(len(at), algorithm.policy_loss(tree.index(rows, at))[0]) for at in order.tensor_split(5)]
    total = sum((size * loss for size, loss in parts), torch.zeros(())) / len(order)
    torch.testing.assert_close(gradient(algorithm, total), whole, rtol=1e-3, atol=1e-5)


def test_frames_that_did_not_run_and_padding_dims_have_no_gradient() -> None:
    algorithm, batches = setting()
    rows = rows_of(algorithm, batches)
    short = replace(rows, executed=torch.ones_like(rows.executed))
    mask = algorithm.policy.element_mask(short.executed)[:, None] > 0
    spoiled = replace(short, trace=replace(short.trace, x_next=torch.where(mask, short.trace.x_next, 7.0)))
    one, other = (gradient(algorithm, algorithm.policy_loss(each)[0]) for each in (short, spoiled))
    assert torch.equal(one, other)


def test_t13_the_clip_blocks_outward_moves_and_says_how_many() -> None:
    algorithm, batches = setting()
    rows = rows_of(algorithm, batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.3)  # type: ignore[attr-defined]
    log_ratio = (densities(algorithm, rows) - log_prob(
        rows.trace.x_next, rows.trace.mean, rows.trace.std, algorithm.policy.element_mask(rows.executed)[:, None]
    )).detach()  # fmt: skip
    ratio, a = log_ratio.exp(), rows.advantage[:, None]
    blocked = torch.where(a >= 0, ratio > 1.2, (ratio < 0.8) | (ratio > 3))
    loss, logs = algorithm.policy_loss(rows)
    assert 0 < float(blocked.float().mean()) < 1
    assert logs["ratio/blocked"] == pytest.approx(float(blocked.float().mean()), abs=1e-6)
    alive = tree.index(rows, ~blocked.squeeze(1))
    expected = gradient(algorithm, algorithm.policy_loss(alive)[0]) * len(alive.advantage) / len(rows.advantage)
    torch.testing.assert_close(gradient(algorithm, loss), expected, rtol=1e-4, atol=1e-6)


def test_the_logged_divergence_is_that_of_a_decision() -> None:
    algorithm, batches = setting(Sampler(form="two_layer"))
    rows = rows_of(algorithm, batches)
    assert algorithm.policy_loss(rows)[1]["kl/behaviour"] == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.1)  # type: ignore[attr-defined]
        mean, std = algorithm.policy.replay(rows.trace, rows.version, rows.context)
    mask = algorithm.policy.element_mask(rows.executed)[:, None]
    expected = kl(rows.trace.mean, rows.trace.std, mean, std, mask).sum(1).mean()
    assert algorithm.policy_loss(rows)[1]["kl/behaviour"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("form", ["hybrid", "two_layer", "joint"])
def test_b10_the_entropy_is_reduced_like_the_log_probability(form: Any) -> None:
    sampler = Sampler(noise="learned", form=form, index_law=(0.1, 0.2, 0.3, 0.4) if form == "hybrid" else None)
    algorithm, batches = setting(sampler)
    rows = rows_of(algorithm, batches)
    rows = replace(rows, advantage=torch.zeros_like(rows.advantage))
    plain, _ = algorithm.policy_loss(rows)
    algorithm.entropy_bonus = 0.5
    with_bonus, _ = algorithm.policy_loss(rows)
    mask = algorithm.policy.element_mask(rows.executed)[:, None]
    steps = entropy(torch.as_tensor(rows.trace.std), mask)  # [R, L]
    if form == "hybrid":
        steps = steps / (4 * torch.tensor(sampler.index_law)[rows.trace.step])
    expected = steps.sum(1).mean() if form == "joint" else steps.mean()
    assert float((plain - with_bonus).detach()) == pytest.approx(0.5 * float(expected), rel=1e-5)


@pytest.mark.parametrize("form", ["hybrid", "joint"])
def test_the_entropy_bonus_widens_learned_noise(form: Any) -> None:
    algorithm, batches = setting(Sampler(noise="learned", form=form), entropy_bonus=0.1)
    rows = replace(rows_of(algorithm, batches))
    indifferent = replace(rows, advantage=torch.zeros_like(rows.advantage))
    loss, _ = algorithm.policy_loss(indifferent)
    assert algorithm.policy.noise_head is not None
    before = algorithm.policy.replay(rows.trace, rows.version, rows.context)[1].mean()
    (slope,) = torch.autograd.grad(loss, [algorithm.policy.noise_head.net[-1].bias], retain_graph=True)  # type: ignore[list-item]
    with torch.no_grad():
        algorithm.policy.noise_head.net[-1].bias.sub_(0.1 * slope)  # type: ignore[union-attr,operator]
    assert algorithm.policy.replay(rows.trace, rows.version, rows.context)[1].mean() > before


# ---------------------------------------------------------------------------------------------------- value loss


def values(algorithm: PiRL, value: list[float], old: list[float], ret: list[float]) -> tuple[Tensor, dict[str, float]]:
    """The loss for a critic that says `value`, said `old` and should say `ret`."""

    class Says(torch.nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features[:, 0]

    algorithm.critic = Says()  # type: ignore[assignment]
    features = torch.tensor(value)[:, None].requires_grad_()
    count = torch.arange(len(value))
    empty: Any = None
    rows = Rows(
        obs=None, context=None, trace=empty, version=count, executed=count, advantage=count.float(),
        number=count, features=features, value=torch.tensor(old), ret=torch.tensor(ret),
    )  # fmt: skip
    loss, logs = algorithm.value_loss(rows)
    loss.backward()
    assert features.grad is not None
    return features.grad[:, 0] * len(value), logs


def test_the_value_loss_is_the_worse_of_the_plain_and_the_clipped_step() -> None:
    algorithm, _ = setting(value_clip=0.2)
    # free inside the clip; blocked where it moved past the clip towards the return; pulled back where it moved away
    slope, logs = values(algorithm, value=[0.1, 0.5, 0.5], old=[0.0, 0.0, 0.0], ret=[1.0, 1.0, -1.0])
    assert slope.tolist() == pytest.approx([0.1 - 1.0, 0.0, 0.5 + 1.0])
    expected = (0.5 * 0.9**2 + 0.5 * 0.8**2 + 0.5 * 1.5**2) / 3
    assert logs["loss/value"] == pytest.approx(expected, rel=1e-6)
    assert logs["value/clipped"] == pytest.approx(2 / 3)


def test_rounding_is_not_counted_as_a_clipped_value() -> None:
    algorithm, _ = setting(value_clip=0.2)
    value = [float(v) for v in torch.rand(100, generator=torch.Generator().manual_seed(0)) * 0.19]
    assert values(algorithm, value, [0.1 / 3] * 100, [1.0] * 100)[1]["value/clipped"] == 0


def test_without_a_clip_the_value_loss_is_hubers() -> None:
    algorithm, _ = setting(value_clip=None)
    slope, logs = values(algorithm, value=[0.5, 0.0], old=[0.0, 0.0], ret=[1.0, 50.0])
    assert slope.tolist() == pytest.approx([-0.5, -10.0])  # linear beyond 10
    assert logs["loss/value"] == pytest.approx((0.5 * 0.25 + 10 * (50 - 5)) / 2)


# --------------------------------------------------------------------------------------------- what an update touches


@pytest.mark.parametrize("critic", ["prefix", "expert", "privileged"])
def test_t14_the_encoder_stays_bit_identical_and_the_rest_learns(critic: Any) -> None:
    algorithm, batches = setting(Sampler(noise="learned"), critic=critic)
    assert algorithm.critic is not None
    before = weights(algorithm.policy)
    rows_of(algorithm, batches)  # fits the critic's statistics
    critic_before = weights(algorithm.critic)
    algorithm.update(batches)
    parts = {name.removeprefix("policy.").split(".")[0] for name in changed(algorithm.policy, before)}
    assert parts == {"hidden", "mix", "readout", "noise_head"}
    assert any(name.startswith("net") for name in changed(algorithm.critic, critic_before))


def test_an_encoder_that_trains_is_run_again_and_learns() -> None:
    algorithm, batches = setting(policy={"frozen_prefix": False}, critic="prefix")
    before = weights(algorithm.policy)
    rows = rows_of(algorithm, batches)
    assert rows.obs is not None and rows.context is None
    algorithm.update(batches)
    assert "policy.encoder.weight" in changed(algorithm.policy, before)


def test_t14_the_critic_sends_no_gradient_into_the_policy() -> None:
    for critic in ("prefix", "expert"):
        algorithm, batches = setting(critic=critic, policy={"frozen_prefix": False})
        loss, _ = algorithm.value_loss(rows_of(algorithm, batches))
        assert torch.autograd.grad(loss, algorithm.parameters, allow_unused=True) == (None,) * len(algorithm.parameters)


def test_the_critic_warms_up_alone() -> None:
    algorithm, batches = setting(critic_warmup=2)
    before = weights(algorithm.policy)
    for update in range(3):
        metrics = algorithm.update(batches)
        assert metrics["update/policy_steps"] == (8 if update == 2 else 0)  # 32 decisions in 2 minibatches, 4 epochs
        assert bool(changed(algorithm.policy, before)) == (update == 2)
    assert algorithm.policy.version == algorithm.updates == 3


def test_t15_small_steps_survive_in_float32_and_would_not_in_bfloat16() -> None:
    torch.manual_seed(0)
    env = PointMass(16)
    policy = FlowMLP(env.embodiment, 3, width=64)
    policy.fit_statistics(np.array([[-1.0, -1.0], [1.0, 1.0]]), np.zeros((2, 2)))
    algorithm = PiRL(FlowAgent(policy), learning_rate=5e-6, critic_warmup=0, epochs=1, minibatch=64)
    before = weights(policy)
    assert algorithm.update(Collector(env, algorithm.policy, decisions=4))["update/policy_steps"] == 1
    matrices = [name for name, value in policy.named_parameters() if value.ndim == 2]
    moved = torch.cat([(policy.state_dict()[name] != before[name]).flatten() for name in matrices])
    assert float(moved.float().mean()) > 0.99
    rounded = torch.cat([(policy.state_dict()[n].bfloat16() != before[n].bfloat16()).flatten() for n in matrices])
    assert float(rounded.float().mean()) < 0.1


def test_both_learning_rates_fall_linearly_to_their_share() -> None:
    algorithm, batches = setting(learning_rate=1e-4, value_learning_rate=1e-3, learning_rate_end=0.5, total_updates=4)
    rates = []
    for _ in range(6):
        rates.append([group["lr"] for group in algorithm.optimiser.param_groups])
        algorithm.update(batches)
    shares = [1, 0.875, 0.75, 0.625, 0.5, 0.5]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([[1e-4 * s, 1e-3 * s] for s in shares]))


# ---------------------------------------------------------------------------------------------- epochs, minibatches


@pytest.mark.parametrize(("minibatch", "sizes"), [(32, [32]), (12, [11, 11, 10]), (31, [16, 16]), (500, [32])])
def test_minibatches_are_of_nearly_equal_size_and_hold_every_row_once(minibatch: int, sizes: list[int]) -> None:
    class Counting(PiRL):
        seen: list[Tensor]

        def policy_loss(self, batch: Rows) -> tuple[Tensor, dict[str, float]]:
            self.seen.append(batch.advantage)
            return super().policy_loss(batch)

    plain, batches = setting()
    algorithm = Counting(plain.policy, critic="privileged", critic_warmup=0, minibatch=minibatch, epochs=2, target_kl=None)
    algorithm.seen = []
    rollout = next(batches)
    algorithm.update(Once(rollout))
    assert [len(part) for part in algorithm.seen] == sizes * 2
    one, two = (torch.cat(algorithm.seen[i * len(sizes) : (i + 1) * len(sizes)]) for i in range(2))
    assert torch.equal(one.sort().values, two.sort().values) and not torch.equal(one, two)  # another order each epoch


def test_b08_later_epochs_meet_the_clip() -> None:
    algorithm, batches = setting(learning_rate=1e-2, target_kl=None, epochs=4)
    metrics = algorithm.update(batches)
    assert metrics["ratio/max_abs_dev_first"] < 1e-4 and metrics["ratio/blocked"] > 0


def test_past_the_limit_of_divergence_the_policy_takes_no_step_and_the_critic_goes_on() -> None:
    algorithm, batches = setting(learning_rate=1e-2, target_kl=0.01, epochs=4)
    assert algorithm.critic is not None
    steps = []
    algorithm.optimiser.register_step_post_hook(lambda *_: steps.append(weights(algorithm.policy)))
    metrics = algorithm.update(batches)
    taken = int(metrics["update/policy_steps"])
    assert 1 <= taken < 8 and len(steps) == 8
    assert not changed(algorithm.policy, steps[taken - 1])  # nothing moved after the last step that was allowed
    if taken > 1:
        assert changed(algorithm.policy, steps[taken - 2])


def test_without_a_critic_the_update_is_over_at_the_limit_of_divergence() -> None:
    algorithm, batches = setting(learning_rate=1e-2, target_kl=0.01, epochs=4, group=4)
    steps = []
    algorithm.optimiser.register_step_post_hook(lambda *_: steps.append(1))
    taken = int(algorithm.update(batches)["update/policy_steps"])
    assert len(steps) == taken < 8


def test_nan_in_a_loss_stops_the_run_and_names_it() -> None:
    algorithm, batches = setting()
    rows_of(algorithm, batches)
    assert algorithm.critic is not None
    with torch.no_grad():
        algorithm.critic.net[-1].bias.fill_(float("nan"))  # type: ignore[union-attr,operator]
    before = weights(algorithm.policy)
    with pytest.raises(RuntimeError, match=r"loss/value.* is not finite at update 0"):
        algorithm.update(batches)
    assert not changed(algorithm.policy, before)


# ------------------------------------------------------------------------------------------------------ advantages


def test_advantages_are_standardised_over_the_whole_batch_and_clamped() -> None:
    algorithm, batches = setting(advantage_clip=1.5, lanes=16)
    rollout = tree.to(next(batches), "cpu")
    rows, _ = algorithm.prepare(rollout)
    raw = rows.ret - rows.value  # type: ignore[operator]
    expected = normalise(raw, torch.ones_like(raw, dtype=torch.bool)).clamp(-1.5, 1.5)
    torch.testing.assert_close(rows.advantage, expected, rtol=1e-4, atol=1e-5)
    assert float(rows.advantage.abs().max()) == 1.5


def test_shuffling_keeps_the_advantages_and_loses_whose_they_are() -> None:
    plain, batches = setting()
    rollout = tree.to(next(batches), "cpu")
    torch.manual_seed(1)
    control = PiRL(plain.policy, critic="privileged", shuffle_advantages=True)
    control.critic = plain.critic
    straight, shuffled = plain.prepare(rollout)[0].advantage, control.prepare(rollout)[0].advantage
    assert torch.equal(straight.sort().values, shuffled.sort().values) and not torch.equal(straight, shuffled)


def test_explained_variance_is_one_less_the_share_of_the_residual() -> None:
    algorithm, batches = setting()
    rows, metrics = algorithm.prepare(tree.to(next(batches), "cpu"))
    assert rows.ret is not None and rows.value is not None
    expected = 1 - (rows.ret - rows.value).var() / rows.ret.var()
    assert metrics["value/explained_variance"] == pytest.approx(float(expected), abs=1e-4)


def test_a_batch_in_which_nothing_ran_changes_nothing() -> None:
    algorithm, batches = setting()
    rollout = next(batches)
    before = weights(algorithm.policy)
    metrics = algorithm.update(Once(replace(rollout, executed=np.zeros_like(rollout.executed))))
    assert metrics["update/decisions"] == 0 and not changed(algorithm.policy, before)
    assert all(math.isfinite(figure) for figure in metrics.values())


# ---------------------------------------------------------------------------------------------------------- groups


def grouped(reward: list[list[float]], done: list[list[bool]] | None = None, gamma: float = 1.0) -> tuple[PiRL, Transition]:
    """A rollout of groups of 2 whose rewards [D, N] and ends the test writes."""
    algorithm, batches = setting(lanes=len(reward[0]), decisions=len(reward), group=2)
    rollout = tree.to(next(batches), "cpu")
    earned = torch.tensor(reward)
    ends = torch.zeros_like(earned, dtype=torch.bool) if done is None else torch.tensor(done)
    executed = torch.ones_like(earned, dtype=torch.int64)
    return algorithm, replace(
        tree.index(rollout, slice(0, len(reward))), reward=earned, done=ends, executed=executed,
        discount=torch.full_like(earned, gamma),
    )  # fmt: skip


def test_every_decision_of_an_episode_has_its_group_advantage() -> None:
    algorithm, rollout = grouped([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 3.0]])
    rows, _ = algorithm.prepare(rollout)
    # scores 1, 0 | 2, 3, and nothing is standardised a second time over the batch
    assert rows.advantage.tolist() == pytest.approx([1, -1, -1, 1] * 2)


def test_an_episode_s_score_is_its_discounted_return_up_to_its_end() -> None:
    # first group: .9 * 1 (the 9 comes after its end) against .9 * 1.2; second: 1 against .81 * 1.1
    reward = [[0.0, 0.0, 1.0, 0.0], [1.0, 1.2, 0.0, 0.0], [9.0, 0.0, 0.0, 1.1]]
    done = [[False] * 4, [True, True, False, False], [False, False, True, True]]
    algorithm, rollout = grouped(reward, done, gamma=0.9)
    rows, _ = algorithm.prepare(rollout)
    assert rows.advantage.tolist() == pytest.approx([-1, 1, 1, -1] * 3)


def test_dead_groups_are_dropped_and_living_ones_kept() -> None:
    algorithm, rollout = grouped([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    rows, metrics = algorithm.prepare(rollout)
    assert rows.advantage.tolist() == pytest.approx([1, -1] * 2)
    assert metrics["advantage/kept"] == 0.5


@pytest.mark.filterwarnings("error")
def test_b20_an_update_whose_groups_are_all_dead_is_skipped_cleanly() -> None:
    algorithm, rollout = grouped([[1.0, 1.0, 0.0, 0.0]])
    before = weights(algorithm.policy)
    metrics = algorithm.update(Once(rollout))
    assert metrics["update/decisions"] == 0 and metrics["advantage/kept"] == 0
    assert not changed(algorithm.policy, before) and not algorithm.optimiser.state
    assert algorithm.policy.version == 1


def test_groups_learn_from_rollouts() -> None:
    algorithm, batches = setting(lanes=16, group=4)
    before = weights(algorithm.policy)
    metrics = algorithm.update(batches)
    assert metrics["update/decisions"] > 0 and changed(algorithm.policy, before)
    assert "loss/value" not in metrics and metrics["ratio/mean_shift_first"] <= 1e-5


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"advantage": "group"}, "group >= 2"),
        ({"minibatch": 0}, "at least 1"),
        ({"epochs": 0}, "at least 1"),
        ({"total_updates": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        setting(**wrong)


def test_a_privileged_critic_wants_privileged_worlds() -> None:
    torch.manual_seed(0)
    policy = Toy(replace(PointMass().embodiment, privileged_names=()))
    with pytest.raises(ValueError, match="privileged observations"):
        PiRL(FlowAgent(policy), critic="privileged")


# ----------------------------------------------------------------------------------------- parts, recomputed behaviour


@every_sampler
@pytest.mark.parametrize("frozen", [True, False])
def test_a_minibatch_in_parts_takes_the_step_of_the_whole(sampler: Sampler, frozen: bool) -> None:
    after, figures = [], []
    for microbatch in (None, 5):
        algorithm, batches = setting(sampler, policy={"frozen_prefix": frozen}, microbatch=microbatch, learning_rate=1e-3)
        figures.append(algorithm.update(batches))
        assert algorithm.critic is not None
        after.append({**weights(algorithm.policy), **weights(algorithm.critic)})
    whole, parts = after
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-5)
    assert figures[0].keys() == figures[1].keys()
    for name, figure in figures[0].items():
        assert figures[1][name] == pytest.approx(figure, rel=1e-2, abs=1e-4), name


@every_sampler
def test_recomputed_behaviour_starts_at_exactly_one(sampler: Sampler) -> None:
    algorithm, batches = setting(sampler, recompute_behaviour=True, microbatch=7, max_mean_shift=1.0)
    rollout = next(batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(1e-3)  # type: ignore[attr-defined]
    metrics = algorithm.update(Once(rollout))
    assert metrics["ratio/mean_shift_first"] == 0 and metrics["ratio/max_abs_dev_first"] == 0
    assert metrics["ratio/rollout_shift"] > 1e-5


def test_recomputing_hides_no_foreign_weights() -> None:
    algorithm, batches = setting(recompute_behaviour=True)
    rollout = next(batches)
    with torch.no_grad():
        algorithm.policy.policy.readout.bias.add_(0.01)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="differ from the rollout's by"):
        algorithm.update(Once(rollout))
