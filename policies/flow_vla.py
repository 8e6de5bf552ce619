"""FlowVLA: a small vision-language-action flow policy that trains from scratch on two CPU cores.

The prefix looks at every camera, the instruction and proprioception once a decision and leaves a few tokens. The action
expert integrates the flow on the whole chunk and cross-attends to those tokens at every denoising step.

A large model brings its eyes from pre-training on the web; this one gets its stand-in from `perception_loss`: finding,
in random scenes without actions, what the instruction names.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..interfaces import Precision, Velocity
from ..types import Observation, Scenes, Spec
from .flow_mlp import embed_time
from .language import Instructions
from .normalise import Normaliser
from .vision import FAST_BFLOAT16, Eyes, attention_loss

Trainable = Literal["expert", "partial", "all"]


class FlowVLA(nn.Module):
    """Images, instruction and proprioception to action chunks.

    `trainable` names what supervised training and reinforcement may change: the expert alone, with the prefix's encoding
    cached; also the slots that read the pictures ("partial"); or everything.
    """

    def __init__(
        self, spec: Spec, horizon: int = 4, *, trainable: Trainable = "expert", width: int = 256, blocks: int = 2,
        features: int = 64, token: int = 64, heads: int = 4, referents: int = 2, targets: int = 6, code: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        if not spec.cameras:
            raise ValueError("FlowVLA needs at least one camera; give the simulator cameras, or use a state policy.")
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 action per chunk, got {horizon}.")
        self.spec, self.horizon, self.action_dim = spec, horizon, spec.action_dim
        self.referents, self.targets = referents, targets
        self.normaliser = Normaliser(spec)
        self.instructions = Instructions(token)
        self.eyes = Eyes(spec.cameras, token=token, heads=heads, slots=referents)
        # where the learner encodes again, it must get the rollout's numbers, in batches of another size
        self.eyes.brief = FAST_BFLOAT16 and trainable == "expert"
        self.slots = _Slots(self.eyes.glance_dim + spec.state_dim + token, token, referents, targets, code)
        self.proprioception = nn.Linear(spec.state_dim, token)
        self.prefix_dim, self.feature_dim = (referents + 1) * token, features
        self.expert = _Expert(spec, horizon, token=token, tokens=referents + 1, width=width, blocks=blocks, features=features)
        self.frozen_prefix = trainable == "expert"
        self.precision: Precision = "float32"
        frozen = {"expert": self.prefix_modules(), "partial": (self.eyes, self.instructions), "all": ()}[trainable]
        for module in frozen:
            module.requires_grad_(False)

    def prefix_modules(self) -> tuple[nn.Module, ...]:
        """What encodes observations, and what perception pre-training trains."""
        return self.eyes, self.instructions, self.slots, self.proprioception

    def encode(self, obs: Observation) -> dict[str, Tensor]:
        """Prefix tokens [B, referents + 1, token] and normalised state [B, S]."""
        if self.frozen_prefix:
            with torch.no_grad():
                return self._look(obs)[0]
        return self._look(obs)[0]

    def prefix_features(self, context: dict[str, Tensor]) -> Tensor:
        return context["tokens"].flatten(1)

    def velocity(self, x: Tensor, t: Tensor, context: dict[str, Tensor]) -> Velocity:
        return self.expert(x, t, context["tokens"], context["state"])

    def normalise(self, actions: Tensor) -> Tensor:
        return self.normaliser.action(actions)

    def unnormalise(self, actions: Tensor) -> Tensor:
        return self.normaliser.raw_action(actions)

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None:
        self.normaliser.fit(states)

    def perception_loss(self, scenes: Scenes) -> tuple[Tensor, dict[str, float]]:
        """Say where the things that the instruction names are, and attend to their pixels.

        Smooth L1 on `scenes.targets`, in units of `target_scale`, plus the cross-entropy of each referent's first
        attention head with its segmentation.
        """
        if scenes.targets.shape[1:] != (self.referents, self.targets):
            raise ValueError(
                f"The scenes label {scenes.targets.shape[1]} referents with {scenes.targets.shape[2]} numbers each; the policy "
                f"was built with referents={self.referents} and targets={self.targets}."
            )
        _, guess, attention = self._look(scenes.obs)
        error = nn.functional.smooth_l1_loss(guess, scenes.targets * self.target_scale, beta=0.1, reduction="none")
        located = (error * scenes.weight).sum() / scenes.weight.sum().clamp(min=1)
        attended = attention_loss(attention[:, :, 0], self.eyes.coverage(scenes.masks))
        distance = (guess[..., :3] / self.target_scale - scenes.targets[..., :3]).norm(dim=-1)[scenes.weight[..., 0] > 0]
        loss = located + 0.05 * attended
        return loss, {
            "perception/located": float(located.detach()),
            "perception/attended": float(attended.detach()),
            "perception/median_error_mm": float(1000 * distance.detach().median()),
        }

    target_scale = 10.0
    """Places are learnt in decimetres, so that a few millimetres weigh as much as the rest."""

    def _look(self, obs: Observation) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Context, guesses [B, P, G] and attention [B, P, heads, M] of the P referents."""
        state = self.normaliser.state(obs.state)
        said = self.instructions(obs.prompt)  # [B, token]
        glances, attention = self.eyes(obs.images, said)  # [B, slots, glance_dim]
        slots, guess = self.slots(glances, torch.cat([state, said], -1))
        tokens = torch.cat([slots, self.proprioception(state)[:, None]], 1)
        return {"tokens": tokens, "state": state}, guess, attention


