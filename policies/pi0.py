"""pi0 (arXiv 2410.24164) through LeRobot: the state is the first token of the suffix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi0.modeling_pi0 import PI0Policy
from lerobot.policies.pi0.processor_pi0 import Pi0NewLineProcessor
from lerobot.processor import ProcessorStep, RelativeActionsProcessorStep, TokenizerProcessorStep
from torch import Tensor, nn

from ..interfaces import Context
from ..types import Spec
from .folders import TOKENIZER
from .instances import Size, byte_tokenizer, write
from .lerobot import LeRobotPolicy
from .paligemma import SIZES, PaliGemma


class _Pi0(PaliGemma):
    @staticmethod
    def write_random(folder: Path, spec: Spec, size: Size, statistics: bool) -> None:
        def order(steps: Any, tokenizer: TokenizerProcessorStep) -> list[ProcessorStep]:
            first = [steps.rename_observations, steps.add_batch_dim, Pi0NewLineProcessor(), tokenizer]
            return [*first, steps.to_device, RelativeActionsProcessorStep(enabled=False), steps.normalize]

        chunk, side = SIZES[size]
        config = PI0Config(device="cpu", chunk_size=chunk, n_action_steps=chunk, image_resolution=(side, side))
        byte_tokenizer().save_pretrained(folder / TOKENIZER)
        write(folder, config, spec, order, padding="max_length", statistics=statistics)

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
