"""Checkpoints: exact, whole or absent, refused where they do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from embodied import checkpoint
from embodied.types import Spec

SPEC = Spec(
    robot="arm",
    tasks=("reach",),
    state_names=("a", "b"),
    action_names=("x",),
    action_low=(-1.0,),
    action_high=(1.0,),
    control_hz=10.0,
    cameras=(("front", 4, 4),),
)


def same(a: object, b: object) -> bool:
    """Equal bit for bit, in value, type and nesting."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.contiguous().view(-1).numpy().tobytes() == b.contiguous().view(-1).numpy().tobytes()
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def save(folder: Path, version: int, trainer: object = None, keep: int = 0) -> None:
    model = {"w": torch.full((3,), float(version))}
    checkpoint.save(folder, version, model, trainer, checkpoint.describe(SPEC, "net", {"width": 8}), keep=keep)


scalars = st.none() | st.booleans() | st.integers(-(2**127), 2**127) | st.floats() | st.text()
arrays = st.sampled_from(["f4", "f8", "i8", "u1", "?", "u8"]).flatmap(
    lambda kind: st.binary(min_size=8, max_size=8).map(lambda raw: np.frombuffer(raw, "u1").astype(kind))
)
tensors = st.lists(st.floats(width=32), max_size=4).map(torch.tensor)
nested = st.recursive(
    scalars | arrays | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(nested)
@settings(max_examples=60, deadline=None)
def test_any_trainer_state_comes_back_bit_for_bit(state: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), 1, state)
        assert same(checkpoint.load(Path(folder)).trainer, state)


def test_arrays_keep_their_shape_and_text_its_type(tmp_path: Path) -> None:
    state = {
        "zero_d": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
        "text": np.array([["a", "bc"]]),
        "half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "strided": torch.arange(6).reshape(2, 3).T,
        "nan": float("nan"),
    }
    save(tmp_path, 1, state)
    found = checkpoint.load(tmp_path).trainer
    half = found.pop("half")
    assert half.dtype == torch.bfloat16 and half.tolist() == state.pop("half").tolist()
    assert same(found, {**state, "strided": state["strided"].contiguous()})


def test_a_state_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="object at '/a/0'"):
        save(tmp_path, 1, {"a": [object()]})


def test_an_optimiser_and_the_random_streams_continue_exactly(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-2)

    def train(net: nn.Module, optimiser: torch.optim.Optimizer, rng: np.random.Generator, steps: int) -> None:
        for _ in range(steps):
            batch = torch.randn(8, 4) + torch.from_numpy(rng.standard_normal((8, 4))).float()
            optimiser.zero_grad()
            net(batch).square().mean().backward()
            optimiser.step()

    net, optimiser = make()
    rng = np.random.default_rng(3)
    train(net, optimiser, rng, 20)
    straight = net.state_dict()

    net, optimiser = make()
    rng = np.random.default_rng(3)
    train(net, optimiser, rng, 10)
    state = {"optimiser": optimiser.state_dict(), "torch": torch.get_rng_state(), "rng": rng.bit_generator.state}
    checkpoint.save(tmp_path, 10, net.state_dict(), state, checkpoint.describe(SPEC, "net", {}))

    torch.manual_seed(99)
    net, optimiser = make()
    rng = np.random.default_rng(0)
    found = checkpoint.load(tmp_path)
    net.load_state_dict(found.model)
    optimiser.load_state_dict(found.trainer["optimiser"])
    torch.set_rng_state(found.trainer["torch"])
    rng.bit_generator.state = found.trainer["rng"]
    train(net, optimiser, rng, 10)
    assert all(torch.equal(net.state_dict()[k], straight[k]) for k in straight)


def test_parameters_that_share_memory_are_saved(tmp_path: Path) -> None:
    weight = torch.ones(2, 2)
    checkpoint.save(tmp_path, 1, {"a": weight, "b": weight, "c": weight[0]}, None, {})
    assert checkpoint.load(tmp_path).model["c"].tolist() == [1.0, 1.0]


