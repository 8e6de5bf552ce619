"""Rebuild a policy from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .. import checkpoint, plugins
from ..agent import FlowAgent
from ..flow import Sampler
from .schema import read


def load(path: str | Path, *, device: str = "auto", version: int | str = "last") -> FlowAgent:
    """Load the policy of a run's folder, its `checkpoints` folder, or one checkpoint."""
    folder = locate(path, version)
    found = checkpoint.load(folder.parent, int(folder.name))
    return rebuild(found).to(pick_device(device))


def locate(path: str | Path, version: int | str = "last") -> Path:
    """Name the checkpoint that a path given by a person means."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"There is no {path}. Give a run's folder, or one checkpoint in it.")
    if (path / checkpoint.COMPLETE).is_file():
        return path
    nested = path / "checkpoints"
    return checkpoint.find(nested if nested.is_dir() else path, version)


def description(path: str | Path) -> dict[str, Any]:
    """Contents of the policy.json that a path given by a person leads to."""
    folder = locate(Path(path))
    return checkpoint.load(folder.parent, int(folder.name)).policy


def adopt(agent: FlowAgent, path: str | Path) -> None:
    """Take the weights of one of our checkpoints; another robot, task set or architecture is refused.

    A noise head keeps its fresh weights when the checkpoint was trained without one.
    """
    folder = locate(Path(path))
    found = checkpoint.load(folder.parent, int(folder.name))
    checkpoint.require(agent.policy.spec, checkpoint.spec_of(found.policy))
    own = agent.state_dict()
    different = [
        f"{name}: {tuple(own[name].shape) if name in own else 'absent'} here, "
        f"{tuple(found.model[name].shape) if name in found.model else 'absent'} there"
        for name in sorted(own.keys() | found.model.keys())
        if name.startswith("policy.") and (name not in own or name not in found.model or own[name].shape != found.model[name].shape)
    ]
    if different:
        raise ValueError(f"{path} has another architecture than this policy: {'; '.join(different[:5])}. Check policy.*.")
    agent.load_state_dict({name: tensor for name, tensor in found.model.items() if name in own}, strict=False)


def rebuild(found: checkpoint.Checkpoint) -> FlowAgent:
    """Build the policy that policy.json describes and fill in its tensors."""
    record = found.policy
    network = plugins.load("embodied.policies", record["architecture"])
    here = {} if found.assets is None else {"path": str(found.assets)}  # not where it once came from
    policy = network(checkpoint.spec_of(record), **record["arguments"] | here)
    agent = FlowAgent(policy, read(Sampler, record["sampler"], "sampler"))
    agent.load_state_dict(found.model)
    agent.version = found.version
    return agent


def pick_device(name: str) -> str:
    """Turn `auto` into the best device here; refuse one that is not."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is one of auto, cpu, cuda, got '{name}'.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch sees no CUDA device here. Use device=auto, or see `embodied doctor`.")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
