"""LeRobot's pre- and post-processing, with its statistics as buffers that travel with the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, NormalizationMode, PreTrainedConfig
from lerobot.lerobot_types import TransitionKey
from lerobot.processor import (
    NormalizerProcessorStep,
    PolicyProcessorPipeline,
    RelativeActionsProcessorStep,
    TokenizerProcessorStep,
    UnnormalizerProcessorStep,
    batch_to_transition,
    policy_action_to_transition,
    transition_to_batch,
    transition_to_policy_action,
)
from lerobot.utils.constants import ACTION, OBS_LANGUAGE_ATTENTION_MASK, OBS_LANGUAGE_TOKENS, OBS_STATE
from torch import Tensor, nn

from .folders import TOKENIZER, unreachable

BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"

STATISTICS = ("mean", "std", "min", "max", "q01", "q10", "q90", "q99")
NEEDS = {
    NormalizationMode.IDENTITY: (),
    NormalizationMode.MEAN_STD: ("mean", "std"),
    NormalizationMode.MIN_MAX: ("min", "max"),
    NormalizationMode.QUANTILES: ("q01", "q99"),
    NormalizationMode.QUANTILE10: ("q10", "q90"),
}
"""Statistics that each of LeRobot's modes normalises by."""

_KEYS = {"state": (OBS_STATE, FeatureType.STATE), "action": (ACTION, FeatureType.ACTION)}