def test_the_spec_comes_back_equal(tmp_path: Path) -> None:
    save(tmp_path, 1)
    found = checkpoint.load(tmp_path)
    assert checkpoint.spec_of(found.policy) == SPEC
    assert (found.policy["architecture"], found.policy["arguments"]) == ("net", {"width": 8})


def test_last_names_the_newest_and_old_ones_are_pruned(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        save(tmp_path, version, keep=2)
    assert (tmp_path / "last").read_text() == "10"
    assert checkpoint.versions(tmp_path) == [2, 10]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "2", "last"]
    assert checkpoint.load(tmp_path, 2).version == 2


def test_a_version_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, 1, "before")
    save(tmp_path, 1, "after")
    assert checkpoint.load(tmp_path).trainer == "after"


@pytest.mark.parametrize("damage", ["mark", "pointer", "renaming", "half"])
def test_load_falls_back_to_the_newest_whole_one(damage: str, tmp_path: Path) -> None:
    """The states that a kill can leave: newest checkpoint unmarked, pointer not moved, rename not done, half written."""
    save(tmp_path, 1, "one")
    save(tmp_path, 2, "two")
    expected = "two"
    if damage == "mark":
        (tmp_path / "2" / checkpoint.COMPLETE).unlink()
        expected = "one"
    elif damage == "pointer":
        (tmp_path / "last").write_text("1")
    elif damage == "renaming":
        (tmp_path / "2").rename(tmp_path / ".2.partial")
    else:
        (tmp_path / ".3.partial").mkdir()
        (tmp_path / ".3.partial" / checkpoint.MODEL).write_bytes(b"12")
    assert checkpoint.load(tmp_path).trainer == expected
    save(tmp_path, 4, "four", keep=1)
    assert checkpoint.load(tmp_path).trainer == "four"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["4", "last"]


def test_no_checkpoint_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No whole checkpoint in"):
        checkpoint.load(tmp_path / "nothing")
    save(tmp_path, 3)
    with pytest.raises(RuntimeError, match=r"No whole checkpoint 4 in .* There are: 3"):
        checkpoint.load(tmp_path, 4)


def test_another_robot_or_task_set_is_refused_with_the_difference() -> None:
    other = replace(SPEC, robot="hand", tasks=("reach", "push"))
    with pytest.raises(
        ValueError, match=r"robot: 'arm' here, 'hand' there; tasks: 1 \(reach\) here, 2 \(reach, push\) there"
    ):
        checkpoint.require(SPEC, other)
    checkpoint.require(SPEC, other, ignore=("robot", "tasks"))


SAVER = """
import os, sys, torch
from pathlib import Path
from embodied import checkpoint
folder, log = Path(sys.argv[1]), Path(sys.argv[2])
for _ in sys.stdin:  # one line asks for one victim, forked so that torch is imported once
    victim = os.fork()
    if victim == 0:
        version = max(checkpoint.versions(folder), default=0)
        while True:
            version += 1
            tensors = {str(i): torch.full((1000,), float(version)) for i in range(20)}
            checkpoint.save(folder, version, tensors, {"first": tensors["0"], "version": version}, {}, keep=2)
            log.write_text(str(version))
    print(victim, flush=True)
    os.waitpid(victim, 0)
    print("dead", flush=True)
"""


def noted(log: Path) -> int:
    """The last version that was saved whole; 0 while there is none, or while the note is being written."""
    return int(log.read_text() or 0) if log.exists() else 0


def test_twenty_kills_while_saving_lose_no_finished_checkpoint(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    command = [sys.executable, "-c", SAVER, str(folder), str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saver:
        assert saver.stdin and saver.stdout
        finished = 0
        for _ in range(20):
            print("next", file=saver.stdin, flush=True)
            victim = int(saver.stdout.readline())
            while noted(log) <= finished:  # at least one save of its own
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.05))
            os.kill(victim, signal.SIGKILL)
            assert saver.stdout.readline() == "dead\n"
            finished = max(finished + 1, noted(log))
            found = checkpoint.load(folder)
            assert found.version >= finished
            assert all(torch.equal(t, torch.full((1000,), float(found.version))) for t in found.model.values())
            assert found.trainer["version"] == found.version
        saver.stdin.close()
    assert checkpoint.load(folder).version >= 20
