"""What samplers and the policy gradient do on average, against closed forms.

The action is Gaussian, so every step is linear in x and moments pass through a chain exactly: a step
x' = alpha x + beta + std xi takes (mean, variance) to (alpha mean + beta, alpha^2 variance + std^2).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL, Rows
from embodied.flow import Sampler, generate, grid, kl, log_prob, transition
from embodied.interfaces import Velocity
from embodied.kernels import Reinforce

from .fields import Gaussian, ShiftedGaussian, looking


class Step(NamedTuple):
    """x' = alpha x + beta + slope theta + std xi, for the velocity v(x, t) + theta."""

    alpha: float
    beta: float
    slope: float
    std: float


def linear_step(gaussian: Gaussian, k: int, steps: int, noise: Any, level: float | Tensor) -> Step:
    times = grid(steps, torch.zeros((), dtype=torch.float64))
    t, s = times[k : k + 1], times[k + 1 : k + 2]
    x, theta = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mean, std = transition(x, gaussian.velocity(x, t) + theta, t, s, noise=noise, level=level)
    alpha, slope = torch.autograd.grad(mean, (x, theta))
    return Step(float(alpha), float(mean.detach()), float(slope), float(std))


def moments(gaussian: Gaussian, steps: int, noise: Any, level: float) -> list[tuple[float, float]]:
    """Mean and variance after every step, all of them drawn."""
    mean, variance, found = 0.0, 1.0, []
    for k in range(steps):
        step = linear_step(gaussian, k, steps, noise, level)
        mean, variance = step.alpha * mean + step.beta, step.alpha**2 * variance + step.std**2
        found.append((mean, variance))
    return found


def field(gaussian: Gaussian) -> Any:
    return lambda x, t: Velocity(gaussian.velocity(x, t[:, None, None]), x)


# ------------------------------------------------------------------------------------ T2-T4 means and variances


@pytest.mark.parametrize("noise", [None, "sde", "cps"])
@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_t2_after_every_step_of_every_sampler_the_mean_is_1_minus_s_times_the_target(noise: Any, steps: int) -> None:
    for k, (mean, _) in enumerate(moments(Gaussian(0.3, 0.5), steps, noise, 0.5)):
        assert mean == pytest.approx((k + 1) / steps * 0.3, abs=1e-12)


def test_t2_the_variance_follows_the_euler_recursion() -> None:
    gaussian, steps, delta, a = Gaussian(0.3, 0.5), 4, 0.25, 0.5
    ode = sde = 1.0
    for k in range(steps):
        t = 1 - k * delta
        c, total = float(gaussian.slope(torch.tensor(t))), float(gaussian.variance(torch.tensor(t)))
        rate = a**2 * t / (1 - t) if t < 1 else a**2 * steps
        ode *= (1 - delta * c) ** 2
        sde = (1 - delta * c - delta * rate / (2 * total)) ** 2 * sde + rate * delta
        assert moments(gaussian, steps, None, 0.0)[k][1] == pytest.approx(ode, rel=1e-6)
        assert moments(gaussian, steps, "sde", a)[k][1] == pytest.approx(sde, rel=1e-6)
    assert (ode, sde) == pytest.approx((0.1160, 0.1709), abs=1e-4)


@pytest.mark.parametrize(("noise", "level"), [(None, 0.0), ("sde", 0.5), ("cps", 0.5)])
def test_t2_drawn_actions_have_the_moments_of_the_recursion(noise: Any, level: float) -> None:
    gaussian, count = Gaussian(0.3, 0.5), 400_000
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 1, 1, generator=generator)
    every = None if noise is None else torch.arange(4).expand(count, 4)
    how: Any = {"noise": noise, "stochastic": every, "level": lambda _: torch.full((count, 1, 1), level)}
    actions, _ = generate(field(gaussian), x, steps=4, generator=generator, **how)
    mean, variance = moments(gaussian, 4, noise, level)[-1]
    assert float(actions.mean()) == pytest.approx(mean, abs=4 * math.sqrt(variance / count))
    assert float(actions.var()) == pytest.approx(variance, rel=4 * math.sqrt(2 / count))


