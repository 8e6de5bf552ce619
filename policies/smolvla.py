"""SmolVLA (arXiv 2506.01844) through LeRobot: the state is the last token of the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from lerobot.processor import NewLineTaskProcessorStep, ProcessorStep, TokenizerProcessorStep
from torch import Tensor, nn
from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

from ..interfaces import Context
from ..types import Spec
from .folders import TOKENIZER
from .instances import Size, byte_tokenizer, write
from .lerobot import Encoded, Inputs, LeRobotPolicy
from .prefix import PrefixCache, recorded


def _text(hidden: int, inner: int, layers: int, heads: int, key_heads: int, head: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "head_dim": head, "vocab_size": vocabulary,
    }  # fmt: skip


def _vision(hidden: int, inner: int, layers: int, heads: int, side: int, patch: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "image_size": side, "patch_size": patch,
    }  # fmt: skip


_SIZES: dict[Size, tuple[int, int, dict[str, int], dict[str, int]]] = {
    "toy": (8, 4, _text(64, 128, 4, 4, 2, 16, 300), _vision(48, 96, 2, 4, 32, 8)),
    "mid": (16, 8, _text(320, 960, 8, 5, 5, 64, 300), _vision(256, 1024, 4, 4, 128, 16)),
    "full": (50, 16, _text(960, 2560, 32, 15, 5, 64, 49280), _vision(768, 3072, 12, 12, 512, 16)),
}
"""Chunk, layers in use and the two backbones of random instances; 'full' is SmolVLM2-500M's."""


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

    @staticmethod
    def write_random(folder: Path, spec: Spec, size: Size, statistics: bool) -> None:
        def order(steps: Any, tokenizer: TokenizerProcessorStep) -> list[ProcessorStep]:
            first = [steps.rename_observations, steps.add_batch_dim, NewLineTaskProcessorStep(), tokenizer]
            return [*first, steps.to_device, steps.normalize]

        chunk, layers, text, vision = _SIZES[size]
        backbone = folder / TOKENIZER
        sizes = {"text_config": {"model_type": "llama"} | text, "vision_config": vision, "scale_factor": 4 if size == "full" else 2}
        SmolVLMConfig.from_dict(sizes).save_pretrained(backbone)
        SmolVLMProcessor(SmolVLMImageProcessor(), byte_tokenizer(), SmolVLMVideoProcessor()).save_pretrained(backbone)
        config = SmolVLAConfig(
            device="cpu", chunk_size=chunk, n_action_steps=chunk, num_vlm_layers=layers, vlm_model_name=str(backbone),
            resize_imgs_with_padding=(vision["image_size"], vision["image_size"]),
        )  # fmt: skip
        write(folder, config, spec, order, padding="longest", statistics=statistics)

    @staticmethod
    def sampler_steps(config: Any) -> int:
        return int(config.num_steps)

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
