"""Low-rank adapters (LoRA, arXiv 2106.09685) on a network's linear layers, through peft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

WRAPPED = "_checkpoint_wrapped_module."
"""What PyTorch's recomputation of activations adds to the names of modules, though not of parameters."""


def add(network: nn.Module, modules: Sequence[nn.Module], rank: int) -> None:
    """Freeze `network` and put an adapter on every linear layer inside `modules`."""
    from peft import LoraConfig, inject_adapter_in_model

    inside = {id(part) for module in modules for part in module.modules() if isinstance(part, nn.Linear)}
    names = [name for name, part in network.named_modules() if id(part) in inside]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=names), network)


def merged(network: nn.Module) -> dict[str, Tensor]:
    """The state of a network with its adapters folded into the layers they adapt, under the layers' own names."""
    state = dict(network.state_dict())
    if not any(".lora_" in name for name in state):
        return state
    from peft.tuners.lora import Linear

    for name, layer in network.named_modules():
        if isinstance(layer, Linear):
            name = name.replace(WRAPPED, "")
            for inner in [key for key in state if key.startswith(f"{name}.")]:
                tensor = state.pop(inner)
                if ".base_layer." in inner:
                    state[inner.replace(".base_layer.", ".")] = tensor
            with torch.no_grad():
                change = sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
            state[f"{name}.weight"] = state[f"{name}.weight"].float() + change
    return state
