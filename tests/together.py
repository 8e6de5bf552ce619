"""Run a function in one or two processes that train together, over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed
import torch.multiprocessing

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL
from embodied.algorithms.sft import SFT
from embodied.parallel import Ranks, Replicas, connect
from embodied.rollout.collector import Collector
from embodied.types import Transition

from .fields import Toy
from .worlds import PointMass

Strategy = Literal["replicate", "shard"]
Work = Callable[[Ranks], dict[str, Any]]


class Lanes:
    """The collector's rollouts of all lanes, of which each process takes its own."""

    def __init__(self, collector: Collector, ranks: Ranks) -> None:
        self.collector, self.ranks = collector, ranks

    def __next__(self) -> Transition:
        rollout = next(self.collector)
        count = rollout.reward.shape[1] // self.ranks.size
        mine = slice(self.ranks.rank * count, (self.ranks.rank + 1) * count)
        return tree.map(lambda leaf: leaf[:, mine], rollout)


def reinforce(ranks: Ranks, *, group: int = 1, **settings: Any) -> PiRL:
    """Two updates of a small policy."""
    torch.manual_seed(0)
    env = PointMass(8, time_limit=9, radius=0.6, limit=1e3)
    agent = FlowAgent(Toy(env.embodiment, frozen_prefix=settings.pop("frozen", True)))
    options: dict[str, Any] = {"critic": "prefix", "critic_warmup": 0, "minibatch": 12, "learning_rate": 1e-3, "target_kl": None}
    if group > 1:
        options |= {"advantage": "group", "group": group}
    batches = Lanes(Collector(env, agent, decisions=3, group=group), ranks)
    if settings.pop("after_imitation", False):
        SFT(agent, learning_rate=1e-2, ranks=ranks).update(Flat(batches.collector))  # type: ignore[arg-type]
        agent.act(batches.collector.lanes.observation, explore=False)
    algorithm = PiRL(agent, **options | settings, ranks=ranks)
    algorithm.figures = [algorithm.update(batches) for _ in range(2)]  # type: ignore[arg-type,attr-defined]
    return algorithm


class Flat:
    """The collector's rollouts as one batch of rows."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def __next__(self) -> Transition:
        batch = tree.flatten(next(self.collector))
        return replace(batch, chunk=replace(batch.chunk, context=None))


def imitate(ranks: Ranks, **settings: Any) -> SFT:
    """Three steps of supervised training on what the policy did."""
    torch.manual_seed(0)
    env = PointMass(8, time_limit=9, radius=0.6, limit=1e3)
    agent = FlowAgent(Toy(env.embodiment, frozen_prefix=False))
    batch = tree.flatten(next(Collector(env, agent, decisions=3)))

    class Same:
        def __next__(self) -> Transition:
            return batch

    algorithm = SFT(agent, **settings, ranks=ranks)
    algorithm.figures = [algorithm.update(Same()) for _ in range(3)]  # type: ignore[arg-type,attr-defined]
    return algorithm


def alone(work: Work) -> dict[str, Any]:
    """What one process makes of it."""
    return work(Ranks())


def in_two(works: dict[str, tuple[Strategy, Work]], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each of two processes makes of each of the works: by name, in the order of ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (works, port, folder), nprocs=2)
    found = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
    return {name: [part[name] for part in found] for name in works}


def _rank(rank: int, works: dict[str, tuple[Strategy, Work]], port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    from embodied.shards import Shards  # slow to import

    assert connect("cpu") == (rank, 2)
    results = {}
    for name, (strategy, work) in works.items():
        results[name] = work(Shards(rank, 2) if strategy == "shard" else Replicas(rank, 2))
    torch.save(results, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
