"""Give LeRobot's pi0 and pi0.5 other widths than the two that their constructors know, for tests only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import lerobot.policies.pi0.modeling_pi0 as pi0
import lerobot.policies.pi05.modeling_pi05 as pi05
import transformers
import transformers.models.paligemma.modeling_paligemma as paligemma

VOCABULARY = 300
"""Enough for a tokenizer of bytes; LeRobot sets 257152, whose embeddings take a second to fill."""


class Text(transformers.GemmaConfig):
    """A configuration whose vocabulary stays small whatever it is set to."""

    vocab_size = property(lambda self: VOCABULARY, lambda self, size: None)


class TextModel(transformers.GemmaModel):
    config_class = Text


transformers.AutoModel.register(Text, TextModel)


@dataclass(frozen=True)
class Widths:
    """Sizes of a small instance. Eight heads: LeRobot's joint layers count on them."""

    language: int = 64
    expert: int = 32
    depth: int = 2
    inner: int = 128
    expert_inner: int = 64
    head: int = 16
    vision: int = 48
    vision_depth: int = 2
    vision_heads: int = 4


@contextmanager
def widths(sizes: Widths | None = None) -> Iterator[None]:
    """Substitute what names the sizes: the two Gemmas, the vision configuration, and the projector between them."""
    chosen = Widths() if sizes is None else sizes

    def gemma(variant: str) -> pi0.GemmaConfig:
        language = variant == "gemma_2b"
        return pi0.GemmaConfig(
            width=chosen.language if language else chosen.expert, depth=chosen.depth,
            mlp_dim=chosen.inner if language else chosen.expert_inner, num_heads=8, num_kv_heads=1, head_dim=chosen.head,
        )  # fmt: skip

    class Mapping:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getitem__(self, name: str) -> Any:
            return {"paligemma": self.paligemma, "gemma": self.gemma}[name]

        def gemma(self, **settings: Any) -> Any:
            return self.real["gemma"](**settings | {"vocab_size": VOCABULARY})

        def paligemma(self) -> Any:
            config = self.real["paligemma"]()
            config.text_config.__class__ = Text
            config.vision_config.hidden_size = chosen.vision
            config.vision_config.num_hidden_layers = chosen.vision_depth
            config.vision_config.num_attention_heads = chosen.vision_heads
            return config

    class Projector(paligemma.PaliGemmaMultiModalProjector):
        def __init__(self, config: Any) -> None:
            config.vision_config.projection_dim = config.text_config.hidden_size
            super().__init__(config)

    with (
        patch.object(pi0, "get_gemma_config", gemma), patch.object(pi05, "get_gemma_config", gemma),
        patch.object(pi0, "CONFIG_MAPPING", Mapping(pi0.CONFIG_MAPPING)), patch.object(pi05, "CONFIG_MAPPING", Mapping(pi05.CONFIG_MAPPING)),
        patch.object(paligemma, "PaliGemmaMultiModalProjector", Projector),
    ):  # fmt: skip
        yield
