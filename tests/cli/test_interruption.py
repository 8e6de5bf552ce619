"""A real training run is interrupted and killed, and goes on from what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embodied import checkpoint
from embodied.cli import main
from embodied.data.store import Store

ENDLESS = [
    "experiment=reach_state",
    "supervise.steps=2",
    "supervise.max_steps=2",
    "collect.episodes=1",
    "eval.every=1000",
]
ENDLESS += ["eval.lanes=4", "eval.episodes=4", "eval.final_episodes=4", "algorithm.minibatch=8", "rollout.lanes=4"]
ENDLESS += ["rollout.decisions=2", "rollout.checkpoint_every=1", "rollout.updates=100000"]


@contextmanager
def training(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`embodied train`, stopped at the latest when the test ends."""
    line = [sys.executable, "-m", "embodied.cli.main", "train", "run.name=a", *words]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for_update(folder: Path, update: int) -> None:
    """Wait until reinforcement has saved this update."""
    end = time.monotonic() + 180
    while max(checkpoint.versions(folder / "runs" / "a" / "checkpoints"), default=0) < update:
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.05)


def updates(folder: Path) -> list[int]:
    """Updates of reinforcement in metrics.jsonl, in order."""
    lines = (folder / "runs" / "a" / "metrics.jsonl").read_text().splitlines()
    return [r["step"] for r in map(json.loads, lines) if r["phase"] == "rl"]


def test_ctrl_c_leaves_a_checkpoint_and_a_kill_loses_at_most_the_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = tmp_path / "runs" / "a" / "checkpoints"
    with training(tmp_path, *ENDLESS) as child:
        wait_for_update(tmp_path, 2)
        os.kill(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=180)
    assert child.returncode == 1
    assert "resume=true" in error and "Traceback" not in error
    stopped = max(checkpoint.versions(checkpoints))
    assert updates(tmp_path) == list(range(1, stopped + 1))

    with training(tmp_path, "resume=true") as child:
        wait_for_update(tmp_path, stopped + 2)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate(timeout=180)
    saved = max(checkpoint.versions(checkpoints))

    monkeypatch.chdir(tmp_path)
    assert main.main(["train", "run.name=a", "resume=true", f"rollout.updates={saved + 2}"]) == 0
    assert updates(tmp_path) == list(range(1, saved + 3))
    summary = json.loads((tmp_path / "runs" / "a" / "summary.json").read_text())
    assert [row["phase"] for row in summary["eval"] if row["task"] == "all"] == ["sft", "final"]


def test_a_collection_that_is_killed_keeps_every_episode_it_had(tmp_path: Path) -> None:
    words = ["collect", "store=demonstrations", "sim.tasks=[reach]", "episodes=100000", "lanes=4", "run.name=a"]
    store = tmp_path / "demonstrations"
    with subprocess.Popen([sys.executable, "-m", "embodied.cli.main", *words], cwd=tmp_path, stdout=subprocess.DEVNULL) as child:
        try:
            deadline = time.monotonic() + 120
            seen = 0
            while seen < 3:
                assert time.monotonic() < deadline and child.poll() is None
                time.sleep(0.2)
                if (store / "FORMAT.json").is_file():
                    with Store.open(store) as reader:
                        seen = len(reader)
        finally:
            child.kill()
    with Store.open(store, write=True) as opened:  # recovers
        assert len(opened) >= seen
        assert all(opened.read(id).success for id in opened.ids)
    assert main.main(["data", "verify", str(store)]) == 0
