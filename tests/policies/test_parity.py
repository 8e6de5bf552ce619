"""Our way through LeRobot's networks against LeRobot's own: same actions, same loss, same checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.utils.constants import OBS_IMAGES, OBS_STATE
from torch import Tensor

from embodied import plugins
from embodied.agent import FlowAgent
from embodied.flow import generate, interpolate, matching_loss
from embodied.policies.lora import WRAPPED
from embodied.types import Observation

from . import checkpoints
from .conftest import SPEC, seen, stir
from .substitute import widths

FAMILIES = pytest.mark.parametrize("family", checkpoints.FAMILIES)
STATES = np.random.default_rng(1).normal(2, 3, (300, SPEC.state_dim))
ACTIONS = np.random.default_rng(2).uniform(SPEC.action_low, SPEC.action_high, (300, SPEC.action_dim))


def build(family: str, **settings: Any) -> Any:
    """A policy with statistics of its own and no layer at zero."""
    torch.manual_seed(0)
    policy = checkpoints.build(family, SPEC, **settings)
    stir(policy.network)
    policy.fit_statistics(STATES, ACTIONS)
    return policy


def noise(policy: Any, batch: int = 4) -> Tensor:
    return torch.randn(batch, policy.horizon, policy.action_dim, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def sample(policy: Any, obs: Observation, x: Tensor) -> Tensor:
    """Normalised actions of our sampler, real dims."""
    field = FlowAgent(policy).field(policy.encode(obs))
    return generate(field, x, steps=policy.reference_steps, generator=torch.Generator())[0][..., : SPEC.action_dim]


def lerobots(policy: Any, obs: Observation, x: Tensor) -> Tensor:
    """Normalised actions of LeRobot's sampler for the same noise, its processors before and after."""
    return policy.processors.action(torch.as_tensor(policy.reference_act(obs, x)))


def raw_batch(obs: Observation, cameras: dict[str, str] | None = None) -> dict[str, Any]:
    """An observation as LeRobot's environments give it."""
    names = {name: name for name in obs.images} if cameras is None else cameras
    pictures = {f"{OBS_IMAGES}.{theirs}": obs.images[ours].permute(0, 3, 1, 2) / 255 for ours, theirs in names.items()}
    return pictures | {OBS_STATE: obs.state, "task": [str(p) for p in obs.prompt]}


# ------------------------------------------------------------------------------------------------------- actions


@FAMILIES
def test_actions_equal_lerobots_sampler_for_the_same_noise(family: str) -> None:
    policy, obs = build(family), seen()
    x = noise(policy)
    theirs = lerobots(policy, obs, x)
    assert float(theirs.abs().max()) > 0.1
    torch.testing.assert_close(sample(policy, obs, x), theirs, rtol=0, atol=1e-5)


@FAMILIES
def test_an_absent_camera_costs_nothing_and_changes_nothing(family: str) -> None:
    policy, whole, obs = build(family, cameras={"front": "front"} | {"wrist": "wrist"}), build(family), seen()
    del policy.features["wrist"]  # a checkpoint's camera that this robot has not
    x = noise(policy)
    torch.testing.assert_close(sample(policy, obs, x), lerobots(policy, obs, x), rtol=0, atol=1e-5)
    per_camera = whole.encode(obs)["valid"].shape[1] - policy.encode(obs)["valid"].shape[1]
    assert per_camera > 0
    assert float((sample(whole, obs, x) - sample(policy, obs, x)).abs().max()) > 1e-3  # pictures do count


@FAMILIES
def test_room_for_longer_prompts_changes_nothing(family: str) -> None:
    obs = seen()
    tight, roomy = (build(family, prompt_tokens=tokens) for tokens in (200 if family == "pi05" else 32, None))
    tight.prompt_tokens = tight._inputs(obs)[0].tokens.shape[1]
    x = noise(tight)
    assert tight.encode(obs)["cache"].shape[4] < roomy.encode(obs)["cache"].shape[4]
    torch.testing.assert_close(sample(tight, obs, x), sample(roomy, obs, x), rtol=0, atol=1e-5)


@FAMILIES
def test_actions_in_bfloat16_stay_within_three_percent(family: str) -> None:
    exact, rounded, obs = build(family), build(family, precision="bfloat16"), seen()
    rounded.load_state_dict(exact.state_dict())
    x = noise(exact)
    ours, theirs = sample(rounded, obs, x), lerobots(exact, obs, x)
    assert ours.dtype == torch.float32
    error = float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())
    assert 0 < error < 0.03


# ---------------------------------------------------------------------------------------------------------- loss


