"""Train one policy on several processes: each takes its share of every batch, all make the same update.

torchrun starts the processes and `connect` joins them. They share in one of two ways:

`Replicas`: each holds all parameters, and gradients are averaged (DistributedDataParallel).
`shards.Shards`: each holds a slice of every parameter, gradient and optimiser state (FSDP2).

`Ranks` is a process alone: nothing is sent, nothing wrapped. Algorithms speak to this one interface: `adopt` their
modules, `run` losses, `gather` statistics, and scale a loss by `weight`, so that the average over processes is the mean
over the whole batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from . import checkpoint
from .interfaces import FlowPolicy


def connect(device: str) -> tuple[int, int]:
    """Join the processes that torchrun started; this one's rank and how many there are, (0, 1) without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


class Ranks:
    """A process that trains alone, or what one among several shares with the others."""

    def __init__(self, rank: int = 0, size: int = 1, *, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, device

    def leave(self) -> None:
        """Part from the others; nothing can be sent afterwards."""
        if self.size > 1:
            dist.destroy_process_group()

    # ----------------------------------------------------------------------------------------------------- modules

    def adopt(self, policy: FlowPolicy, *heads: nn.Module) -> None:
        """Take a `FlowPolicy` and heads into the group, with rank 0's weights; before an optimiser takes their parameters."""

    def run[Result](self, loss: Callable[..., Result], *arguments: Any) -> Result:
        """Call a loss of the adopted modules; its gradient is then averaged over the processes."""
        return loss(*arguments)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Keep gradients to this process until the last part of a batch."""
        return nullcontext()

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Clip the gradient's norm to `limit` and return what it was."""
        return float(nn.utils.clip_grad_norm_(parameters, limit))

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
        return int(self.gather(torch.tensor([number], device=self.device)).max())

    def combine(self, figures: dict[str, float], maxima: Iterable[str] = ()) -> dict[str, float]:
        """Figures of the whole batch from weighted ones: the mean over processes, or the largest where named."""
        if self.size == 1:
            return figures
        values = self.gather(torch.tensor([list(figures.values())], device=self.device))  # [size, n]
        chosen = {name: values[:, i].max() if name in maxima else values[:, i].mean() for i, name in enumerate(figures)}
        return {name: float(value) for name, value in chosen.items()}

    # -------------------------------------------------------------------------------------------------------- state

    def whole(self, state: Any) -> Any:
        """A nested state with everything that is sharded gathered to the CPU, to publish or to save in one piece."""
        return state

    def load(self, target: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load a whole state into a module or optimiser, each process its part."""
        target.load_state_dict(state)

    def save_shards(self, folder: Path, state: Any) -> None:
        """Write a nested state, each process its own slices: `<rank>.safetensors`, and `state.json` for what is no tensor."""
        folder.mkdir(parents=True, exist_ok=True)
        slices: dict[str, Tensor] = {}
        skeleton = checkpoint.flatten(map_tensors(self.local, state), "", slices)
        save_file(slices, folder / f"{self.rank}.safetensors")
        if self.rank == 0:
            (folder / "state.json").write_text(json.dumps({"ranks": self.size, "state": skeleton}))
        if self.size > 1:
            dist.barrier()

    def load_shards(self, folder: Path) -> Any:
        """Read a nested state that any number of processes wrote; of what is sharded here, this process's rows only."""
        saved = json.loads((folder / "state.json").read_text())
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(folder / f"{rank}.safetensors", "pt")) for rank in range(saved["ranks"])]
            holders = [set(file.keys()) for file in files]
            tensors = {
                name: self.read([file for file, held in zip(files, holders, strict=True) if name in held], name)
                for name in holders[0]
            }
        return checkpoint.unflatten(saved["state"], tensors)

    def local(self, leaf: Any) -> Any:
        """What this process writes of a leaf; what all hold alike is written by rank 0."""
        return leaf if self.rank == 0 else None

    def read(self, files: Sequence[Any], name: str) -> Tensor:
        """A tensor from the files that hold its rows, in order."""
        return torch.cat([file.get_tensor(name) for file in files]) if len(files) > 1 else files[0].get_tensor(name)


class Replicas(Ranks):
    """One among processes that all hold the whole policy."""

    def adopt(self, policy: FlowPolicy, *heads: nn.Module) -> None:
        assert isinstance(policy, nn.Module)
        # unused: a warming-up critic leaves the policy out of its loss
        self._replica = DistributedDataParallel(_Call([policy, *heads]), find_unused_parameters=True, broadcast_buffers=False)

    def run[Result](self, loss: Callable[..., Result], *arguments: Any) -> Result:
        return self._replica(loss, *arguments)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._replica.no_sync()


class _Call(nn.Module):
    """Runs a function inside forward: DistributedDataParallel prepares its reduction there."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.adopted = nn.ModuleList(modules)

    def forward[Result](self, function: Callable[..., Result], *arguments: Any) -> Result:
        return function(*arguments)


def map_tensors(function: Callable[[Any], Any], node: Any) -> Any:
    """Apply `function` to the tensors and arrays of nested dicts, lists and tuples."""
    if isinstance(node, dict):
        return {name: map_tensors(function, value) for name, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(map_tensors(function, value) for value in node)
    return function(node) if isinstance(node, (Tensor, np.ndarray)) else node
