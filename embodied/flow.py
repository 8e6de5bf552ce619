"""All of the flow mathematics, once: path, loss, transitions, likelihoods, sampling. Knows no model.

Convention (openpi's): flow time t = 1 is noise, t = 0 is action,

    x_t = (1 - t) action + t noise,      v = noise - action,      integrate downward on t_k = 1 - k/K.

Writing `action^ = x - t v` and `noise^ = x + (1 - t) v`, every sampler below is one Gaussian step t -> s,

    x_s ~ N( (1 - s) action^ + c noise^,  std^2 ),

and differs only in c and std (`transition`). Rollout and learner both call that function, so a probability
ratio is 1 before the first optimiser step. The pi_RL paper (arXiv 2510.25889, eqs 7-9) prints Flow-GRPO's
drift, which belongs to this convention, next to the opposite definition of time; taken literally its variance
diverges. We follow its code, which is right (`test_the_papers_literal_sign_diverges`).

Arithmetic runs in the dtype of `x`; callers keep x, mean, std and log-probabilities in float32.
Axes: B batch, L likelihood-bearing steps, K denoising steps, H horizon, A action dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from .interfaces import Velocity
from .types import Trace

Noise = Literal["sde", "cps", "learned"]
Form = Literal["hybrid", "two_layer", "joint"]

Field = Callable[[Tensor, Tensor], Velocity]
"""(x [B, H, A], t [B]) -> Velocity: a policy with its context filled in."""
Level = Callable[[Velocity], Tensor]
"""Noise level of a step, broadcastable to [B, H, A]: the schedule's number, or a head on the features."""


# ---------------------------------------------------------------------------------------------- path and loss


def grid(steps: int, like: Tensor) -> Tensor:
    """Flow times t_k = 1 - k/K for k = 0..K, [K + 1]."""
    if steps < 1:
        raise ValueError(f"A flow needs at least 1 denoising step, got {steps}.")
    return 1 - torch.arange(steps + 1, dtype=like.dtype, device=like.device) / steps


def draw_times(batch: int, generator: torch.Generator) -> Tensor:
    """Draw training times t = 0.001 + 0.999 Beta(1.5, 1), mass towards noise (openpi): float32 [B].

    Beta(1.5, 1) has the distribution function u^1.5, so its quantile function is exact.
    """
    return 0.001 + 0.999 * torch.rand(batch, generator=generator) ** (2 / 3)