def test_t3_ode_and_sde_approach_the_target_variance_as_steps_shrink() -> None:
    gaussian = Gaussian(0.3, 0.5)
    assert moments(gaussian, 256, None, 0.0)[-1][1] == pytest.approx(0.2471, abs=1e-4)
    assert moments(gaussian, 256, "sde", 0.5)[-1][1] == pytest.approx(0.2507, abs=1e-4)


def test_t3_the_first_flow_sde_step_widens_the_variance_by_a_to_the_fourth_quarter() -> None:
    # (1 - 1/K - a^2/2)^2 + a^2 -> 1 + a^4 / 4: the price of noise where the schedule is singular
    for steps, a in ((4, 0.5), (1000, 0.8)):
        variance = moments(Gaussian(0.0, 1e-6), steps, "sde", a)[0][1]
        assert variance == pytest.approx((1 - 1 / steps - a**2 / 2) ** 2 + a**2, abs=1e-9)


def test_t3_ode_and_sde_keep_the_weights_and_quantiles_of_a_mixture() -> None:
    # 30 % at -1, 70 % at +1, std .2; velocity and score of a mixture are the posterior means of its parts
    weights, centres, spread, count, steps = torch.tensor([0.3, 0.7]), torch.tensor([-1.0, 1.0]), 0.2, 40_000, 128

    def velocity(x: Tensor, t: Tensor) -> Velocity:
        time = t[:, None, None]
        parts = [Gaussian(float(c), spread) for c in centres]
        total = parts[0].variance(time)
        logits = torch.cat([-((x - (1 - time) * c) ** 2) / (2 * total) for c in centres], -1) + weights.log()
        share = logits.softmax(-1)
        v = (share * torch.cat([part.velocity(x, time) for part in parts], -1)).sum(-1, keepdim=True)
        return Velocity(v, v)

    for noise, level in ((None, 0.0), ("sde", 0.5)):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(count, 1, 1, generator=generator)
        every = None if noise is None else torch.arange(steps).expand(count, steps)
        how: Any = {"noise": noise, "stochastic": every, "level": lambda _, a=level: torch.full((count, 1, 1), a)}
        actions = generate(velocity, x, steps=steps, generator=generator, **how)[0].flatten()
        assert float((actions > 0).double().mean()) == pytest.approx(0.7, abs=0.012)
        # the true quartiles: 25 % is deep in the left part (.25 / .3), 50 and 75 % in the right one
        left, right = torch.distributions.Normal(-1.0, spread), torch.distributions.Normal(1.0, spread)
        expected = [left.icdf(torch.tensor(0.25 / 0.3)), right.icdf(torch.tensor(0.2 / 0.7)), right.icdf(torch.tensor(0.45 / 0.7))]
        found = torch.quantile(actions, torch.tensor([0.25, 0.5, 0.75]))
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=0.03)


def test_the_papers_literal_sign_diverges() -> None:
    # eqs 7-9 as printed, tau from 0 (noise) to 1 (action): dA = [v + sigma^2 / (2 tau) (A + (1 - tau) v)] dtau + sigma dw,
    # sigma = a sqrt(tau / (1 - tau)). The forward velocity is minus ours, so dv / dA = -slope.
    gaussian, a = Gaussian(0.0, 0.5), 0.5

    def terminal_variance(steps: int) -> float:
        variance, delta = 1.0, 1 / steps
        for k in range(steps):
            tau = k / steps
            slope = -float(gaussian.slope(torch.tensor(1 - tau, dtype=torch.float64)))
            pull = a**2 / (2 * (1 - tau))  # sigma^2 / (2 tau)
            alpha = 1 + delta * (slope + pull * (1 + (1 - tau) * slope))
            variance = alpha**2 * variance + a**2 * tau / (1 - tau) * delta
        return variance

    literal = [terminal_variance(steps) for steps in (4, 64, 1024, 4096)]
    assert literal == pytest.approx([0.43, 2.23, 5.66, 8.44], abs=0.01)  # the target is .25
    ours = [moments(gaussian, steps, "sde", a)[-1][1] for steps in (64, 1024)]
    assert abs(ours[1] - 0.25) < abs(ours[0] - 0.25) < 0.03


