"""pi0.5 (arXiv 2504.16054) through LeRobot: the state is text in the prompt, flow time modulates the expert's norms."""

from __future__ import annotations

from typing import Any

from lerobot.policies.pi05.modeling_pi05 import PI05Policy
from torch import Tensor, nn

from ..interfaces import Context
from .lerobot import LeRobotPolicy
from .paligemma import PaliGemma


class _Pi05(PaliGemma):
    def embed(self, x: Tensor, t: Tensor, context: Context) -> tuple[Any, ...]:
        return self.model.embed_suffix(x, t)

    def expert_modules(self) -> list[nn.Module]:
        model = self.model
        return [
            self.both.gemma_expert.model, model.action_in_proj, model.time_mlp_in, model.time_mlp_out, model.action_out_proj,
        ]  # fmt: skip


class Pi05(LeRobotPolicy):
    """LeRobot's `PI05Policy` as a `FlowPolicy`."""

    kind, network_class, family_class = "pi05", PI05Policy, _Pi05
