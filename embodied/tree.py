"""Map, stack, index and move nested values: dataclasses, dicts and tuples with array leaves.

Text leaves (instructions) and None pass through `to` unchanged; everything else follows the leaves' library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch


def map[Tree](function: Callable[..., Any], tree: Tree, *others: Any) -> Tree:
    """Apply `function` to every leaf of `tree`, with the leaves at the same place of `others`."""
    node: Any = tree
    if node is None:
        return tree
    if is_dataclass(node) and not isinstance(node, type):
        values = {
            f.name: map(function, getattr(node, f.name), *(getattr(o, f.name) for o in others)) for f in fields(node)
        }
        return replace(node, **values)  # type: ignore[return-value]
    if isinstance(node, dict):
        return {key: map(function, value, *(o[key] for o in others)) for key, value in node.items()}  # type: ignore[return-value]
    if isinstance(node, tuple):
        return tuple(map(function, value, *(o[i] for o in others)) for i, value in enumerate(node))  # type: ignore[return-value]
    return function(node, *others)


def leaves(tree: Any) -> list[Any]:
    """List the leaves in a fixed order."""
    found: list[Any] = []
    map(lambda leaf: found.append(leaf), tree)
    return found


def stack[Tree](trees: Sequence[Tree], axis: int = 0) -> Tree:
    """Stack equal trees along a new axis."""
    return map(lambda *xs: torch.stack(xs, axis) if torch.is_tensor(xs[0]) else np.stack(xs, axis), *trees)


def concat[Tree](trees: Sequence[Tree], axis: int = 0) -> Tree:
    """Join equal trees along an existing axis."""
    return map(lambda *xs: torch.cat(xs, axis) if torch.is_tensor(xs[0]) else np.concatenate(xs, axis), *trees)


def index[Tree](tree: Tree, at: Any) -> Tree:
    """Index every leaf along its leading axes. Torch indices also select rows of NumPy (text) leaves."""

    def pick(leaf: Any) -> Any:
        if torch.is_tensor(leaf):
            return leaf[at]
        return leaf[at.cpu().numpy() if torch.is_tensor(at) else at]

    return map(pick, tree)


def take[Tree](tree: Tree, at: torch.Tensor, device: str | torch.device) -> Tree:
    """Rows `at` on `device`; tensors that wait on the host come through pinned memory, while the device computes."""
    target = torch.device(device)

    def pick(leaf: Any) -> Any:
        if not torch.is_tensor(leaf) or leaf.device.type == target.type:
            return index(leaf, at)
        staged = torch.empty((len(at), *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
        return torch.index_select(leaf, 0, at.cpu(), out=staged).to(target, non_blocking=True)

    return map(pick, tree)


def repeat[Tree](tree: Tree, times: int) -> Tree:
    """Repeat each row of the batch axis `times` times, row by row: [B, ...] -> [B * times, ...]."""
    return map(
        lambda leaf: leaf.repeat_interleave(times, 0) if torch.is_tensor(leaf) else np.repeat(leaf, times, 0), tree
    )


def flatten[Tree](tree: Tree, axes: int = 2) -> Tree:
    """Merge the first `axes` axes of every leaf: [D, N, ...] -> [D * N, ...]."""
    return map(lambda leaf: leaf.reshape(-1, *leaf.shape[axes:]), tree)


def where[Tree](mask: Any, tree: Tree, other: Tree) -> Tree:
    """Take rows of `tree` where `mask` [B] holds and of `other` elsewhere."""

    def choose(a: Any, b: Any) -> Any:
        shaped = mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim))
        return torch.where(shaped, a, b) if torch.is_tensor(a) else np.where(shaped, a, b)

    return map(choose, tree, other)


def to[Tree](tree: Tree, device: str | torch.device) -> Tree:
    """Move NumPy or torch leaves to `device` as tensors; text stays NumPy. The only bridge to torch."""

    def move(leaf: Any) -> Any:
        if torch.is_tensor(leaf):
            return leaf.to(device)
        array = np.asarray(leaf)
        if array.dtype.kind in "USO":
            return array
        return torch.as_tensor(array, device=device)

    return map(move, tree)


def to_numpy[Tree](tree: Tree) -> Tree:
    """Bring every tensor back to NumPy."""
    return map(lambda leaf: leaf.detach().cpu().numpy() if torch.is_tensor(leaf) else leaf, tree)