@pytest.mark.parametrize("eta", [0.1, 0.5, 1.0])
def test_t4_flow_cps_keeps_the_std_of_a_point_at_s_exactly(eta: float) -> None:
    for k, (mean, variance) in enumerate(moments(Gaussian(0.3, 0.0), 5, "cps", eta)):
        s = 1 - (k + 1) / 5
        assert (mean, variance) == pytest.approx(((1 - s) * 0.3, s**2), abs=1e-12)


# --------------------------------------------------------------------------------------------- T11, T16 by chance


def test_t11_the_divergence_is_the_expected_log_ratio_and_k3_estimates_it_without_bias() -> None:
    generator, count = torch.Generator().manual_seed(0), 400_000
    mean_p, std_p, mean_q, std_q = (torch.full((1, 1, 1), value) for value in (0.1, 0.3, 0.2, 0.35))
    mask = torch.ones(1, 1, 1)
    x = mean_p + std_p * torch.randn(count, 1, 1, generator=generator)
    log_ratio = log_prob(x, mean_q, std_q, mask) - log_prob(x, mean_p, std_p, mask)  # q over p, x from p
    exact = float(kl(mean_p, std_p, mean_q, std_q, mask))
    for estimate in (-log_ratio, log_ratio.expm1() - log_ratio):
        assert float(estimate.mean()) == pytest.approx(exact, abs=4 * float(estimate.std()) / math.sqrt(count))


@pytest.mark.parametrize(
    ("sampler", "law"),
    [
        (Sampler(), (0.25, 0.25, 0.25, 0.25)),
        (Sampler(noise="cps"), (1 / 3, 1 / 3, 1 / 3, 0.0)),
        (Sampler(index_law=(0.5, 0.3, 0.2, 0.0)), (0.5, 0.3, 0.2, 0.0)),
    ],
    ids=["uniform", "cps", "given"],
)
def test_t16_indices_are_drawn_per_sample_from_their_law(sampler: Sampler, law: tuple[float, ...]) -> None:
    count = 40_000
    steps = sampler.draw_steps(count, torch.Generator().manual_seed(0)).flatten()
    for k, p in enumerate(law):
        bound = 4 * math.sqrt(p * (1 - p) / count)
        assert float((steps == k).double().mean()) == pytest.approx(p, abs=bound)  # exactly 0 where p is
    # neighbours in a batch agree no more often than independent draws do
    agree = sum(p**2 for p in law)
    assert float((steps[1:] == steps[:-1]).double().mean()) == pytest.approx(agree, abs=4 * math.sqrt(0.25 / count))


# ------------------------------------------------------------------------------------------ T9 the policy gradient

TARGET, THETA = 1.0, 0.05
BANDIT = Gaussian(0.3, 0.3)
"""Reward -(A - TARGET)^2 for the velocity of BANDIT plus THETA, K = 4, a = .5."""


def closed_form(stochastic: list[int], noise: Any = "sde", level: float | Tensor = 0.5) -> tuple[float, list[float]]:
    """E[A] and, per step, -2 (E[A] - TARGET) F_k b_k: what moving theta in that step alone does to E[R].

    b_k = d mean_k / d theta, F_k the product of the later alphas. Var[A] does not depend on theta.
    """
    chain = [linear_step(BANDIT, k, 4, noise if k in stochastic else None, level) for k in range(4)]
    mean = 0.0
    for step in chain:
        mean = step.alpha * mean + step.beta + step.slope * THETA
    later = [math.prod(step.alpha for step in chain[k + 1 :]) for k in range(4)]
    return mean, [-2 * (mean - TARGET) * f * step.slope for f, step in zip(later, chain, strict=True)]