@FAMILIES
def test_the_loss_equals_lerobots_forward(family: str) -> None:
    policy, obs = build(family), seen()
    x, t = noise(policy), torch.tensor([0.2, 0.5, 0.7, 0.999])
    action = policy.normalise(torch.as_tensor(ACTIONS[: 4 * policy.horizon].reshape(4, policy.horizon, -1)).float())
    v = policy.velocity(interpolate(action, x, t), t, policy.encode(obs)).v
    mask = torch.zeros_like(action)
    mask[..., : SPEC.action_dim] = 1
    ours = matching_loss(v, action, x, mask).mean()
    inputs, _ = policy._inputs(obs)
    state = [] if family == "pi05" else [inputs.state]
    seen_all = [torch.ones(4, dtype=torch.bool) for _ in inputs.images]
    theirs = policy.network.model.forward(
        inputs.images, seen_all, inputs.tokens, inputs.token_mask, *state, action, x, t
    )[..., : SPEC.action_dim].mean()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    mine, its = (torch.autograd.grad(loss, policy.network.model.action_in_proj.weight, retain_graph=True)[0] for loss in (ours, theirs))
    torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-6)


# --------------------------------------------------------------------------------------------------- checkpoints


@FAMILIES
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_saved_policy_runs_in_lerobot_and_comes_back(family: str, lora_rank: int, tmp_path: Path) -> None:
    policy, obs = build(family, lora_rank=lora_rank), seen()
    policy.save(tmp_path / "saved")
    x = noise(policy)
    ours = policy.unnormalise(sample(policy, obs, x))
    with widths():
        network = get_policy_class(family).from_pretrained(tmp_path / "saved").eval()
        back = plugins.load("embodied.policies", family)(SPEC, path=str(tmp_path / "saved"))
    before, after = make_pre_post_processors(network.config, pretrained_path=str(tmp_path / "saved"))
    theirs = after(network.predict_action_chunk(before(raw_batch(obs)), noise=x))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4 if lora_rank else 1e-5)
    torch.testing.assert_close(back.unnormalise(sample(back, obs, x)), ours, rtol=0, atol=1e-4 if lora_rank else 1e-5)


@FAMILIES
def test_a_folder_without_weights_takes_them_from_a_state(family: str, tmp_path: Path) -> None:
    policy, obs = build(family), seen()
    policy.save(tmp_path / "assets", weights=False)
    assert not (tmp_path / "assets" / "model.safetensors").exists()
    with widths():
        twin = plugins.load("embodied.policies", family)(SPEC, path=str(tmp_path / "assets"))
    twin.load_state_dict(policy.state_dict())
    x = noise(policy)
    assert torch.equal(sample(twin, obs, x), sample(policy, obs, x))
    assert torch.equal(twin.unnormalise(x), policy.unnormalise(x))


# ------------------------------------------------------------------------------------------------------ training


@FAMILIES
def test_recomputed_activations_give_the_same_gradient(family: str) -> None:
    obs, gradients, kept = seen(), [], []

    def keep(tensor: Tensor) -> Tensor:
        kept[-1] += tensor.numel()
        return tensor

    for recompute in (False, True):
        policy = build(family, trainable="all", recompute_activations=recompute)
        x, t = noise(policy), torch.tensor([0.2, 0.5, 0.7, 1.0])
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = policy.velocity(x, t, policy.encode(obs)).v.square().mean()
        loss.backward()
        named = ((name.replace(WRAPPED, ""), p) for name, p in policy.named_parameters())
        gradients.append({name: p.grad for name, p in named if p.grad is not None})
    plain, recomputed = gradients
    assert plain.keys() == recomputed.keys() and kept[1] < 0.8 * kept[0]
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=1e-4, atol=1e-7)


@FAMILIES
def test_adapters_train_and_nothing_else_does(family: str) -> None:
    policy, obs = build(family, lora_rank=2), seen()
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert any("lora_A" in name for name in trained)
    assert all("lora_" in name or "_proj." in name or "_mlp_" in name for name in trained)
    assert not any("lora_" in name for name in trained if "paligemma.model" in name or ".vlm." in name)
    policy.velocity(noise(policy), torch.full((4,), 0.5), policy.encode(obs)).v.square().mean().backward()
    assert trained == {name for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.slow
@FAMILIES
def test_a_compiled_expert_gives_the_same_velocity(family: str) -> None:
    eager, compiled, obs = build(family), build(family, compile=True), seen()
    x, t = noise(eager), torch.full((4,), 0.5)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled.velocity(x, t, compiled.encode(obs)).v, eager.velocity(x, t, eager.encode(obs)).v, rtol=0, atol=1e-5
        )
