"""pi0 (arXiv 2410.24164) through LeRobot: the state is the first token of the suffix."""

from __future__ import annotations

from typing import Any

from lerobot.policies.pi0.modeling_pi0 import PI0Policy
from torch import Tensor, nn

from ..interfaces import Context
from .lerobot import LeRobotPolicy
from .paligemma import PaliGemma


class _Pi0(PaliGemma):
    def embed(self, x: Tensor, t: Tensor, context: Context) -> tuple[Any, ...]:
        return self.model.embed_suffix(context["state"], x, t)

    def expert_modules(self) -> list[nn.Module]:
        model = self.model
        return [
            self.both.gemma_expert.model, model.state_proj, model.action_in_proj, model.action_time_mlp_in,
            model.action_time_mlp_out, model.action_out_proj,
        ]  # fmt: skip


class Pi0(LeRobotPolicy):
    """LeRobot's `PI0Policy` as a `FlowPolicy`."""

    kind, network_class, family_class = "pi0", PI0Policy, _Pi0