def estimate(sampler: Sampler, batches: int = 40, size: int = 20_000) -> tuple[float, float]:
    """Ascent direction in theta that the trained loss gives at ratio 1, over many batches: (mean, standard error)."""
    torch.manual_seed(0)
    policy = ShiftedGaussian(BANDIT, THETA)
    algorithm = PiRL(FlowAgent(policy, sampler), advantage="group", group=2, kernel=Reinforce())
    obs, ones = looking(size), torch.ones(size, dtype=torch.int64)
    gradients = []
    for _ in range(batches):
        chunk = tree.to(algorithm.policy.act(obs, explore=True), "cpu")
        reward = -((chunk.actions[:, 0, 0] - TARGET) ** 2)
        rows = Rows(
            obs=None, context=chunk.context, trace=chunk.trace, version=chunk.version, executed=ones, advantage=reward + 0.7,
            number=ones,
        )  # fmt: skip
        loss, _ = algorithm.policy_loss(rows)
        gradients.append(-torch.autograd.grad(loss, policy.theta)[0].double())
    found = torch.stack(gradients)
    return float(found.mean()), float(found.std()) / math.sqrt(batches)


def assert_estimates(sampler: Sampler, expected: float, size: int = 20_000) -> None:
    mean, error = estimate(sampler, size=size)
    assert error < 0.02 * abs(expected)
    assert mean == pytest.approx(expected, abs=4 * error)


def test_t9_the_closed_forms_have_their_reference_values() -> None:
    hybrid = [closed_form([j])[1] for j in range(4)]
    seen = [hybrid[j][j] for j in range(4)]
    assert seen == pytest.approx([-0.0859, -0.1422, -0.2439, -0.4087], abs=1e-4)
    assert sum(seen) == pytest.approx(-0.8807, abs=1e-4)
    assert sum(sum(parts) for parts in hybrid) / 4 == pytest.approx(-0.7824, abs=1e-4)  # the hybrid's true gradient
    assert sum(closed_form([0, 1, 2, 3])[1]) == pytest.approx(-0.7550, abs=1e-4)


@pytest.mark.parametrize("j", range(4))
def test_t9_a_hybrid_decision_estimates_what_its_own_step_does(j: int) -> None:
    law = tuple(float(k == j) for k in range(4))
    assert_estimates(Sampler(index_law=law), closed_form([j])[1][j] / 4)  # weighted by 1 / (K p_j), p_j = 1


@pytest.mark.parametrize("law", [None, (0.1, 0.2, 0.3, 0.4), (0.7, 0.1, 0.1, 0.1)])
def test_t16_the_hybrid_gradient_does_not_depend_on_the_index_law(law: tuple[float, ...] | None) -> None:
    assert_estimates(Sampler(index_law=law), sum(closed_form([j])[1][j] for j in range(4)) / 4)


def test_t9_the_two_layer_gradient_is_the_true_gradient_over_k() -> None:
    assert_estimates(Sampler(form="two_layer"), sum(closed_form([0, 1, 2, 3])[1]) / 4)


def test_t9_the_joint_gradient_is_the_true_gradient() -> None:
    assert_estimates(Sampler(form="joint"), sum(closed_form([0, 1, 2, 3])[1]))


def test_t9_the_joint_gradient_of_flow_noise_is_the_true_gradient() -> None:
    # the mean of every step is Euler's whatever the std, so only the means' gradient depends on theta
    expected = sum(closed_form([0, 1, 2, 3], "learned", torch.tensor([0.1], dtype=torch.float64))[1])
    assert_estimates(Sampler(noise="learned", form="joint"), expected, size=4000)
