"""Two processes make the update of one: replicated or sharded, whole or in parts, saved and loaded by either."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied.parallel import Ranks

from . import together
from .together import Strategy, imitate, reinforce

STRATEGIES: tuple[Strategy, ...] = ("replicate", "shard")

SETTINGS: dict[str, dict[str, Any]] = {
    "parts, recomputed": {"recompute_behaviour": True, "microbatch": 4},
    "expert critic, limit of divergence": {"critic": "expert", "target_kl": 1e-4, "learning_rate": 1e-2},
    "encoder trains": {"frozen": False},
    "after imitation": {"after_imitation": True},
    "groups": {"group": 4},
}


def reinforced(settings: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    algorithm = reinforce(ranks, **settings)
    return {"state": algorithm.state_dict(), "policy": algorithm.policy_state, "figures": algorithm.figures}


def imitated(settings: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    algorithm = imitate(ranks, **settings)
    return {"state": algorithm.state_dict(), "policy": algorithm.policy_state, "figures": algorithm.figures}


def saved(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Train, write in shards, read back into another algorithm, train on; and the state that it was read to."""
    algorithm = reinforce(ranks)
    ranks.save_shards(folder, algorithm.parts())
    twin = reinforce(type(ranks)(ranks.rank, ranks.size), seed=5)
    twin.load_state_dict(ranks.load_shards(folder))
    return {"state": algorithm.state_dict(), "again": twin.state_dict()}


def resumed(folder: Path, ranks: Ranks) -> dict[str, Any]:
    algorithm = reinforce(ranks, seed=5)
    algorithm.load_state_dict(ranks.load_shards(folder))
    return {"state": algorithm.state_dict()}


def from_whole(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    algorithm = reinforce(ranks, seed=5)
    algorithm.load_state_dict(state)
    return {"state": algorithm.state_dict()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Everything that two processes are asked to do, in one start of them."""
    folder = tmp_path_factory.mktemp("ranks")
    works: dict[str, tuple[Strategy, together.Work]] = {}
    together.alone(partial(saved, folder / "by one"))
    whole = reinforce(Ranks()).state_dict()
    for strategy in STRATEGIES:
        works |= {f"{name} {strategy}": (strategy, partial(reinforced, chosen)) for name, chosen in SETTINGS.items()}
        works[f"imitate {strategy}"] = (strategy, partial(imitated, {"microbatch": 5}))
        works[f"saved {strategy}"] = (strategy, partial(saved, folder / strategy))
        works[f"from one {strategy}"] = (strategy, partial(resumed, folder / "by one"))
        works[f"from whole {strategy}"] = (strategy, partial(from_whole, whole))
    return {"folder": [{"path": str(folder)}], **together.in_two(works, folder)}


def assert_close(mine: Any, theirs: Any, *, exact: bool = False) -> None:
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        for name in theirs:
            assert_close(mine[name], theirs[name], exact=exact)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_close(one, other, exact=exact)
    elif torch.is_tensor(theirs):
        torch.testing.assert_close(mine, theirs, rtol=0 if exact else 1e-3, atol=0 if exact else 1e-4)
    elif isinstance(theirs, float) and not exact:
        assert mine == pytest.approx(theirs, rel=1e-2, abs=1e-4)
    else:
        assert mine == theirs


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_make_the_update_of_one(name: str, strategy: Strategy, results: dict[str, Any]) -> None:
    one = together.alone(partial(reinforced, SETTINGS[name]))
    for rank in results[f"{name} {strategy}"]:
        assert_close(rank["policy"], one["policy"])
        assert_close(rank["figures"], one["figures"])
        assert_close(rank["state"]["critic"], one["state"]["critic"])
        assert_close(rank["state"]["optimiser"], one["state"]["optimiser"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_imitate_like_one(strategy: Strategy, results: dict[str, Any]) -> None:
    one = together.alone(partial(imitated, {}))
    for rank in results[f"imitate {strategy}"]:
        assert_close(rank["policy"], one["policy"])
        assert_close(rank["figures"], one["figures"])


def test_the_limit_of_divergence_was_met(results: dict[str, Any]) -> None:
    first = results["expert critic, limit of divergence shard"][0]["figures"][0]
    assert 0 < first["update/policy_steps"] < 8


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_written_in_shards_comes_back_exactly(strategy: Strategy, results: dict[str, Any]) -> None:
    for rank in results[f"saved {strategy}"]:
        for part in ("agent", "critic", "optimiser", "schedule", "updates"):
            assert_close(rank["again"][part], rank["state"][part], exact=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_of_two_processes_resumes_in_one(strategy: Strategy, results: dict[str, Any]) -> None:
    folder = Path(results["folder"][0]["path"]) / strategy
    algorithm = reinforce(Ranks(), seed=5)
    algorithm.load_state_dict(Ranks().load_shards(folder))
    for part in ("agent", "critic", "optimiser", "schedule", "updates"):
        assert_close(algorithm.state_dict()[part], results[f"saved {strategy}"][0]["state"][part], exact=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["one", "whole"])
def test_a_state_of_one_process_resumes_in_two(kind: str, strategy: Strategy, results: dict[str, Any]) -> None:
    one = reinforce(Ranks()).state_dict()
    for rank in results[f"from {kind} {strategy}"]:
        for part in ("agent", "critic", "optimiser", "schedule", "updates"):
            assert_close(rank["state"][part], one[part], exact=True)


def test_every_process_writes_its_own_rows_only(results: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    folder = Path(results["folder"][0]["path"]) / "shard"
    first, second = (load_file(folder / f"{rank}.safetensors") for rank in range(2))
    whole = reinforce(Ranks()).policy.state_dict()
    for name, tensor in whole.items():
        if name.rpartition(".")[2] in ("weight", "bias"):
            assert len(first[f"/agent/{name}"]) + len(second[f"/agent/{name}"]) == len(tensor)
    assert "/acting" in first and "/acting" not in second
    assert not list(folder.glob("*.pt")) and not list(folder.glob("*.pkl"))
