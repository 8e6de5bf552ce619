"""SmolVLA (arXiv 2506.01844) through LeRobot: the state is the last token of the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from torch import Tensor, nn

from ..interfaces import Context
from .lerobot import Encoded, Inputs, LeRobotPolicy
from .prefix import PrefixCache, recorded


class _SmolVLA:
    def __init__(self, network: Any) -> None:
        self.network = network
        self.model = network.model
        self.both = network.model.vlm_with_expert

    @staticmethod
    def prepare(config: Any, tokenizer: Path | None) -> None:
        if config.adapt_to_pi_aloha:
            raise ValueError("This checkpoint converts joints of one robot inside (adapt_to_pi_aloha); it cannot be used here.")
        config.load_vlm_weights, config.prefix_length = False, -1  # the checkpoint has all weights; prefixes are not padded
        if tokenizer is not None:
            config.vlm_model_name = str(tokenizer)

    def save_backbone(self, folder: Path) -> None:
        self.both.config.save_pretrained(folder)
        self.both.processor.save_pretrained(folder)

    @property
    def prefix_width(self) -> int:
        return self.both.config.text_config.hidden_size

    def pictures(self, given: dict[str, Tensor]) -> list[Tensor]:
        return self.network.prepare_images(dict(given))[0][: len(given)]  # blank ones for absent cameras come last

    def encode(self, inputs: Inputs) -> Encoded:
        seen = [torch.ones(len(image), dtype=torch.bool, device=image.device) for image in inputs.images]
        embedded, valid, blocks = self.model.embed_prefix(
            inputs.images, seen, inputs.tokens, inputs.token_mask, state=inputs.state
        )
        (hidden, _), filled = self.both.forward(
            attention_mask=make_att_2d_masks(valid, blocks), position_ids=valid.cumsum(1) - 1, past_key_values=None,
            inputs_embeds=[embedded, None], use_cache=True,
        )  # fmt: skip
        return Encoded(hidden, valid, recorded(filled))

    def embed(self, x: Tensor, t: Tensor, context: Context) -> tuple[Any, ...]:
        return self.model.embed_suffix(x, t)

    def attend(self, suffix: tuple[Any, ...], context: Context) -> Tensor:
        embedded, valid, blocks = suffix
        batch, length = valid.shape
        prefix = context["valid"]
        visible = torch.cat([prefix[:, None].expand(batch, length, -1), make_att_2d_masks(valid, blocks)], 2)
        (_, hidden), _ = self.both.forward(
            attention_mask=visible, position_ids=prefix.sum(1, keepdim=True) + valid.cumsum(1) - 1,
            past_key_values=PrefixCache(context["cache"]), inputs_embeds=[None, embedded], use_cache=True,
        )  # fmt: skip
        return hidden

    def parameter_names(self, names: Sequence[str]) -> dict[str, str]:
        return {name: name for name in names}

    def expert_modules(self) -> list[nn.Module]:
        model = self.model
        return [
            self.both.lm_expert, model.action_in_proj, model.action_time_mlp_in, model.action_time_mlp_out,
            model.action_out_proj,
        ]  # fmt: skip

    def prefix_modules(self) -> list[nn.Module]:
        return [self.both.vlm.model, self.model.state_proj]

    def blocks(self) -> list[nn.Module]:
        # this model reaches into its layers; only their MLPs are entered whole
        text = self.both.get_vlm_model().text_model.layers
        vision = self.both.get_vlm_model().vision_model.encoder.layers
        return [*vision, *(layer.mlp for layer in text), *(layer.mlp for layer in self.both.lm_expert.layers)]


class SmolVLA(LeRobotPolicy):
    """LeRobot's `SmolVLAPolicy` as a `FlowPolicy`. Its prefix ends with the state, so a frozen prefix has a frozen
    projection of the state, too."""

    kind, network_class, family_class = "smolvla", SmolVLAPolicy, _SmolVLA
