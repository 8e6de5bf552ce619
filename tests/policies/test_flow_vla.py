"""FlowVLA: what it reads, what it refuses, what trains, and that it learns to see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.perception import Perception
from embodied.policies.flow_vla import FlowVLA
from embodied.policies.vision import attention_loss
from embodied.types import Observation, Scenes, Spec

SPEC = Spec(
    robot="toy", tasks=("find",), state_names=("a", "b"), action_names=("x", "y"), action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0), control_hz=10.0, cameras=(("front", 16, 16), ("wrist", 8, 16)), prompts=True,
)  # fmt: skip
rng = np.random.default_rng(0)


def seen(prompts: list[str], spec: Spec = SPEC) -> Observation:
    n = len(prompts)
    return Observation(
        images={name: rng.integers(0, 256, (n, h, w, 3), dtype=np.uint8) for name, h, w in spec.cameras},
        state=rng.normal(size=(n, 2)).astype(np.float32), prompt=np.array(prompts), time=np.zeros(n),
    )  # fmt: skip


def policy(**settings: object) -> FlowVLA:
    torch.manual_seed(0)
    made = FlowVLA(SPEC, 3, **settings)  # type: ignore[arg-type]
    made.fit_statistics(rng.normal(size=(50, 2)).astype(np.float32), np.zeros((50, 2), np.float32))
    return made


def test_any_instruction_is_read_empty_long_or_in_another_script() -> None:
    chunk = FlowAgent(policy()).act(seen(["", "word " * 300, "拿起红色的方块", "pick it up"]), explore=True)
    assert np.isfinite(chunk.actions).all() and chunk.actions.shape == (4, 3, 2)


def test_an_instruction_is_encoded_alike_alone_and_beside_longer_ones() -> None:
    made = policy()
    alone = made.instructions(np.array(["red cube"]))
    beside = made.instructions(np.array(["red cube", "x" * 500]))[:1]
    torch.testing.assert_close(alone, beside, atol=1e-5, rtol=1e-5)


def test_an_instruction_beyond_the_limit_is_refused_with_its_length() -> None:
    with pytest.raises(ValueError, match="5000 bytes"):
        policy().encode(tree.to(seen(["y" * 5000]), "cpu"))


def test_a_missing_camera_and_one_of_another_size_are_named() -> None:
    obs = tree.to(seen(["a"]), "cpu")
    with pytest.raises(ValueError, match="'wrist' is missing"):
        policy().encode(replace(obs, images={"front": obs.images["front"]}))
    with pytest.raises(ValueError, match="'front' gives"):
        policy().encode(replace(obs, images={**obs.images, "front": obs.images["wrist"]}))


def test_looking_in_bfloat16_sees_what_float32_sees() -> None:
    made, obs = policy(), tree.to(seen(["red cube"] * 8), "cpu")
    looks = []
    for made.eyes.brief in (False, True):
        glances, attention = made.eyes(obs.images, made.instructions(obs.prompt))
        torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))
        looks.append((glances, attention))
    for exact, brief in zip(*looks, strict=True):
        assert exact.dtype == brief.dtype == torch.float32
        torch.testing.assert_close(brief, exact, rtol=2e-2, atol=2e-2 * float(exact.abs().max()))


def test_where_the_learner_looks_again_it_looks_in_float32() -> None:
    for trainable in ("partial", "all"):
        assert not policy(trainable=trainable).eyes.brief


def test_a_spec_without_cameras_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one camera"):
        FlowVLA(replace(SPEC, cameras=()), 3)


@pytest.mark.parametrize(("trainable", "frozen"), [("expert", True), ("partial", False), ("all", False)])
def test_trainable_names_what_may_change(trainable: str, frozen: bool) -> None:
    made = policy(trainable=trainable)
    context = made.encode(tree.to(seen(["a", "b"]), "cpu"))
    made.velocity(torch.randn(2, 3, 2), torch.rand(2), context).v.sum().backward()
    moved = {name.split(".")[0] for name, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    expected = {"expert": {"expert"}, "partial": {"expert", "slots", "proprioception"}}
    assert moved == expected.get(trainable, {"expert", "slots", "proprioception", "eyes", "instructions"})
    assert made.frozen_prefix is frozen


def test_attention_loss_is_the_cross_entropy_with_where_a_referent_is_seen() -> None:
    attention = torch.tensor([[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]])
    coverage = torch.tensor([[[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])  # the second referent is hidden
    torch.testing.assert_close(attention_loss(attention, coverage), -torch.tensor(0.25).log())


def scenes(count: int) -> Scenes:
    """A bright square somewhere in the front camera; its place is the target."""
    obs = seen(["find it"] * count)
    images = {name: np.zeros_like(image) for name, image in obs.images.items()}
    masks = {name: np.zeros((count, 2, *image.shape[1:3]), bool) for name, image in images.items()}
    corner = rng.integers(0, 12, (count, 2))
    for i, (y, x) in enumerate(corner):
        images["front"][i, y : y + 4, x : x + 4] = 255
        masks["front"][i, 0, y : y + 4, x : x + 4] = True
    targets, weight = np.zeros((count, 2, 6), np.float32), np.zeros((count, 2, 6), np.float32)
    targets[:, 0, :2], weight[:, 0, :2] = (corner - 6) / 100, 1
    return Scenes(obs=replace(obs, images=images), targets=targets, weight=weight, masks=masks)


class Forever:
    def __next__(self) -> Scenes:
        return scenes(64)


def test_perception_learns_a_place_and_leaves_the_frozen_prefix_frozen() -> None:
    agent = FlowAgent(policy())
    expert = {n: p.clone() for n, p in agent.policy.named_parameters() if n.startswith("expert")}  # type: ignore[attr-defined]
    algorithm = Perception(agent, total_steps=150)
    logs = [algorithm.update(Forever()) for _ in range(150)]  # type: ignore[arg-type]
    assert logs[-1]["perception/median_error_mm"] < 0.35 * logs[0]["perception/median_error_mm"]
    kept = dict(agent.policy.named_parameters())  # type: ignore[attr-defined]
    assert all(torch.equal(kept[name], before) for name, before in expert.items())
    assert not any(p.requires_grad for m in agent.policy.prefix_modules() for p in m.parameters())  # type: ignore[attr-defined]


def test_scenes_with_other_labels_than_the_policy_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="targets=5"):
        policy(targets=5).perception_loss(tree.to(scenes(2), "cpu"))
