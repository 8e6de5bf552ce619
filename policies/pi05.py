"""pi0.5 (arXiv 2504.16054) through LeRobot: the state is text in the prompt, flow time modulates the expert's norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lerobot.policies.pi05.configuration_pi05 import PI05Config
from lerobot.policies.pi05.modeling_pi05 import PI05Policy
from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep
from lerobot.processor import ProcessorStep, RelativeActionsProcessorStep, TokenizerProcessorStep
from torch import Tensor, nn

from ..interfaces import Context
from ..types import Spec
from .folders import TOKENIZER
from .instances import Size, byte_tokenizer, write
from .lerobot import LeRobotPolicy
from .paligemma import SIZES, PaliGemma


class _Pi05(PaliGemma):
    @staticmethod
    def write_random(folder: Path, spec: Spec, size: Size, statistics: bool) -> None:
        def order(steps: Any, tokenizer: TokenizerProcessorStep) -> list[ProcessorStep]:
            first = [steps.rename_observations, steps.add_batch_dim, RelativeActionsProcessorStep(enabled=False)]
            return [*first, steps.normalize, Pi05PrepareStateTokenizerProcessorStep(), tokenizer, steps.to_device]

        chunk, side = SIZES[size]
        config = PI05Config(device="cpu", chunk_size=chunk, n_action_steps=chunk, image_resolution=(side, side))
        byte_tokenizer().save_pretrained(folder / TOKENIZER)
        write(folder, config, spec, order, padding="max_length", statistics=statistics)

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