class Processors(nn.Module):
    """The two pipelines of a checkpoint folder.

    The buffers are the one authority on statistics (NaN where the checkpoint has none): loading weights, fitting to
    new data or moving to a device changes them, and every use takes them from there.
    """

    def __init__(self, folder: Path, config: PreTrainedConfig, sizes: dict[str, int], *, tokenizer: Path | None) -> None:
        """`sizes` of state and action; `tokenizer` is a folder to take the tokenizer from instead."""
        super().__init__()
        self.before, self.after = _load(folder, config, tokenizer)
        self.modes = {name: config.normalization_mapping.get(kind.value, NormalizationMode.IDENTITY) for name, (_, kind) in _KEYS.items()}
        if config.normalization_mapping.get(FeatureType.VISUAL.value, NormalizationMode.IDENTITY) is not NormalizationMode.IDENTITY:
            raise ValueError(f"{folder} normalises pictures by statistics; only checkpoints that leave them as they are can be used.")
        if any(isinstance(step, RelativeActionsProcessorStep) and step.enabled for step in self.before.steps):
            raise ValueError(f"{folder} predicts actions relative to the state; only checkpoints with absolute actions can be used.")
        for name, (key, _) in _KEYS.items():
            found = _statistics([*self.before.steps, *self.after.steps], key)
            for statistic in STATISTICS:
                values = torch.as_tensor(np.asarray(found.get(statistic, np.full(sizes[name], np.nan)), np.float32).reshape(-1))
                if len(values) != sizes[name]:
                    raise ValueError(
                        f"{folder} has statistics of {len(values)} {name} numbers, there are {sizes[name]} here. "
                        "Take a checkpoint of this robot, or fit them on its demonstrations (phases with collect and sft)."
                    )
                self.register_buffer(f"{name}_{statistic}", values)

    def tokenise(self, state: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised state [B, S], tokens and their mask [B, n], on the CPU; columns that pad every row are dropped."""
        read = self.prepare({OBS_STATE: state.float().cpu(), "task": list(prompts)})
        mask = read[OBS_LANGUAGE_ATTENTION_MASK].bool()
        length = int(mask.sum(1).max())
        if not bool(mask[:, :length].any(0).all()) or bool(mask[:, length:].any()):
            raise ValueError("The checkpoint's tokenizer pads on the left; padding_side must be 'right'.")
        return read[OBS_STATE], read[OBS_LANGUAGE_TOKENS][:, :length], mask[:, :length]

    def prepare(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A raw batch in LeRobot's names through its preprocessing, with the statistics of now."""
        statistics = self._numbers("state")
        for step in self.before.steps:
            if isinstance(step, NormalizerProcessorStep):
                step.stats = {OBS_STATE: statistics}
                step.to("cpu", torch.float32)
        return self.before(batch)

    def finish(self, actions: Tensor) -> Tensor:
        """Normalised actions [..., A] through LeRobot's postprocessing, with the statistics of now."""
        statistics = self._numbers("action")
        for step in self.after.steps:
            if isinstance(step, UnnormalizerProcessorStep):
                step.stats = {ACTION: statistics}
                step.to(actions.device, torch.float32)
        return self.after(actions)

    @property
    def prompt_limit(self) -> int:
        """Tokens after which the checkpoint's tokenizer cuts a prompt."""
        return next(step.max_length for step in self.before.steps if isinstance(step, TokenizerProcessorStep))

    def action(self, raw: Tensor) -> Tensor:
        """Raw actions [..., A] to normalised ones."""
        return self._convert(NormalizerProcessorStep, raw)

    def raw_action(self, normalised: Tensor) -> Tensor:
        """The inverse of `action`."""
        return self._convert(UnnormalizerProcessorStep, normalised)

    def fit(self, states: np.ndarray, actions: np.ndarray) -> None:
        """Take every statistic from raw states [T, S] and actions [T, A]. Constant entries keep their unit scale."""
        for name, values in (("state", states), ("action", actions)):
            if not np.isfinite(values).all():
                raise ValueError(f"{name}s with NaN or infinity give no statistics; check the data with `embodied data verify`.")
            for statistic, numbers in _measure(np.asarray(values, np.float64)).items():
                self.get_buffer(f"{name}_{statistic}").copy_(torch.as_tensor(numbers))

    def save(self, folder: Path) -> None:
        """Write both pipelines as LeRobot does, and the tokenizer beside them."""
        known = {key: self._numbers(name, needed=False) for name, (key, _) in _KEYS.items()}
        for pipeline, file in ((self.before, BEFORE), (self.after, AFTER)):
            for step in pipeline.steps:
                if isinstance(step, (NormalizerProcessorStep, UnnormalizerProcessorStep)):
                    step.stats = known
                    step.to("cpu", torch.float32)
                elif isinstance(step, TokenizerProcessorStep):
                    step.input_tokenizer.save_pretrained(folder / TOKENIZER)
            pipeline.save_pretrained(folder, config_filename=file)

    def _convert(self, kind: type[NormalizerProcessorStep] | type[UnnormalizerProcessorStep], actions: Tensor) -> Tensor:
        numbers = {statistic: self.get_buffer(f"action_{statistic}") for statistic in NEEDS[self.modes["action"]]}
        if any(bool(values.isnan().any()) for values in numbers.values()):
            self._numbers("action")  # names what is missing
        step = kind(features={}, norm_map={FeatureType.ACTION: self.modes["action"]}, stats={ACTION: numbers}, device=actions.device)
        return step({TransitionKey.OBSERVATION: None, TransitionKey.ACTION: actions})[TransitionKey.ACTION]

    def _numbers(self, name: str, *, needed: bool = True) -> dict[str, np.ndarray]:
        """The statistics of state or action that are there, after checking that the needed ones are."""
        values = {statistic: self.get_buffer(f"{name}_{statistic}").cpu().numpy() for statistic in STATISTICS}
        there = {statistic: array for statistic, array in values.items() if np.isfinite(array).all()}
        missing = [statistic for statistic in NEEDS[self.modes[name]] if statistic not in there]
        if missing and needed:
            raise RuntimeError(
                f"The policy has no statistics ({', '.join(missing)}) of the {name} to normalise by. Fit them on demonstrations "
                "(phases with collect and sft) or take a checkpoint that has them."
            )
        return there


def _load(folder: Path, config: PreTrainedConfig, tokenizer: Path | None) -> tuple[Any, Any]:
    for file in (BEFORE, AFTER):
        if not (folder / file).is_file():
            raise ValueError(
                f"{folder} holds no {file}, hence no statistics. Checkpoints of LeRobot before 0.4 are converted with "
                "its script lerobot/processor/migrate_policy_normalization.py."
            )
        try:
            json.loads((folder / file).read_text())
        except ValueError as error:
            raise ValueError(f"{folder / file} is damaged ({error}). Copy the checkpoint again.") from error
    cpu = {"device_processor": {"device": "cpu"}}
    named = {} if tokenizer is None else {"tokenizer_processor": {"tokenizer_name": str(tokenizer)}}
    try:
        before = PolicyProcessorPipeline.from_pretrained(
            folder, BEFORE, overrides=cpu | named, to_transition=batch_to_transition, to_output=transition_to_batch
        )
    except (OSError, ValueError, ImportError) as error:
        raise unreachable(f"The tokenizer of {folder}", error) from error
    after = PolicyProcessorPipeline.from_pretrained(
        folder, AFTER, overrides=cpu, to_transition=policy_action_to_transition, to_output=transition_to_policy_action
    )
    return before, after


def _statistics(steps: Sequence[Any], key: str) -> dict[str, Any]:
    normalisers = (NormalizerProcessorStep, UnnormalizerProcessorStep)
    return next((step.stats[key] for step in steps if isinstance(step, normalisers) and key in (step.stats or {})), {})


def _measure(values: np.ndarray) -> dict[str, np.ndarray]:
    """Every statistic of values [T, n]. An entry that never moves gets std 1 and bounds at -1 and +1 around it."""
    low, high = values.min(0), values.max(0)
    constant = high - low <= 1e-6 * np.maximum(np.abs(values).max(0), 1.0)
    found = {"mean": values.mean(0), "std": np.where(constant, 1.0, values.std(0))}
    found |= {"min": np.where(constant, low - 1, low), "max": np.where(constant, high + 1, high)}
    for lower, upper, share in (("q01", "q99", 0.01), ("q10", "q90", 0.1)):
        edges = np.quantile(values, (share, 1 - share), axis=0)
        narrow = edges[1] - edges[0] <= 1e-6 * np.maximum(np.abs(values).max(0), 1.0)  # an entry that seldom moves
        found |= {lower: np.where(narrow, found["min"], edges[0]), upper: np.where(narrow, found["max"], edges[1])}
    return found
