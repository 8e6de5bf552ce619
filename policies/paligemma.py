"""What LeRobot's pi0 and pi0.5 share: a PaliGemma prefix, read by a Gemma expert layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from torch import Tensor, nn

from ..interfaces import Context
from .instances import Size
from .lerobot import Encoded, Inputs
from .prefix import PrefixCache, recorded

SIZES: dict[Size, tuple[int, int]] = {"toy": (8, 28), "mid": (16, 56), "full": (50, 224)}
"""Chunk and picture size of random instances; LeRobot's constructors fix every width."""


class PaliGemma:
    """The parts of a `Family` that do not depend on where state and flow time enter."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.model = network.model
        self.both = network.model.paligemma_with_expert

    @staticmethod
    def prepare(config: Any, tokenizer: Path | None) -> None:
        config.dtype, config.gradient_checkpointing = "float32", False

    @staticmethod
    def sampler_steps(config: Any) -> int:
        return int(config.num_inference_steps)

    def save_backbone(self, folder: Path) -> None:
        """Nothing: LeRobot's constructor knows the sizes."""

    @property
    def prefix_width(self) -> int:
        return self.both.paligemma.config.text_config.hidden_size

    def pictures(self, given: dict[str, Tensor]) -> list[Tensor]:
        return self.network._preprocess_images(dict(given))[0][: len(given)]  # blank ones for absent cameras come last

    def encode(self, inputs: Inputs) -> Encoded:
        seen = [torch.ones(len(image), dtype=torch.bool, device=image.device) for image in inputs.images]
        embedded, valid, blocks = self.model.embed_prefix(inputs.images, seen, inputs.tokens, inputs.token_mask)
        language = self.both.paligemma.model.language_model
        language.config._attn_implementation = "eager"  # as LeRobot does before this call
        cache = PrefixCache()
        (hidden, _), _ = self.both.forward(
            attention_mask=prepare_attention_masks_4d(make_att_2d_masks(valid, blocks)), position_ids=valid.cumsum(1) - 1,
            past_key_values=cache, inputs_embeds=[embedded, None], use_cache=True,
        )  # fmt: skip
        return Encoded(hidden, valid, recorded(cache))

    def attend(self, suffix: tuple[Any, ...], context: Context) -> Tensor:
        embedded, valid, blocks, condition = suffix  # what the model's `embed_suffix` returns
        batch, length = valid.shape
        prefix = context["valid"]
        visible = torch.cat([prefix[:, None].expand(batch, length, -1), make_att_2d_masks(valid, blocks)], 2)
        self.both.gemma_expert.model.config._attn_implementation = "eager"
        (_, hidden), _ = self.both.forward(
            attention_mask=prepare_attention_masks_4d(visible),
            position_ids=prefix.sum(1, keepdim=True) + valid.cumsum(1) - 1,
            past_key_values=PrefixCache(context["cache"]), inputs_embeds=[None, embedded], use_cache=False,
            adarms_cond=[None, condition],
        )  # fmt: skip
        return hidden

    def parameter_names(self, names: Sequence[str]) -> dict[str, str]:
        numbers = {name: torch.tensor(i) for i, name in enumerate(names)}
        renamed = self.network._fix_pytorch_state_dict_keys(numbers, self.network.config)
        return {"model." + key.removeprefix("model."): names[int(number)] for key, number in renamed.items()}

    def prefix_modules(self) -> list[nn.Module]:
        return [self.both.paligemma.model]

    def blocks(self) -> list[nn.Module]:
        vision = self.both.paligemma.model.vision_tower.vision_model.encoder.layers
        return [*vision, *self.both.paligemma.model.language_model.layers, *self.both.gemma_expert.model.layers]
