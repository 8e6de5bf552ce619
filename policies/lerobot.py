"""LeRobot's flow-matching VLAs as `FlowPolicy`: all that does not depend on the family.

A family (`pi0`, `pi05`, `smolvla`) is LeRobot's own network, unchanged: its methods embed, attend and project. What is
done here is order and bookkeeping. The prefix (pictures, instruction, for some families the state) is encoded once and
kept as keys and values; the action expert then reads it at every denoising step, in every epoch. Absent cameras and
padding of prompts are dropped before they cost anything: their positions count only valid tokens, so nothing changes.

Flow time, path and velocity are openpi's in LeRobot and here. Weights, velocities and likelihoods are float32; with
precision 'bfloat16' the transformer computes in it and a frozen prefix is kept in it.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from lerobot.policies.common.vla_utils import pad_vector
from lerobot.utils.constants import OBS_STATE
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)

from .. import tree
from ..interfaces import Context, Precision, Velocity
from ..types import Observation, Spec
from . import folders, instances, lora
from .processors import Processors


@dataclass(frozen=True)
class Inputs:
    """What a network's prefix is made of."""

    images: list[Tensor]
    """[B, 3, h, w] in [-1, 1], one per present camera."""
    tokens: Tensor
    """int64 [B, n]."""
    token_mask: Tensor
    """bool [B, n]."""
    state: Tensor
    """Normalised and padded, [B, max_state_dim]."""


@dataclass(frozen=True)
class Encoded:
    """An encoded prefix of P tokens."""

    hidden: Tensor
    """[B, P, D]."""
    valid: Tensor
    """bool [B, P]."""
    cache: Tensor
    """Keys and values, [B, layers, 2, heads, P, d]."""


class Family(Protocol):
    """How a network of LeRobot's is driven."""

    def __init__(self, network: Any) -> None: ...

    @staticmethod
    def prepare(config: Any, tokenizer: Path | None) -> None:
        """Adjust a configuration before the network is built from it; `tokenizer` is a local folder to use."""
        ...

    @staticmethod
    def write_random(folder: Path, spec: Spec, size: instances.Size, statistics: bool) -> None: ...

    @staticmethod
    def sampler_steps(config: Any) -> int:
        """K of LeRobot's own sampler."""
        ...

    def save_backbone(self, folder: Path) -> None:
        """Write beside the tokenizer what else the constructor would fetch from a hub."""
        ...

    @property
    def prefix_width(self) -> int: ...

    def pictures(self, given: dict[str, Tensor]) -> list[Tensor]:
        """LeRobot's resizing and scaling of pictures [B, 3, h, w] in [0, 1] by image feature, in the network's order."""
        ...

    def encode(self, inputs: Inputs) -> Encoded: ...

    def embed(self, x: Tensor, t: Tensor, context: Context) -> tuple[Any, ...]:
        """What the network's `embed_suffix` returns at noisy actions x [B, H, A] and flow time t [B]."""
        ...

    def attend(self, suffix: tuple[Any, ...], context: Context) -> Tensor:
        """Run the expert on an embedded suffix that reads the context's prefix; the last H tokens are the actions."""
        ...

    def parameter_names(self, names: Sequence[str]) -> dict[str, str]:
        """Parameter name to the name of its tensor among the `names` of a checkpoint's file."""
        ...

    def expert_modules(self) -> list[nn.Module]: ...

    def prefix_modules(self) -> list[nn.Module]: ...

    def blocks(self) -> list[nn.Module]:
        """Modules that are only entered through their own forward."""
        ...


