"""Checkpoint folders with random weights: LeRobot's networks in small or full size without a hub, to measure and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.processor import (
    PolicyProcessorPipeline,
    ProcessorStep,
    TokenizerProcessorStep,
    make_default_policy_processor_steps,
    make_policy_processor_pipelines,
)
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..types import Spec
from .folders import APART, TOKENIZER
from .processors import AFTER, BEFORE

Size = Literal["toy", "mid", "full"]

Order = Callable[[Any, TokenizerProcessorStep], list[ProcessorStep]]
"""A family's preprocessing, in its own order, of LeRobot's default steps and a tokenizer."""

SPECIAL = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
"""Tokens that SmolVLM's processor asks of its tokenizer."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: any text, no vocabulary to fetch."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        extra_special_tokens=SPECIAL,
    )  # fmt: skip


def unit_statistics(size: int) -> dict[str, np.ndarray]:
    """Statistics under which every mode of normalisation changes nothing."""
    values = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q10": -1.0, "q90": 1.0, "q99": 1.0}
    return {name: np.full(size, value, np.float32) for name, value in values.items()}


def write(folder: Path, config: PreTrainedConfig, spec: Spec, order: Order, *, padding: str, statistics: bool = True) -> None:
    """Write configuration and processors of a policy for `spec`, marked as having its weights elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    config.input_features = {
        f"{OBS_IMAGES}.{name}": PolicyFeature(FeatureType.VISUAL, (3, height, width)) for name, height, width in spec.cameras
    } | {OBS_STATE: PolicyFeature(FeatureType.STATE, (spec.state_dim,))}
    config.output_features = {ACTION: PolicyFeature(FeatureType.ACTION, (spec.action_dim,))}
    config.save_pretrained(folder)
    known = {OBS_STATE: unit_statistics(spec.state_dim), ACTION: unit_statistics(spec.action_dim)}
    steps = make_default_policy_processor_steps(config, known if statistics else None)
    tokenizer = TokenizerProcessorStep(
        tokenizer_name=str(folder / TOKENIZER), max_length=config.tokenizer_max_length, padding_side="right", padding=padding
    )
    pipelines: Sequence[PolicyProcessorPipeline] = make_policy_processor_pipelines(
        input_steps=order(steps, tokenizer), output_steps=[steps.unnormalize, steps.to_cpu]
    )
    for pipeline, file in zip(pipelines, (BEFORE, AFTER), strict=True):
        pipeline.save_pretrained(folder, config_filename=file)
    (folder / APART).touch()