def interpolate(action: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """The path x_t = (1 - t) action + t noise, t [B]."""
    t = _column(t, action)
    return (1 - t) * action + t * noise


def predict_ends(x: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The action and the noise that x_t and v imply: (x - t v, x + (1 - t) v)."""
    t = _column(t, x)
    return x - t * v, x + (1 - t) * v


def matching_loss(v: Tensor, action: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Flow-matching error (v - (noise - action))^2 per row, averaged over the elements of `mask` [B, H, A]: [B].

    A row without a valid element contributes 0, and padded frames have exactly zero gradient.
    """
    error = (v.to(action.dtype) - (noise - action)) ** 2
    return (error * mask).sum((-2, -1)) / mask.sum((-2, -1)).clamp(min=1)


# ------------------------------------------------------------------------------------------------ transitions


def transition(
    x: Tensor, v: Tensor, t: Tensor, s: Tensor, *, noise: Noise | None, level: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean and std of the step from flow time t to s < t, both [B]: the one transition of the project.

    noise:
        None: the ODE's Euler step, std 0.
        "sde": Flow-SDE (Flow-GRPO, pi_RL), sigma_t = a sqrt(t / (1 - t)) with `level` a; at t = 1, where that is
            singular, 1 - t is replaced by 1 - s, the width of the first step. std = sigma_t sqrt(t - s).
        "cps": Flow-CPS (arXiv 2509.05952), noise share eta = `level` in [0, 1]: total noise stays exactly s. Its
            last step has std 0, hence no density.
        "learned": Flow-Noise (ReinFlow), the Euler mean with std = `level`, from a head on the features. Not
            multiplied by sqrt(t - s).
    Returns mean [B, H, A] and std broadcastable to it.
    """
    action, noise_end = predict_ends(x, v.to(x.dtype), t)
    t, s = _column(t, x), _column(s, x)
    if not torch.is_tensor(level):
        level = torch.full_like(t, level)
    if noise is None:
        keep, std = s, torch.zeros_like(s)
    elif noise == "sde":
        singular = t > 1 - 1e-6
        variance_rate = level**2 * t / torch.where(singular, 1 - s, 1 - t)  # sigma_t^2
        keep = s - variance_rate * (t - s) / (2 * t)
        std = (variance_rate * (t - s)).sqrt()
    elif noise == "cps":
        keep, std = s * torch.cos(level * (math.pi / 2)), s * torch.sin(level * (math.pi / 2))
    elif noise == "learned":
        keep, std = s, level
    else:
        raise ValueError(f"No noise named {noise!r}. Allowed: None (the ODE), 'sde', 'cps', 'learned'.")
    return (1 - s) * action + keep * noise_end, std


def bounded_std(raw: Tensor, low: float, high: float) -> Tensor:
    """Squash a noise head's output into stds in [low, high], log-variance linear in tanh (ReinFlow, pi_RL).

    The paper calls its bounds log-variances; its code uses them as stds, and so do we.
    """
    span = math.log(high / low)
    return low * torch.exp(span * (torch.tanh(raw) + 1) / 2)


# ------------------------------------------------------------------------------------------------ likelihoods


def element_mask(executed: Tensor, shape: tuple[int, int], real_dims: int) -> Tensor:
    """float32 [B, H, A], 1 on executed frames x real action dims: what a likelihood or a loss speaks of."""
    horizon, dims = shape
    frames = torch.arange(horizon, device=executed.device) < executed[:, None]  # [B, H]
    real = torch.arange(dims, device=executed.device) < real_dims  # [A]
    return (frames[:, :, None] & real).float()


def log_prob(x_next: Tensor, mean: Tensor, std: Tensor, mask: Tensor) -> Tensor:
    """Gaussian log-density of each step, summed over the elements of `mask`: [B, L] for [B, L, H, A] inputs.

    Sums, never means: a clip range of 0.2 speaks of the ratio of the whole step. (The reference averages the joint
    form over its K + 1 factors; a sum over steps is the density that eq. 5 of the paper states. The factor of the
    initial noise has no parameters and cancels in every ratio.)
    """
    element = -0.5 * ((x_next - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
    return (element * mask).sum((-2, -1))


def entropy(std: Tensor, mask: Tensor) -> Tensor:
    """Closed-form entropy per step, summed over `mask`: 1/2 log(2 pi e std^2) an element."""
    return ((0.5 * math.log(2 * math.pi * math.e) + std.log()) * mask).sum((-2, -1))


def kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor, mask: Tensor) -> Tensor:
    """Closed-form KL(p || q) per step, summed over `mask`; sum (mean_p - mean_q)^2 / (2 std^2) at equal std."""
    ratio = std_p / std_q
    element = 0.5 * (((mean_p - mean_q) / std_q) ** 2 + ratio**2 - 1) - ratio.log()
    return (element * mask).sum((-2, -1))


def mean_shift(mean: Tensor, std: Tensor, behaviour_mean: Tensor, behaviour_std: Tensor, mask: Tensor) -> Tensor:
    """rms |mean - behaviour_mean| / behaviour_std over `mask`, per row [B]: 0 when learner and rollout agree.

    A difference of the stds counts the same way, so that a noise head that acted with other weights shows too.
    """
    squared = ((mean - behaviour_mean) ** 2 + (std - behaviour_std) ** 2) / behaviour_std**2 * mask  # [B, L, H, A]
    elements = mask.expand_as(squared).sum((-3, -2, -1)).clamp(min=1)
    return (squared.sum((-3, -2, -1)) / elements).sqrt()


# --------------------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True)
class Sampler:
    """How actions are drawn when exploring, and which steps carry the likelihood.

    hybrid: one step per decision is stochastic, its index drawn per sample (pi_RL draws one per batch); L = 1.
    two_layer: every step is stochastic and a decision of its own; L = K ratios.
    joint: every step is stochastic, one ratio of the whole chain; L = K, pi_RL's one-layer MDP.
    """

    steps: int = 4
    """K."""
    noise: Noise = "sde"
    form: Form = "hybrid"
    level: float = 0.5
    """a of Flow-SDE or eta of Flow-CPS; not used with learned noise."""
    level_end: float | None = None
    """Value that `level` reaches linearly over `anneal_versions`; constant when None."""
    anneal_versions: int = 1
    std_bounds: tuple[float, float] = (0.08, 0.16)
    """Bounds of the learned std, normalised action units."""
    index_law: tuple[float, ...] | None = None
    """Probability of each step in the hybrid form; uniform over the steps that have a density when None."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.anneal_versions < 1:
            raise ValueError(f"steps and anneal_versions must be at least 1, got {self.steps} and {self.anneal_versions}.")
        for given, allowed in ((self.noise, get_args(Noise)), (self.form, get_args(Form))):
            if given not in allowed:
                raise ValueError(f"A sampler knows no {given!r}. Allowed: {', '.join(allowed)}.")
        low, high = self.std_bounds
        if not 0 < low < high:
            raise ValueError(f"std_bounds must satisfy 0 < low < high, got {self.std_bounds}.")
        levels = [self.level] + ([] if self.level_end is None else [self.level_end])
        if self.noise != "learned" and not all(level > 0 for level in levels):  # NaN is refused too
            raise ValueError(f"A noise level of 0 has no density to learn from, got {levels}; give levels above 0.")
        if self.noise == "cps" and (max(levels) > 1 or self.steps < 2):
            raise ValueError(f"Flow-CPS needs a level in (0, 1] and at least 2 steps, got {levels} and {self.steps}.")
        if self.noise == "cps" and self.form != "hybrid":
            raise ValueError("Flow-CPS has no density in its last step; use form 'hybrid', which never draws it.")
        if self.index_law is not None:
            self._check_law(self.index_law)

    def _check_law(self, law: tuple[float, ...]) -> None:
        if self.form != "hybrid":
            raise ValueError(f"Only form 'hybrid' draws an index; form {self.form!r} takes no index_law.")
        if len(law) != self.steps or not all(p >= 0 for p in law) or not abs(sum(law) - 1) <= 1e-6:
            raise ValueError(f"index_law must be {self.steps} probabilities that sum to 1, got {law}.")
        if self.noise == "cps" and law[-1] > 0:
            raise ValueError("Flow-CPS has no density in its last step; its index_law must end with 0.")

    def level_at(self, version: Tensor) -> Tensor:
        """Noise level of the policy versions [B] that acted: float32 [B]. Rollout and learner share it by version."""
        end = self.level if self.level_end is None else self.level_end
        progress = (version.float() / self.anneal_versions).clamp(0, 1)
        return self.level + (end - self.level) * progress

    def index_probabilities(self) -> Tensor:
        """Probability of each step index in the hybrid form, [K]."""
        if self.index_law is not None:
            return torch.tensor(self.index_law, dtype=torch.float32)  # (0, 1) are whole numbers
        eligible = self.steps - 1 if self.noise == "cps" else self.steps
        return torch.tensor([1 / eligible] * eligible + [0.0] * (self.steps - eligible))

    def draw_steps(self, batch: int, generator: torch.Generator) -> Tensor:
        """Draw the stochastic steps of each sample: int64 [B, L]."""
        if self.form == "hybrid":
            return torch.multinomial(self.index_probabilities(), batch, replacement=True, generator=generator)[:, None]
        return torch.arange(self.steps).expand(batch, -1)


def generate(
    field: Field, x: Tensor, *, steps: int, generator: torch.Generator, noise: Noise | None = None,
    stochastic: Tensor | None = None, level: Level | None = None,
) -> tuple[Tensor, Trace | None]:
    """Integrate from noise x [B, H, A] to actions; the steps named by `stochastic` [B, L] are drawn, the rest ODE.

    Returns actions [B, H, A], normalised, and the trace of the drawn steps (None for the ODE).
    """
    times = grid(steps, x)
    chain: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for k in range(steps):
        t, s = times[k].expand(len(x)), times[k + 1].expand(len(x))
        velocity = field(x, t)
        mean, std = transition(x, velocity.v, t, s, noise=None)
        if stochastic is not None and level is not None:
            drawn = (stochastic == k).any(1)[:, None, None]  # [B, 1, 1]
            noisy_mean, noisy_std = transition(x, velocity.v, t, s, noise=noise, level=level(velocity))
            mean, std = torch.where(drawn, noisy_mean, mean), torch.where(drawn, noisy_std, std)
            fresh = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            x_next = mean + std * fresh
            chain.append((x, x_next, mean, std))
        else:
            x_next = mean
        x = x_next
    if stochastic is None:
        return x, None
    rows = torch.arange(len(x), device=x.device)[:, None]
    picked = [torch.stack(parts, 1)[rows, stochastic] for parts in zip(*chain, strict=True)]  # each [B, L, ...]
    return x, Trace(x=picked[0], x_next=picked[1], mean=picked[2], std=picked[3], step=stochastic)


def replay(field: Field, trace: Trace, *, steps: int, noise: Noise, level: Level) -> tuple[Tensor, Tensor]:
    """Mean and std [B, L, H, A] that the current parameters give the steps of a trace, in one batched call.

    `field` must serve B * L rows, sample-major (`tree.repeat(context, L)`).
    """
    batch, likelihoods = trace.step.shape
    x = trace.x.flatten(0, 1)  # [B * L, H, A]
    times = grid(steps, x)
    step = trace.step.flatten()
    t, s = times[step], times[step + 1]
    velocity = field(x, t)
    mean, std = transition(x, velocity.v, t, s, noise=noise, level=level(velocity))
    shape = (batch, likelihoods)
    return mean.unflatten(0, shape), std.unflatten(0, shape)


def _column(t: Tensor, like: Tensor) -> Tensor:
    return t.to(like.dtype).reshape(-1, *[1] * (like.ndim - 1))
