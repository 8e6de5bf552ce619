"""Processes that each hold a slice of every parameter, of its gradient and of its optimiser state (FSDP2).

A file of its own: importing FSDP2 takes longer than importing torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .interfaces import FlowPolicy
from .parallel import Ranks, map_tensors


@runtime_checkable
class Shardable(Protocol):
    """A policy that says how it can be taken apart."""

    def blocks(self) -> list[nn.Module]:
        """Parts that are only entered through their own forward, so that each is gathered when it runs."""
        ...


class Shards(Ranks):
    """One among processes that share the policy's memory. All must call it in step: a call gathers parameters."""

    def __init__(self, rank: int, size: int, *, device: str = "cpu") -> None:
        super().__init__(rank, size, device=device)
        self.mesh = init_device_mesh(device, (size,))

    def adopt(self, policy: FlowPolicy, *heads: nn.Module) -> None:
        assert isinstance(policy, nn.Module)
        parts = [*(policy.blocks() if isinstance(policy, Shardable) else []), policy, *heads]
        fresh = [part for part in parts if not isinstance(part, FSDPModule)]  # another algorithm may have come before
        for module in (policy, *heads):
            for tensor in (*module.parameters(), *module.buffers()) if module in fresh else ():
                dist.broadcast(tensor.data, 0)
        for part in fresh:
            fully_shard(part, mesh=self.mesh)
        if policy in fresh:
            for method in ("encode", "velocity"):  # how a flow policy is entered
                register_fsdp_forward_method(policy, method)
        self._parts = [part for part in parts if isinstance(part, FSDPModule)]
        for sharded in self._parts:
            sharded.reshard()  # or an optimiser would be given the gathered parameters of the last call

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        for part in self._parts:
            part.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def whole(self, state: Any) -> Any:
        return map_tensors(lambda leaf: leaf.full_tensor().cpu() if isinstance(leaf, DTensor) else leaf, state)

    def load(self, target: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if isinstance(target, nn.Module):
            own = target.state_dict()
            state = {name: _cut(tensor, own[name]) if name in own else tensor for name, tensor in state.items()}
        else:
            parameters = [p for group in target.param_groups for p in group["params"]]
            parts = {i: {k: _cut(v, parameters[int(i)]) for k, v in held.items()} for i, held in state["state"].items()}
            state = {**state, "state": parts}
        target.load_state_dict(state)

    def local(self, leaf: Any) -> Any:
        return leaf.to_local() if isinstance(leaf, DTensor) else super().local(leaf)

    def read(self, files: Sequence[Any], name: str) -> Tensor:
        if len(files) == 1:
            return files[0].get_tensor(name)  # all hold it alike, or one process wrote it: cut when it is loaded
        slices = [file.get_slice(name) for file in files]
        counts = [part.get_shape()[0] for part in slices]
        each = math.ceil(sum(counts) / self.size)
        start, stop = self.rank * each, (self.rank + 1) * each
        pieces, offset = [], 0
        for part, count in zip(slices, counts, strict=True):
            pieces.append(part[min(max(start - offset, 0), count) : min(max(stop - offset, 0), count)])
            offset += count
        rows = torch.cat(pieces).to(self.device)
        shape = torch.Size([offset, *rows.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(rows, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def _cut(value: Any, own: Tensor) -> Any:
    """A whole tensor cut the way `own` is; anything else as it is."""
    if not isinstance(own, DTensor) or isinstance(value, DTensor) or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