class _Slots(nn.Module):
    """What each slot makes of its glance: a guess, and a token that carries the guess and a short code.

    The narrow code keeps a few demonstrations from being told apart by accidents of their pictures and wording: with
    the whole hidden layer in the token, success after 60 of them fell from 35 % to 9 %.
    """

    def __init__(self, inputs: int, token: int, slots: int, targets: int, code: int) -> None:
        super().__init__()
        self.identity = nn.Parameter(torch.randn(slots, 32))
        self.net = nn.Sequential(nn.Linear(inputs + 32, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU())
        self.guess, self.code = nn.Linear(192, targets), nn.Linear(192, code)
        self.token = nn.Linear(targets + code, token)

    def forward(self, glances: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        batch, slots = glances.shape[:2]
        shared = shared[:, None].expand(-1, slots, -1)
        h = self.net(torch.cat([glances, shared, self.identity.expand(batch, -1, -1)], -1))
        guess = self.guess(h)
        return self.token(torch.cat([guess, self.code(h)], -1)), guess


class _Expert(nn.Module):
    """Velocity of a whole chunk: a residual network that cross-attends to the prefix in every block."""

    def __init__(
        self, spec: Spec, horizon: int, *, token: int, tokens: int, width: int, blocks: int, features: int
    ) -> None:
        super().__init__()
        self.shape = (horizon, features)
        self.places = nn.Parameter(0.1 * torch.randn(tokens, token))
        self.embed = nn.Linear(horizon * spec.action_dim + spec.state_dim + 8, width)
        self.blocks = nn.ModuleList(_Block(width, token) for _ in range(blocks))
        self.expand = nn.Linear(width, horizon * features)
        self.readout = nn.Linear(features, spec.action_dim)

    def forward(self, x: Tensor, t: Tensor, tokens: Tensor, state: Tensor) -> Velocity:
        h = self.embed(torch.cat([x.flatten(1), embed_time(t), state], -1))
        tokens = tokens + self.places
        for block in self.blocks:
            h = block(h, tokens)
        features = nn.functional.silu(self.expand(h)).unflatten(-1, self.shape)  # [B, H, F]
        return Velocity(v=self.readout(features), features=features)


class _Block(nn.Module):
    """Cross-attention of the one chunk vector to the prefix tokens, then a feed-forward layer."""

    def __init__(self, width: int, token: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(token, 2 * width)
        self.out = nn.Linear(width, width)
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor, tokens: Tensor) -> Tensor:
        query = self.query(self.norm(h)).unflatten(-1, (self.heads, -1))  # [B, heads, d]
        key, value = self.key_value(tokens).unflatten(-1, (2, self.heads, -1)).unbind(2)  # [B, M, heads, d]
        weight = torch.einsum("bhd,bmhd->bhm", query, key).mul(query.shape[-1] ** -0.5).softmax(-1)
        h = h + self.out(torch.einsum("bhm,bmhd->bhd", weight, value).flatten(1))
        return h + self.net(h)
