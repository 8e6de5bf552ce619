"""Keys and values of an encoded prefix, as a tensor that can be kept, indexed and repeated."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class _Layer(DynamicLayer):
    """One attention layer of a `PrefixCache`."""

    def __init__(self, known: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.known = known
        if known is not None:
            self._keep(*known)

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        if self.known is not None:
            keys, values = self.known
            return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)
        self._keep(key_states, value_states)
        return key_states, value_states

    def _keep(self, keys: Tensor, values: Tensor) -> None:
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values


class PrefixCache(Cache):
    """The cache that transformers' attention layers ask for: records a prefix once, afterwards only reads it.

    Theirs is appended to in place, so LeRobot copies it for every denoising step. This one hands out
    [prefix, suffix] without keeping the suffix: one recording serves every step, every row of a repeated batch and
    every recomputation of activations.
    """

    def __init__(self, recorded: Tensor | None = None) -> None:
        """`recorded` [B, layers, 2, heads, P, D], keys then values; None records a new prefix."""
        if recorded is None:
            super().__init__(layer_class_to_replicate=_Layer)
        else:
            super().__init__(layers=[_Layer((layer[:, 0], layer[:, 1])) for layer in recorded.unbind(1)])


def recorded(cache: Cache) -> Tensor:
    """The keys and values of a filled cache as one tensor, [B, layers, 2, heads, P, D]."""
    both = [part for layer in cache.layers if isinstance(layer, DynamicLayer) for part in (layer.keys, layer.values)]
    return torch.stack([part for part in both if part is not None], 1).unflatten(1, (-1, 2))
