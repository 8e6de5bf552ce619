"""Commands under torchrun: every process runs the whole command on its share, rank 0 speaks and keeps the results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Literal

from ..parallel import Ranks, Replicas, connect

APART = 1_000_003
"""Between the random streams of processes that must differ."""


def count() -> int:
    """Processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This one's number among them."""
    return int(os.environ.get("RANK", "0"))


def join(device: str, parallel: Literal["replicate", "shard"]) -> Ranks:
    """Connect to the other processes; alone without torchrun."""
    own, size = connect(device)
    if size == 1:
        return Ranks()
    if parallel == "replicate":
        return Replicas(own, size, device=device)
    from ..shards import Shards  # takes seconds to import

    return Shards(own, size, device=device)


def place(runs: Path, name: str) -> Path:
    """Folder of a run; the other processes write theirs, needed to resume, out of the way."""
    return runs / name if rank() == 0 else runs / ".ranks" / name / str(rank())


@contextmanager
def quiet() -> Iterator[None]:
    """Let rank 0 alone speak."""
    if rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def share(whole: int, ranks: Ranks, name: str) -> int:
    """This process's part of a number that all must share alike."""
    if whole % ranks.size:
        raise ValueError(f"{name} is {whole}; {ranks.size} processes cannot share it alike.")
    return whole // ranks.size
