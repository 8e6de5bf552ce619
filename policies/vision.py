"""Pictures to glances: each slot attends to the patches that the instruction makes it look for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PATCH = 4
"""Pixels; one matrix product turns a picture into tokens."""
FAST_BFLOAT16 = bool(torch.cpu.get_capabilities().get("avx512_bf16")) or torch.cuda.is_available()
"""Whether this machine computes in bfloat16 faster than in float32, and does not emulate it."""


class Eyes(nn.Module):
    """All cameras' patches as one sequence of M tokens, and per slot what its attention heads saw and where.

    uint8 images {camera: [B, h, w, 3]} and instructions [B, token] to glances [B, slots, glance_dim] and attention
    [B, slots, heads, M]. "Where" is the attention's mean position in each camera: places are read off coordinates,
    finer than a patch, instead of being memorised per patch.
    """

    def __init__(
        self, cameras: tuple[tuple[str, int, int], ...], *, token: int, heads: int, slots: int, key: int = 16, value: int = 16
    ) -> None:
        super().__init__()
        for name, height, width in cameras:
            if height % PATCH or width % PATCH:
                raise ValueError(f"Camera '{name}' is {height} x {width} px; both must be multiples of {PATCH}.")
        self.brief = False
        """Compute what is done to every patch in bfloat16."""
        self.cameras, self.heads, self.slots, self.key = cameras, heads, slots, key
        self.stem = nn.ModuleDict({name: nn.Linear(3 * PATCH * PATCH, token) for name, _, _ in cameras})
        grids = [(name, (height // PATCH) * (width // PATCH)) for name, height, width in cameras]
        self.places = nn.ParameterDict({name: nn.Parameter(0.02 * torch.randn(patches, token)) for name, patches in grids})
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(token, token), nn.GELU())
        self.query = nn.Linear(token, slots * heads * key)
        self.to_key = nn.Parameter(torch.empty(heads, key, token).uniform_(-1, 1) * token**-0.5)
        self.to_value = nn.Parameter(torch.empty(heads, token, value).uniform_(-1, 1) * token**-0.5)
        self.register_buffer("coordinates", _coordinates(cameras), persistent=False)
        self.coordinates: Tensor
        self.glance_dim = heads * (value + self.coordinates.shape[1])

    def forward(self, images: dict[str, Tensor], said: Tensor) -> tuple[Tensor, Tensor]:
        query = self.query(said).unflatten(-1, (self.slots, self.heads, self.key))
        # keys and values of so many tokens are never made: their matrices go to the few queries and to what those saw
        asked = torch.einsum("bshk,hkt->bsht", query, self.to_key).flatten(1, 2) * self.key**-0.5
        with torch.autocast(said.device.type, torch.bfloat16, enabled=self.brief):
            tokens = self.mix(torch.cat([self._tokens(images, *camera) for camera in self.cameras], 1))  # [B, M, token]
            attention = (asked @ tokens.transpose(1, 2)).float().softmax(-1)  # [B, slots * heads, M]
            seen = (attention @ tokens).float().unflatten(1, (self.slots, self.heads))
        seen = torch.einsum("bsht,htv->bshv", seen, self.to_value)
        where = (attention @ self.coordinates).unflatten(1, (self.slots, self.heads))  # [B, slots, heads, 3 * cameras]
        return torch.cat([seen, where], -1).flatten(2), attention.unflatten(1, (self.slots, self.heads))

    def coverage(self, masks: dict[str, Tensor]) -> Tensor:
        """Share of every patch that bool masks {camera: [B, P, h, w]} cover: [B, P, M]."""
        return torch.cat(
            [nn.functional.avg_pool2d(masks[name].float(), PATCH).flatten(2) for name, _, _ in self.cameras], -1
        )

    def _tokens(self, images: dict[str, Tensor], name: str, height: int, width: int) -> Tensor:
        if name not in images:
            raise ValueError(f"Camera '{name}' is missing; there are {', '.join(images) or 'none'}. The policy was trained with it.")
        picture = images[name]
        if tuple(picture.shape[1:]) != (height, width, 3):
            raise ValueError(f"Camera '{name}' gives {tuple(picture.shape[1:])}, the policy was trained with {(height, width, 3)}.")
        rows, columns = height // PATCH, width // PATCH
        patches = picture.reshape(-1, rows, PATCH, columns, PATCH, 3).transpose(2, 3).reshape(len(picture), rows * columns, -1)
        stem = self.stem[name]
        assert isinstance(stem, nn.Linear)
        shade = stem.weight / 127.5  # uint8 to [-1, 1] by the weights, not in every pixel
        place = self.places[name] + (stem.bias - stem.weight.sum(1))
        kind = torch.bfloat16 if self.brief else torch.float32  # either holds 0-255 exactly
        return nn.functional.linear(patches.to(kind), shade) + place.to(kind)


def attention_loss(attention: Tensor, coverage: Tensor) -> Tensor:
    """Cross-entropy of attention [B, P, M] with where each referent is seen; one that is hidden everywhere counts nothing."""
    total = coverage.sum(-1)
    seen = total > 0
    share = coverage / total.clamp(min=1e-6)[..., None]
    loss = -(share * attention.clamp(min=1e-8).log()).sum(-1)
    return (loss * seen).sum() / seen.sum().clamp(min=1)


def _coordinates(cameras: tuple[tuple[str, int, int], ...]) -> Tensor:
    """Per token and camera (x, y, 1) in [-1, 1], zeros in the columns of other cameras: [M, 3 * cameras]."""
    blocks = []
    for _, height, width in cameras:
        y, x = torch.meshgrid(
            torch.linspace(-1, 1, height // PATCH), torch.linspace(-1, 1, width // PATCH), indexing="ij"
        )
        blocks.append(torch.stack([x.flatten(), y.flatten(), torch.ones(x.numel())], -1))
    return torch.block_diag(*blocks)
