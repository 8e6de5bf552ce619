"""Instructions as UTF-8 bytes: any language and script, the empty instruction included."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

LONGEST = 4096
"""Bytes of the longest instruction; some 600 English words."""
_START = 256


class Instructions(nn.Module):
    """One attention layer over an instruction's bytes, averaged: str [B] to [B, token].

    A batch repeats few instructions, so each distinct one is encoded once.
    """

    def __init__(self, token: int, *, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(257, token)
        self.norm, self.query_key_value = nn.LayerNorm(token), nn.Linear(token, 3 * token)
        self.out = nn.Linear(token, token)
        self.net = nn.Sequential(nn.LayerNorm(token), nn.Linear(token, 2 * token), nn.GELU(), nn.Linear(2 * token, token))
        self.final = nn.LayerNorm(token)

    def forward(self, prompts: np.ndarray) -> Tensor:
        distinct, which = np.unique(prompts, return_inverse=True)
        device = self.embed.weight.device
        return self._encode([str(text) for text in distinct])[torch.as_tensor(which, device=device)]

    def _encode(self, texts: list[str]) -> Tensor:
        codes = [[_START, *text.encode("utf-8")] for text in texts]
        if (longest := max(map(len, codes))) > LONGEST:
            raise ValueError(f"An instruction has {longest - 1} bytes; at most {LONGEST - 1} are read. Shorten it.")
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in codes], device=self.embed.weight.device)
        there = torch.arange(longest, device=padded.device) < torch.tensor([len(row) for row in codes], device=padded.device)[:, None]
        h = self.embed(padded) + _positions(longest, self.embed.embedding_dim, padded.device)
        query, key, value = self.query_key_value(self.norm(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None])
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        h = h + self.net(h)
        return self.final((h * there[..., None]).sum(1) / there.sum(1, keepdim=True))


def _positions(length: int, width: int, device: torch.device) -> Tensor:
    """Sinusoids [length, width], so that any length has positions."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(1e4) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)
