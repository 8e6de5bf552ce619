"""Train one policy on several processes: each takes its share of every batch, all make the same update.

`torchrun --nproc-per-node 8 -m embodied …` starts the processes, `Ranks.join` connects them. Two ways of sharing:

replicate: every process holds all parameters and gradients are averaged (DistributedDataParallel).
shard: every process holds a slice of each parameter, of its gradient and of its optimiser state (FSDP2, `fully_shard`).

A process alone is a group of one, in which nothing is sent and nothing is wrapped. Algorithms speak to this class
only: `adopt` their modules, `run` losses, `gather` statistics, and scale a loss by `weight` so that the average over
processes is the mean over the whole batch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from . import checkpoint
from .interfaces import FlowPolicy

Strategy = Literal["replicate", "shard"]


@runtime_checkable
class Shardable(Protocol):
    """A module that says how it can be taken apart."""

    def blocks(self) -> list[nn.Module]:
        """Parts that are only entered through their own forward, so that each is gathered when it runs."""
        ...


class Ranks:
    """This process among those that train together."""

    def __init__(self, rank: int = 0, size: int = 1, *, strategy: Strategy = "replicate", mesh: DeviceMesh | None = None) -> None:
        self.rank, self.size, self.strategy, self.mesh = rank, size, strategy, mesh
        self._modules: list[nn.Module] = []
        self._replica: DistributedDataParallel | None = None

    @staticmethod
    def join(device: str = "cpu", *, strategy: Strategy = "replicate") -> Ranks:
        """Connect to the other processes that torchrun started; alone where it did not."""
        if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
            return Ranks()
        if device.startswith("cuda"):
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        mesh = init_device_mesh(device.partition(":")[0], (dist.get_world_size(),))
        return Ranks(dist.get_rank(), dist.get_world_size(), strategy=strategy, mesh=mesh)

    def leave(self) -> None:
        """Disconnect."""
        if self.size > 1:
            dist.destroy_process_group()

    # ---------------------------------------------------------------------------------------------------- modules

    def adopt(self, policy: FlowPolicy, *heads: nn.Module) -> None:
        """Take a `FlowPolicy` and heads into the group, with rank 0's weights; before an optimiser takes their parameters."""
        if not isinstance(policy, nn.Module):
            raise TypeError(f"{type(policy).__name__} is no torch module.")
        self._modules = [policy, *heads]
        if self.size == 1:
            return
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.data, 0)
        if self.strategy == "replicate":
            self._replica = DistributedDataParallel(_Call(self._modules), find_unused_parameters=True, broadcast_buffers=False)
            return
        for part in [*(policy.blocks() if isinstance(policy, Shardable) else []), *self._modules]:
            fully_shard(part, mesh=self.mesh)
        for method in ("encode", "velocity"):  # how a flow policy is entered
            register_fsdp_forward_method(policy, method)

    def run[Result](self, loss: Callable[..., Result], *arguments: Any) -> Result:
        """Call a loss of the adopted modules; its gradient is then averaged over the processes."""
        return loss(*arguments) if self._replica is None else self._replica(loss, *arguments)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Keep gradients to this process until the last part of a batch."""
        if self._replica is not None:
            return nullcontext() if last else self._replica.no_sync()
        for module in self._modules:
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Clip the gradient's norm over all processes to `limit` and return what it was."""
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    # ------------------------------------------------------------------------------------------------------ batches

    def weight(self, rows: int, total: int) -> float:
        """What to scale a mean over `rows` of this process by, so that the average over processes is that over `total`."""
        return self.size * rows / total

    def gather(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Every process's tensor, of one shape, side by side along `axis` in the order of ranks."""
        if self.size == 1:
            return tensor
        sent = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent.contiguous())
        return torch.cat(parts, axis).to(tensor.dtype)

    def largest(self, number: int) -> int:
        """The largest of every process's number."""
        return int(self.gather(torch.tensor([number], device=self._device())).max())

    def combine(self, figures: dict[str, float], maxima: Iterable[str] = ()) -> dict[str, float]:
        """Figures of the whole batch from weighted ones: the mean over processes, or the largest where named."""
        if self.size == 1 or not figures:
            return figures
        values = self.gather(torch.tensor([list(figures.values())], device=self._device()))  # [size, n]
        chosen = {name: values[:, i].max() if name in maxima else values[:, i].mean() for i, name in enumerate(figures)}
        return {name: float(value) for name, value in chosen.items()}

    def _device(self) -> torch.device:
        return torch.device("cuda" if self.mesh is not None and self.mesh.device_type == "cuda" else "cpu")

    # -------------------------------------------------------------------------------------------------------- state

    def whole(self, state: Any) -> Any:
        """A nested state with every sharded tensor gathered to the CPU, to publish or to save in one piece."""
        return _map(lambda tensor: tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor, state)

    def load(self, target: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load a whole state into a module or optimiser, each process its part."""
        if isinstance(target, nn.Module):
            own = target.state_dict()
            state = {name: _like(tensor, own[name]) if name in own else tensor for name, tensor in state.items()}
        else:
            parameters = [p for group in target.param_groups for p in group["params"]]
            parts = {i: {k: _like(v, parameters[int(i)]) for k, v in held.items()} for i, held in state["state"].items()}
            state = {**state, "state": parts}
        target.load_state_dict(state)

    def save_shards(self, folder: Path, state: Any) -> None:
        """Write a nested state, each process its own slices: `<rank>.safetensors`, and `state.json` for what is no tensor."""
        folder.mkdir(parents=True, exist_ok=True)
        first = self.rank == 0  # what all processes hold alike is written once
        local = _map(lambda leaf: leaf.to_local() if isinstance(leaf, DTensor) else leaf if first else None, state)
        slices: dict[str, Tensor] = {}
        skeleton = checkpoint.flatten(local, "", slices)
        save_file(slices, folder / f"{self.rank}.safetensors")
        if first:
            (folder / "state.json").write_text(json.dumps({"ranks": self.size, "state": skeleton}))
        if self.size > 1:
            dist.barrier()

    def load_shards(self, folder: Path) -> Any:
        """Read a nested state that any number of processes wrote: of what is sharded, the rows of this process only."""
        saved = json.loads((folder / "state.json").read_text())
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(folder / f"{rank}.safetensors", "pt")) for rank in range(saved["ranks"])]
            tensors = {name: self._rows(name, [file for file in files if name in set(file.keys())]) for name in files[0].keys()}  # noqa: SIM118
        return checkpoint.unflatten(saved["state"], tensors)

    def _rows(self, name: str, files: Sequence[Any]) -> Tensor:
        if len(files) == 1:
            return files[0].get_tensor(name)
        slices = [file.get_slice(name) for file in files]
        counts = [part.get_shape()[0] for part in slices]
        total = sum(counts)
        if self.mesh is None or self.strategy != "shard":
            return torch.cat([part[:] for part in slices])
        each = math.ceil(total / self.size)
        start, stop = (min(total, each * rank) for rank in (self.rank, self.rank + 1))
        pieces, offset = [], 0
        for part, count in zip(slices, counts, strict=True):
            pieces.append(part[max(0, min(start - offset, count)) : max(0, min(stop - offset, count))])
            offset += count
        local = torch.cat(pieces)
        shape = torch.Size([total, *local.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local.to(self._device()), self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


class _Call(nn.Module):
    """Runs a function inside forward: DistributedDataParallel prepares its reduction there."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(modules)

    def forward[Result](self, function: Callable[..., Result], *arguments: Any) -> Result:
        return function(*arguments)


def _map(function: Callable[[Any], Any], node: Any) -> Any:
    """Apply `function` to the arrays and tensors of nested dicts, lists and tuples."""
    if isinstance(node, dict):
        return {name: _map(function, value) for name, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_map(function, value) for value in node)
    return function(node) if isinstance(node, (Tensor, np.ndarray)) else node


def _like(value: Any, own: Tensor) -> Any:
    """A whole tensor cut the way `own` is; anything else as it is."""
    if not isinstance(own, DTensor) or isinstance(value, DTensor) or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