class LeRobotPolicy(nn.Module):
    """A `FlowPolicy` around one of LeRobot's policies. Subclasses name the network and its family."""

    kind: ClassVar[str]
    """LeRobot's name of the policy type, as its config.json says it."""
    network_class: ClassVar[type]
    family_class: ClassVar[type[Family]]

    def __init__(
        self, spec: Spec, horizon: int | None = None, *, path: str, tokenizer: str | None = None,
        cameras: dict[str, str] | None = None, trainable: Literal["expert", "all"] = "expert", lora_rank: int = 0,
        precision: Precision = "float32", prompt_tokens: int | None = None, proprioception: bool = True,
        compile: bool = False, recompute_activations: bool = False,
    ) -> None:  # fmt: skip
        """`path` is a checkpoint folder of LeRobot's (or a name on its hub), `tokenizer` a local folder to take the
        tokenizer from, for SmolVLA with the backbone's configuration beside it.

        cameras: our camera to the checkpoint's image feature, such as {front: base_0_rgb}; features left out are treated
            as absent. Equal names, or the only camera for the only feature, when None.
        trainable: 'expert' freezes the prefix, so that it is encoded once; 'all' trains pictures and language, too.
        lora_rank: above 0, what is trainable is trained through adapters of this rank (the expert's own projections whole).
        prompt_tokens: room for the instruction in every context; the checkpoint's limit when None.
        proprioception: whether `prefix_features` end with the normalised state, which a prefix may not hold.
        compile: compile the expert for acting, on a GPU into CUDA graphs.
        recompute_activations: trade time for memory when training, block by block.
        """
        super().__init__()
        if lora_rank < 0:
            raise ValueError(f"lora_rank must be 0 (no adapters) or positive, got {lora_rank}.")
        folder = folders.find(path)
        self.config = folders.read_config(folder, self.kind)
        if horizon is not None:
            if horizon < 1:
                raise ValueError(f"horizon must be at least 1 action per chunk, got {horizon}.")
            self.config.chunk_size = horizon
            self.config.n_action_steps = min(self.config.n_action_steps, horizon)
        folders.fit_features(self.config, spec, folder)
        self.features = folders.map_cameras(self.config, spec, cameras)
        backbone = folders.tokenizer(folder, tokenizer)
        self.family_class.prepare(self.config, backbone)
        folders.require_memory(folder, self._build("meta"))
        self.network = self._build("cpu")
        self.family = self.family_class(self.network)
        folders.load_weights(self.network, folder, self.family.parameter_names)
        sizes = {"state": spec.state_dim, "action": spec.action_dim}
        self.processors = Processors(folder, self.config, sizes, tokenizer=backbone)

        self.spec, self.horizon, self.action_dim = spec, int(self.config.chunk_size), int(self.config.max_action_dim)
        self.prompt_tokens = self.processors.prompt_limit if prompt_tokens is None else prompt_tokens
        self.proprioception, self.precision = proprioception, precision
        self.prefix_dim = self.family.prefix_width + (spec.state_dim if proprioception else 0)
        self.feature_dim = int(self.network.model.action_out_proj.in_features)
        self.frozen_prefix = trainable == "expert"
        self._choose_trainable(lora_rank)
        if precision == "bfloat16":
            _keep_frozen_in_bfloat16(self.network)
        if recompute_activations:
            _recompute(self.network, self.family.blocks())
        # of a function, not of a method of this object: a copy of the policy must run its own weights
        self._compiled = torch.compile(_expert, mode=_compile_mode()) if compile else None
        self.eval()

    # ------------------------------------------------------------------------------------------------ the flow policy

    def encode(self, obs: Observation) -> Context:
        """Encode pictures, instruction and state: `cache` and `valid` of the prefix, `state`, and `pooled` [B, D]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen_prefix):
            inputs, state = self._inputs(obs)
            with self.compute(inputs.state.device):
                encoded = self.family.encode(inputs)
            weight = encoded.valid.float()[..., None]
            pooled = (encoded.hidden.float() * weight).sum(1) / weight.sum(1)
        room = self.prompt_tokens - inputs.tokens.shape[1]  # every context has one shape, whatever was said
        return {
            "cache": nn.functional.pad(encoded.cache, (0, 0, 0, room)),
            "valid": nn.functional.pad(encoded.valid, (0, room)),
            "state": inputs.state,
            "pooled": torch.cat([pooled, state], 1) if self.proprioception else pooled,
        }

    def prefix_features(self, context: Context) -> Tensor:
        return context["pooled"]

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> Velocity:
        if self._compiled is not None and not torch.is_grad_enabled():
            features = self._compiled(self, x, t, context).clone()  # a CUDA graph overwrites its output
        else:
            features = _expert(self, x, t, context)
        return Velocity(v=self.network.model.action_out_proj(features), features=features)

    def normalise(self, actions: Tensor) -> Tensor:
        return pad_vector(self.processors.action(actions), self.action_dim)

    def unnormalise(self, actions: Tensor) -> Tensor:
        return self.processors.raw_action(actions[..., : self.spec.action_dim])

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None:
        self.processors.fit(states, actions)

    # --------------------------------------------------------------------------------------------------- to LeRobot

    @classmethod
    def write_random(cls, folder: Path, spec: Spec, *, size: instances.Size = "toy", statistics: bool = True) -> None:
        """Write a folder that builds this policy with random weights, at a size to measure or test."""
        cls.family_class.write_random(folder, spec, size, statistics)

    def save(self, folder: Path, *, weights: bool = True) -> None:
        """Write a checkpoint that LeRobot's tools load, adapters merged; without weights, what rebuilds the policy."""
        folder.mkdir(parents=True, exist_ok=True)
        self.processors.save(folder)
        self.family.save_backbone(folder / folders.TOKENIZER)
        if weights:
            self.network.save_pretrained(folder, state_dict=lora.merged(self.network))
        else:
            self.config.save_pretrained(folder)
            (folder / folders.APART).touch()

    # ----------------------------------------------------------------------------------------- LeRobot's own way, to compare

    reference = "lerobot"

    @property
    def reference_steps(self) -> int:
        """Denoising steps of LeRobot's sampler."""
        return self.family.sampler_steps(self.config)

    @torch.no_grad()
    def reference_act(self, obs: Observation, noise: Tensor | None = None) -> np.ndarray:
        """Raw actions [B, H, spec.action_dim] as LeRobot makes them: its processors, its sampler, for given noise."""
        device = next(self.parameters()).device
        batch = {OBS_STATE: torch.as_tensor(obs.state), "task": _texts(obs.prompt), **self._given(tree.to(obs, "cpu"))}
        ready = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in self.processors.prepare(batch).items()}
        actions = self.network.predict_action_chunk(ready, noise=noise)
        return self.processors.finish(actions).numpy()

    # ------------------------------------------------------------------------------------------------------- inside

    def compute(self, device: torch.device) -> torch.autocast:
        """The precision in which transformers compute."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def blocks(self) -> list[nn.Module]:
        """Modules that are only entered through their own forward: units of sharding."""
        return self.family.blocks()

    def _build(self, device: Literal["cpu", "meta"]) -> Any:
        """Build the network; on 'meta' it takes no memory and no time."""
        config = self.config if device == "cpu" else copy.copy(self.config)
        config.device = device
        try:
            with contextlib.redirect_stdout(io.StringIO()), torch.device(device):  # LeRobot's constructors print
                return self.network_class(config)
        except OSError as error:
            raise folders.unreachable(f"The backbone's configuration of this {self.kind} checkpoint", error) from error

    def _given(self, obs: Observation) -> dict[str, Tensor]:
        absent = [camera for camera in self.features if camera not in obs.images]
        if absent:
            raise ValueError(f"The observation has no picture of {', '.join(absent)}; it has {', '.join(obs.images) or 'none'}.")
        return {feature: obs.images[camera].permute(0, 3, 1, 2).float() / 255 for camera, feature in self.features.items()}

    def _inputs(self, obs: Observation) -> tuple[Inputs, Tensor]:
        """The prefix's inputs, and the normalised state [B, S] as it is."""
        names, device = self.spec.state_names, obs.state.device
        if obs.state.shape[-1] != len(names):
            raise ValueError(f"state has {obs.state.shape[-1]} numbers, the policy was trained with {len(names)} ({', '.join(names)}).")
        state, tokens, mask = self.processors.tokenise(obs.state, _texts(obs.prompt))
        if tokens.shape[1] > self.prompt_tokens:
            raise ValueError(
                f"A prompt has {tokens.shape[1]} tokens, policy.prompt_tokens is {self.prompt_tokens}; raise it, up to the "
                f"checkpoint's {self.processors.prompt_limit}."
            )
        given = self._given(obs)
        images = self.family.pictures(given) if given else []
        state = state.to(device)
        padded = pad_vector(state, int(self.config.max_state_dim))
        return Inputs(images, tokens.to(device), mask.to(device), padded), state

    def _choose_trainable(self, lora_rank: int) -> None:
        modules = self.family.expert_modules() + ([] if self.frozen_prefix else self.family.prefix_modules())
        projections = [module for module in modules if isinstance(module, nn.Linear)]
        self.network.requires_grad_(False)  # heads that predict words are never used
        if lora_rank:
            lora.add(self.network, [module for module in modules if module not in projections], lora_rank)
        for module in projections if lora_rank else modules:
            module.requires_grad_(True)


def _expert(policy: LeRobotPolicy, x: Tensor, t: Tensor, context: Context) -> Tensor:
    """Last hidden states of the action tokens, float32 [B, H, F]."""
    suffix = policy.family.embed(x, t, context)  # float32, like the projection after it
    with policy.compute(x.device):
        hidden = policy.family.attend(suffix, context)
    return hidden[:, -policy.horizon :].float()


def _compile_mode() -> str:
    return "reduce-overhead" if torch.cuda.is_available() else "default"


def _texts(prompts: np.ndarray) -> list[str]:
    return [str(prompt) for prompt in prompts]


def _keep_frozen_in_bfloat16(network: nn.Module) -> None:
    """Store what is only read in the precision it is read in; norms stay float32."""
    for module in network.modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, (nn.Linear, nn.Embedding)) and not any(parameter.requires_grad for parameter in own):
            module.to(torch.bfloat16)


def _recompute(network: nn.Module, blocks: Sequence[nn.Module]) -> None:
    chosen = {id(block) for block in blocks}
    apply_activation_checkpointing(
        network, checkpoint_wrapper_fn=partial(checkpoint_wrapper, preserve_rng_state=False), check_fn=lambda part: id(part) in chosen
    )
