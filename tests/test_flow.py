"""The flow mathematics by value. Convention: t = 1 noise, t = 0 action, v = noise - action."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from embodied.flow import (
    Sampler,
    bounded_std,
    draw_times,
    element_mask,
    entropy,
    generate,
    grid,
    interpolate,
    kl,
    log_prob,
    matching_loss,
    mean_shift,
    predict_ends,
    replay,
    transition,
)
from embodied.interfaces import Velocity

from .fields import Gaussian


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def step(x: float, v: float, t: float, s: float, **how: Any) -> tuple[float, float]:
    """One transition of one number."""
    mean, std = transition(double(x), double(v), double(t), double(s), **how)
    return float(mean), float(std)


def chunk(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ONES = torch.ones(1, 1, 1)
NOISES = [("sde", 0.5), ("cps", 0.5), ("learned", 0.1)]


# ------------------------------------------------------------------------------------------- T1 identities


def test_t1_the_ends_of_the_path_are_recovered_from_the_true_velocity() -> None:
    action, noise, t = chunk(0, 5, 3, 2), chunk(1, 5, 3, 2), torch.linspace(0.01, 1, 5, dtype=torch.float64)
    recovered = predict_ends(interpolate(action, noise, t), noise - action, t)
    torch.testing.assert_close(recovered, (action, noise), rtol=0, atol=1e-12)


def test_t1_mixing_the_predicted_ends_is_the_euler_step() -> None:
    x, v = chunk(0, 5, 3, 2), chunk(1, 5, 3, 2)
    t = torch.linspace(0.2, 1, 5, dtype=torch.float64)
    s = t - 0.2
    action, noise = predict_ends(x, v, t)
    mix = (1 - s)[:, None, None] * action + s[:, None, None] * noise
    torch.testing.assert_close(mix, x - 0.2 * v, rtol=0, atol=1e-12)
    torch.testing.assert_close(transition(x, v, t, s, noise=None)[0], x - 0.2 * v, rtol=0, atol=1e-12)


def test_t1_the_score_is_minus_the_predicted_noise_over_t() -> None:
    gaussian, x = Gaussian(0.3, 0.5), torch.linspace(-2, 2, 9, dtype=torch.float64)
    for t in (0.1, 0.5, 1.0):
        time = torch.full_like(x, t)
        noise = predict_ends(x, gaussian.velocity(x, time), time)[1]
        torch.testing.assert_close(gaussian.score(x, time), -noise / t, rtol=0, atol=1e-12)


def test_the_grid_runs_from_noise_to_action_in_equal_steps() -> None:
    assert grid(4, torch.zeros(1)).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    with pytest.raises(ValueError, match="at least 1 denoising step"):
        grid(0, torch.zeros(1))


def test_the_ode_step_is_that_of_diffusers() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=[1, 0.75, 0.5, 0.25])
    x, v = chunk(0, 2, 3, 4).float(), chunk(1, 4, 2, 3, 4).float()
    times, theirs, ours = grid(4, x), x, x
    for k, timestep in enumerate(scheduler.timesteps):
        theirs = scheduler.step(v[k], timestep, theirs).prev_sample
        ours = transition(ours, v[k], times[k].expand(2), times[k + 1].expand(2), noise=None)[0]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_training_times_follow_the_beta_law() -> None:
    # t = 0.001 + 0.999 Beta(1.5, 1): mean .001 + .999 * .6, P(t <= q) = ((q - .001) / .999)^1.5
    t = draw_times(200_000, torch.Generator().manual_seed(0))
    assert float(t.min()) >= 0.001 and float(t.max()) <= 1
    assert float(t.mean()) == pytest.approx(0.001 + 0.999 * 0.6, abs=4 * math.sqrt(0.0686 / 200_000))
    for q in (0.2, 0.5, 0.9):
        expected = ((q - 0.001) / 0.999) ** 1.5
        assert float((t <= q).double().mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 200_000))


# --------------------------------------------------------------------------------------- N6 transitions by value


def test_n6_four_euler_steps_of_a_straight_path_reach_the_action() -> None:
    path = [1.2]
    for t in (1.0, 0.75, 0.5, 0.25):
        path.append(step(path[-1], 1.0, t, t - 0.25, noise=None)[0])
    assert path == pytest.approx([1.2, 0.95, 0.7, 0.45, 0.2], abs=1e-12)


def test_n6_one_flow_sde_step() -> None:
    # sigma = .5 sqrt(.5/.5) = .5; mean = .7 (1 - .25*.25/1) - .25 (1 + .25*.5/1) = .375; std = .5 sqrt(.25)
    mean, std = step(0.7, 1.0, 0.5, 0.25, noise="sde", level=0.5)
    assert (mean, std) == pytest.approx((0.375, 0.25), abs=1e-12)
    density = log_prob(double(0.625)[None, None], double(mean)[None, None], double(std)[None, None], ONES[0])
    assert float(density) == pytest.approx(-0.0326442, abs=1e-7)


@pytest.mark.parametrize("t", [1.0, 1 - 1e-8])
def test_n6_the_first_step_takes_its_own_width_where_the_schedule_is_singular(t: float) -> None:
    # sigma = .5 sqrt(1 / .25) = 1; mean = 1.2 - .25 - (.25 / 2) * 1.2 = .8
    assert step(1.2, 1.0, t, 0.75, noise="sde", level=0.5) == pytest.approx((0.8, 0.5), abs=1e-6)


def test_flow_sde_is_the_drift_and_noise_of_the_reverse_sde() -> None:
    # x - delta v - delta sigma^2 / (2 t) noise^, std sigma sqrt(delta), sigma = a sqrt(t / (1 - t))
    x, v, a, delta = 0.4, -1.3, 0.7, 0.2
    for t in (0.8, 0.6, 0.4, 0.2):
        sigma = a * math.sqrt(t / (1 - t))
        noise = x + (1 - t) * v
        expected = x - delta * v - delta * sigma**2 / (2 * t) * noise, sigma * math.sqrt(delta)
        assert step(x, v, t, t - delta, noise="sde", level=a) == pytest.approx(expected, abs=1e-12)


def test_the_last_flow_sde_step_leaves_a_over_root_k_k_minus_1() -> None:
    for steps, expected in {2: 0.354, 3: 0.204, 4: 0.144, 5: 0.112, 8: 0.067, 10: 0.053}.items():
        std = step(0.0, 0.0, 1 / steps, 0.0, noise="sde", level=0.5)[1]
        assert std == pytest.approx(0.5 / math.sqrt(steps * (steps - 1)), abs=1e-12)
        assert std == pytest.approx(expected, abs=6e-4)


def test_a_noise_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="Allowed: None"):
        step(0, 0, 0.5, 0.25, noise="white", level=0.5)


# --------------------------------------------------------------------------------------------------- T5 limits


@pytest.mark.parametrize("noise", ["sde", "cps", "learned"])
def test_t5_without_noise_every_sampler_is_the_ode(noise: str) -> None:
    for t in (1.0, 0.75, 0.5, 0.25):
        euler = step(0.7, 1.0, t, t - 0.25, noise=None)
        level = torch.zeros(1, dtype=torch.float64) if noise == "learned" else 0.0
        assert step(0.7, 1.0, t, t - 0.25, noise=noise, level=level) == pytest.approx(euler, abs=1e-15)


@pytest.mark.parametrize(("noise", "level"), [("sde", 1e-9), ("cps", 1e-9), ("learned", 1e-9)])
def test_t5_a_chain_with_vanishing_noise_is_the_ode_chain(noise: Any, level: float) -> None:
    gaussian, x = Gaussian(0.3, 0.5), chunk(0, 64, 1, 1)

    def field(x: Tensor, t: Tensor) -> Velocity:
        return Velocity(gaussian.velocity(x, t[:, None, None]), x)

    def draw(**how: Any) -> Tensor:
        return generate(field, x, steps=4, generator=torch.Generator().manual_seed(1), **how)[0]

    every = torch.arange(4).expand(64, 4)
    noisy = draw(noise=noise, stochastic=every, level=lambda velocity: torch.full((64, 1, 1), level))
    torch.testing.assert_close(noisy, draw(), rtol=0, atol=1e-7)


def test_t5_with_one_step_flow_sde_has_std_a() -> None:
    assert step(0.7, 1.0, 1.0, 0.0, noise="sde", level=0.5)[1] == pytest.approx(0.5, abs=1e-12)


def test_t4_the_last_flow_cps_step_has_no_noise() -> None:
    assert step(0.7, 1.0, 0.25, 0.0, noise="cps", level=0.7) == pytest.approx((0.45, 0.0), abs=1e-12)


def test_t4_flow_cps_keeps_the_total_noise_coefficient() -> None:
    # std^2 + (coefficient of the predicted noise)^2 = s^2, whatever eta
    for eta in (0.1, 0.5, 1.0):
        for t in (1.0, 0.75, 0.5):
            s = t - 0.25
            at_unit_noise = step(1.0, 1 / t, t, s, noise="cps", level=eta)  # v = x / t: predicted action is 0
            keep = at_unit_noise[0] / (1 + (1 - t) / t)  # the mean over the predicted noise x / t
            assert keep**2 + at_unit_noise[1] ** 2 == pytest.approx(s**2, abs=1e-12)


# ----------------------------------------------------------------------------------------------- T6, T7 densities


def test_t6_the_log_probability_is_the_sum_of_normal_log_densities() -> None:
    x, mean, std = chunk(0, 4, 2, 3, 5), chunk(1, 4, 2, 3, 5), chunk(2, 4, 2, 3, 5).exp()
    expected = torch.distributions.Normal(mean, std).log_prob(x).sum((-2, -1))
    torch.testing.assert_close(log_prob(x, mean, std, torch.ones(4, 1, 3, 5)), expected, rtol=1e-6, atol=1e-6)


def test_t6_a_step_s_density_integrates_to_one() -> None:
    mean, std = step(0.7, 1.0, 0.5, 0.25, noise="sde", level=0.5)
    x = torch.linspace(mean - 10 * std, mean + 10 * std, 20_001, dtype=torch.float64)[:, None, None]
    density = log_prob(x, torch.full_like(x, mean), torch.full_like(x, std), ONES).exp()
    assert float(torch.trapezoid(density, x[:, 0, 0])) == pytest.approx(1, abs=1e-9)


def test_t6_the_entropy_is_minus_the_expected_log_density() -> None:
    std = double(0.25)[None, None]
    assert float(entropy(std, ONES[0])) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 0.25**2), abs=1e-9)
    x = 0.25 * torch.linspace(-12, 12, 40_001, dtype=torch.float64)[:, None, None]
    log_density = log_prob(x, torch.zeros_like(x), std.expand_as(x), ONES)
    expected = -torch.trapezoid(log_density.exp() * log_density, x[:, 0, 0])
    assert float(entropy(std, ONES[0])) == pytest.approx(float(expected), abs=1e-7)


def test_entropy_and_log_probability_count_a_shared_std_once_per_element() -> None:
    mask, mean = torch.ones(2, 1, 3, 5), chunk(0, 2, 4, 3, 5)
    shared, full = torch.full((2, 4, 1, 1), 0.3), torch.full((2, 4, 3, 5), 0.3)
    torch.testing.assert_close(entropy(shared, mask), entropy(full, mask))
    torch.testing.assert_close(log_prob(mean + 0.1, mean, shared, mask), log_prob(mean + 0.1, mean, full, mask))


@pytest.mark.parametrize("t", [1.0, 0.75, 0.5, 0.25])
def test_t6_the_score_function_has_mean_zero_and_the_fisher_information(t: float) -> None:
    a, delta, nodes = 0.5, 0.25, torch.linspace(-10, 10, 4001, dtype=torch.float64)
    weight = torch.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])  # of x' = mean + std node
    slope = -delta if t == 1 else -delta * (1 + a**2 / 2)
    scores = []
    for node in nodes[::100]:
        v = double(1.0).requires_grad_()
        mean, std = transition(double(0.7), v, double(t), double(t - delta), noise="sde", level=a)
        reached = (mean + std * node).detach()
        log_prob(reached[None, None], mean[None, None], std[None, None], ONES[0]).sum().backward()
        assert v.grad is not None
        torch.testing.assert_close(v.grad, slope * node / std.detach(), rtol=1e-9, atol=1e-9)
        scores.append(v.grad)
    scores_at_nodes = slope * nodes / float(std)
    assert float((weight * scores_at_nodes).sum()) == pytest.approx(0, abs=1e-9)
    assert float((weight * scores_at_nodes**2).sum()) == pytest.approx((slope / float(std)) ** 2, rel=1e-6)


def test_t7_the_score_weights_of_four_steps_at_half_noise() -> None:
    # |d mean / d v| / std: the gradient of early steps is small, that of the last one large
    found = []
    for t in (1.0, 0.75, 0.5, 0.25):
        v = double(0.0).requires_grad_()
        mean, std = transition(double(0.7), v, double(t), double(t - 0.25), noise="sde", level=0.5)
        (slope,) = torch.autograd.grad(mean.sum(), v)
        found.append(float(slope.abs() / std))
    # 0.25 / 0.5, then 0.25 * 1.125 / (.433, .25, .144)
    assert found == pytest.approx([0.5, 0.28125 / 0.4330127, 0.28125 / 0.25, 0.28125 / 0.1443376], rel=1e-6)


@pytest.mark.parametrize("noise", ["sde", "cps", "learned"])
def test_t7_the_gradient_through_a_network_is_its_finite_difference(noise: Any) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
    x, x_next, t = chunk(0, 3, 2, 1), chunk(1, 3, 2, 1), double(1.0, 0.75, 0.5)

    def density(*parameters: Tensor) -> Tensor:
        names = [name for name, _ in net.named_parameters()]
        inputs = torch.cat([x.flatten(1), t[:, None], t[:, None] ** 2], -1)
        out = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (inputs,))
        v, raw = out[:, :2].unflatten(1, (2, 1)), out[:, 2:].unflatten(1, (2, 1))
        level = bounded_std(raw, 0.08, 0.16) if noise == "learned" else 0.5
        mean, std = transition(x, v, t, t - 0.25, noise=noise, level=level)
        return log_prob(x_next, mean, std, torch.ones(3, 2, 1))

    assert torch.autograd.gradcheck(density, tuple(net.parameters()), rtol=1e-6, atol=1e-6)


def test_t7_the_gradient_in_a_learned_std_is_z_squared_minus_1_over_std() -> None:
    std = double(0.12).requires_grad_()
    mean, level = transition(double(0.7), double(1.0), double(0.5), double(0.25), noise="learned", level=std)
    log_prob((mean + 1.7 * level).detach()[None, None], mean[None, None], level[None, None], ONES[0]).sum().backward()
    assert std.grad is not None
    assert float(std.grad) == pytest.approx((1.7**2 - 1) / 0.12, rel=1e-9)


@given(st.floats(-50, 50), st.floats(0.01, 0.5), st.floats(1.1, 10))
def test_t7_a_learned_std_stays_within_its_bounds(raw: float, low: float, factor: float) -> None:
    std = float(bounded_std(double(raw), low, low * factor))
    assert low * (1 - 1e-12) <= std <= low * factor * (1 + 1e-12)


def test_t7_the_bounds_of_a_learned_std_are_linear_in_log_variance() -> None:
    # log var = min + (max - min)(tanh + 1)/2, min = log .08^2, max = log .16^2; std = exp(log var / 2)
    for raw in (-3.0, -0.4, 0.0, 2.0):
        low, high = math.log(0.08**2), math.log(0.16**2)
        expected = math.exp((low + (high - low) * (math.tanh(raw) + 1) / 2) / 2)
        assert float(bounded_std(double(raw), 0.08, 0.16)) == pytest.approx(expected, rel=1e-12)


def test_flow_noise_does_not_scale_its_std_by_the_step() -> None:
    assert step(0.7, 1.0, 0.5, 0.25, noise="learned", level=double(0.1)) == pytest.approx((0.45, 0.1), abs=1e-12)


# ------------------------------------------------------------------------------------------- N7, N8 precision


def test_n7_the_log_probability_of_a_chunk_is_a_sum_and_its_ratio_speaks_of_the_whole_chunk() -> None:
    mean, std, mask = torch.zeros(1, 1, 5, 7), torch.full((1, 1, 1, 1), 0.1), torch.ones(1, 1, 5, 7)
    x = torch.full_like(mean, 0.1)  # z = 1 everywhere
    old = log_prob(x, mean, std, mask)
    assert float(old) == pytest.approx(35 * 0.8836466, abs=1e-4)
    new = log_prob(x, mean + 0.1 * (1 - math.sqrt(0.98)), std, mask)  # each z^2 / 2 falls from .5 by .01
    assert float((new - old).exp()) == pytest.approx(1.4190675, rel=1e-4)  # e^.35; a mean would give 1.0100502


def test_n7_rounding_a_state_to_bfloat16_would_ruin_the_ratio() -> None:
    mean, std, mask = torch.full((1, 1, 5, 7), 0.30), torch.full((1, 1, 1, 1), 0.01), torch.ones(1, 1, 5, 7)
    x = torch.full_like(mean, 0.3337)
    drift = log_prob(x.bfloat16().float(), mean, std, mask) - log_prob(x, mean, std, mask)
    assert float(drift.exp()) == pytest.approx(0.0344, abs=2e-4)


def test_n8_a_clipped_action_is_another_action() -> None:
    mean, std, mask = torch.full((1, 1, 1), 0.9), torch.full((1, 1, 1), 0.5), torch.ones(1, 1, 1)
    raw, clipped = log_prob(mean + 0.5, mean, std, mask), log_prob(mean + 0.1, mean, std, mask)
    assert float(raw) == pytest.approx(-0.7257914, abs=1e-6)
    assert float((clipped - raw).exp()) == pytest.approx(1.616074, abs=1e-5)


def test_b02_beside_a_bfloat16_velocity_sample_mean_and_std_stay_float32() -> None:
    t, s, x = torch.full((2,), 0.5), torch.full((2,), 0.25), torch.full((2, 3, 1), 0.3337)
    half = torch.ones(2, 3, 1, dtype=torch.bfloat16)  # 1 is exact in it, .3337 is not
    for noise in (None, "sde"):
        found = transition(x, half, t, s, noise=noise, level=0.5)  # type: ignore[arg-type]
        expected = transition(x, half.float(), t, s, noise=noise, level=0.5)  # type: ignore[arg-type]
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == torch.float32 and torch.equal(one, other)


# --------------------------------------------------------------------------------------------------- T11 KL


@given(st.floats(-1, 1), st.floats(0.05, 2), st.floats(-1, 1), st.floats(0.05, 2))
def test_t11_the_divergence_is_that_of_normal_distributions(m: float, s: float, n: float, r: float) -> None:
    p, q = torch.distributions.Normal(double(m), s), torch.distributions.Normal(double(n), r)
    parts = [value.reshape(1, 1) for value in (p.mean, p.stddev, q.mean, q.stddev)]
    expected = float(torch.distributions.kl_divergence(p, q))
    assert float(kl(*parts, ONES[0])) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_t11_at_equal_std_the_divergence_is_half_the_squared_shift_either_way() -> None:
    p, q, std, mask = chunk(0, 2, 1, 3, 4), chunk(1, 2, 1, 3, 4), torch.full((2, 1, 1, 1), 0.3), torch.ones(2, 1, 3, 4)
    expected = ((p - q) ** 2).sum((-2, -1)) / (2 * 0.3**2)
    torch.testing.assert_close(kl(p, std, q, std, mask), expected.to(torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(kl(q, std, p, std, mask), expected.to(torch.float64), rtol=1e-6, atol=0)


# ------------------------------------------------------------------------------------------------- masks, losses


def test_only_executed_frames_and_real_dims_count() -> None:
    mask = element_mask(torch.tensor([2, 0]), (3, 4), real_dims=3)
    assert mask[0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert mask[1].sum() == 0


@given(st.integers(0, 3), st.floats(-1e3, 1e3))
def test_what_lies_outside_the_mask_never_matters(executed: int, garbage: float) -> None:
    mask = element_mask(torch.tensor([executed]), (3, 4), real_dims=3)[:, None]
    x, mean, std = chunk(0, 1, 1, 3, 4), chunk(1, 1, 1, 3, 4), torch.full((1, 1, 1, 1), 0.3, dtype=torch.float64)
    spoiled = torch.where(mask > 0, mean, garbage)
    assert torch.equal(log_prob(x, spoiled, std, mask), log_prob(x, mean, std, mask))
    assert torch.equal(kl(spoiled, std, x, std, mask), kl(mean, std, x, std, mask))
    assert torch.equal(mean_shift(spoiled, std, x, std, mask), mean_shift(mean, std, x, std, mask))


def test_the_matching_loss_is_the_mean_over_valid_elements_and_padding_has_no_gradient() -> None:
    action, noise = chunk(0, 2, 3, 2), chunk(1, 2, 3, 2)
    v = chunk(2, 2, 3, 2).requires_grad_()
    mask = element_mask(torch.tensor([2, 3]), (3, 2), real_dims=2)
    loss = matching_loss(v, action, noise, mask)
    error = (v - (noise - action)).detach() ** 2
    torch.testing.assert_close(loss.detach(), torch.stack([error[0, :2].mean(), error[1].mean()]))
    loss.sum().backward()
    assert v.grad is not None
    assert torch.equal(v.grad[0, 2], torch.zeros(2)) and bool((v.grad[0, :2] != 0).all())


def test_n9_padded_step_losses_leave_the_mean_and_a_row_of_padding_counts_nothing() -> None:
    # step losses 2, 4, 9, 9 with the last two padded: (2 + 4) / 2 = 3
    v = torch.tensor([2.0, 4.0, 9.0, 9.0]).sqrt().reshape(1, 4, 1).repeat(2, 1, 1)
    loss = matching_loss(v, torch.zeros(2, 4, 1), torch.zeros(2, 4, 1), element_mask(torch.tensor([2, 0]), (4, 1), 1))
    assert loss.tolist() == pytest.approx([3.0, 0.0])


def test_the_mean_shift_is_the_root_mean_square_in_stds_over_the_mask() -> None:
    mask = element_mask(torch.tensor([1]), (2, 2), real_dims=2)[:, None]
    mean, other, std = torch.zeros(1, 1, 2, 2), torch.tensor([[[[0.3, 0.4], [9.0, 9.0]]]]), torch.full((1, 1, 1, 1), 0.5)
    expected = math.sqrt((0.3**2 + 0.4**2) / 2) / 0.5
    assert float(mean_shift(mean, std, other, std, mask)) == pytest.approx(expected, rel=1e-6)
    assert float(mean_shift(mean, std * 1.1, mean, std, mask)) == pytest.approx(0.1, rel=1e-5)  # a std shifts as well


# --------------------------------------------------------------------------------------------- replay, determinism


def linear(x: Tensor, t: Tensor) -> Velocity:
    v = Gaussian(0.3, 0.5).velocity(x, t[:, None, None])
    return Velocity(v, v)


def drawn(noise: Any, level: float, form: Any, seed: int = 0) -> tuple[Any, Any]:
    sampler = Sampler(noise=noise, form=form, level=level)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 3, 2, generator=generator)
    at = torch.full((32, 1, 1), level)
    return generate(
        linear, x, steps=4, generator=generator, noise=noise, stochastic=sampler.draw_steps(32, generator), level=lambda _: at
    )


FORMS = [(n, lv, f) for n, lv in NOISES for f in ("hybrid", "two_layer", "joint") if n != "cps" or f == "hybrid"]


@pytest.mark.parametrize(("noise", "level", "form"), FORMS)
def test_t8_replaying_a_trace_gives_the_means_and_stds_that_drew_it(noise: Any, level: float, form: Any) -> None:
    _, trace = drawn(noise, level, form)
    mean, std = replay(linear, trace, steps=4, noise=noise, level=lambda v: torch.full((len(v.v), 1, 1), level))
    assert torch.equal(mean, trace.mean) and torch.equal(std, trace.std)


@pytest.mark.parametrize(("noise", "level", "form"), FORMS)
def test_t17_one_seed_draws_one_chain(noise: Any, level: float, form: Any) -> None:
    (action, trace), (again, same), (other, _) = (drawn(noise, level, form, seed) for seed in (0, 0, 1))
    assert torch.equal(action, again) and torch.equal(trace.x_next, same.x_next) and not torch.equal(action, other)


def test_a_trace_in_every_step_is_one_unbroken_chain_from_noise_to_action() -> None:
    action, trace = drawn("sde", 0.5, "two_layer")
    assert torch.equal(trace.x[:, 1:], trace.x_next[:, :-1]) and torch.equal(trace.x_next[:, -1], action)
    assert trace.step.tolist() == [[0, 1, 2, 3]] * 32


def test_in_the_hybrid_form_every_other_step_is_the_ode() -> None:
    action, trace = drawn("sde", 0.5, "hybrid")
    times = grid(4, action)
    for row in range(32):
        x, k = trace.x_next[row], int(trace.step[row, 0])
        for later in range(k + 1, 4):
            t = times[later].expand(1)
            x = transition(x, linear(x, t).v, t, times[later + 1].expand(1), noise=None)[0]
        torch.testing.assert_close(x[0], action[row], rtol=0, atol=1e-6)


def test_a_stochastic_step_follows_its_own_mean_and_std() -> None:
    _, trace = drawn("sde", 0.5, "hybrid")
    z = (trace.x_next - trace.mean) / trace.std
    assert float(z.mean()) == pytest.approx(0, abs=4 / math.sqrt(z.numel()))
    assert float(z.var()) == pytest.approx(1, abs=4 * math.sqrt(2 / z.numel()))


# ----------------------------------------------------------------------------------------------------- the sampler


def test_t17_the_noise_level_is_a_matter_of_the_version_alone() -> None:
    sampler = Sampler(level=0.6, level_end=0.2, anneal_versions=4)
    assert sampler.level_at(torch.tensor([0, 1, 2, 4, 9])).tolist() == pytest.approx([0.6, 0.5, 0.4, 0.2, 0.2])
    assert Sampler(level=0.6).level_at(torch.tensor([0, 7])).tolist() == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"anneal_versions": 0}, "at least 1"),
        ({"noise": "sdf"}, "Allowed: sde, cps, learned"),
        ({"form": "hybird"}, "Allowed: hybrid, two_layer, joint"),
        ({"level": 0.0}, "no density"),
        ({"level": float("nan")}, "no density"),
        ({"level_end": -0.1}, "no density"),
        ({"noise": "learned", "std_bounds": (0.2, 0.1)}, "low < high"),
        ({"noise": "cps", "level": 1.2}, r"\(0, 1\]"),
        ({"noise": "cps", "steps": 1}, "at least 2 steps"),
        ({"noise": "cps", "form": "two_layer"}, "last step"),
        ({"noise": "cps", "index_law": (0.25,) * 4}, "end with 0"),
        ({"index_law": (0.5, 0.5)}, "4 probabilities"),
        ({"index_law": (0.5, 0.5, 0.5, -0.5)}, "4 probabilities"),
        ({"form": "joint", "index_law": (0.25,) * 4}, "Only form 'hybrid'"),
    ],
)
def test_impossible_samplers_are_refused_in_words(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(**wrong)
