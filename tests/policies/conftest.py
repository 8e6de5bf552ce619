"""An embodiment with two cameras, and what it sees."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from embodied import tree
from embodied.types import Observation, Spec

SPEC = Spec(
    robot="bench", tasks=("reach",), state_names=tuple("abcde"), action_names=("x", "y", "grip"),
    action_low=(-1.0, -0.2, 0.0), action_high=(1.0, 0.6, 1.0), control_hz=10.0,
    cameras=(("front", 24, 32), ("wrist", 32, 24)), prompts=True,
)  # fmt: skip
WORDS = ("reach the red cube", "push", "", "place the can into the bowl")


def seen(batch: int = 4, *, seed: int = 0, spec: Spec = SPEC) -> Observation:
    rng = np.random.default_rng(seed)
    obs = Observation(
        images={name: rng.integers(0, 256, (batch, h, w, 3), np.uint8) for name, h, w in spec.cameras},
        state=rng.normal(size=(batch, spec.state_dim)).astype(np.float32),
        prompt=np.array([WORDS[row % len(WORDS)] for row in range(batch)]), time=np.arange(batch) / 10,
    )  # fmt: skip
    return tree.to(obs, "cpu")


def stir(module: nn.Module, *, scale: float = 0.1, seed: int = 0) -> None:
    """Move every parameter off its start: a layer that starts at zero would hide what lies before it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
