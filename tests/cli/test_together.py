"""The train command under torchrun: two processes, one run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from embodied import checkpoint

TORCHRUN = Path(sys.executable).with_name("torchrun")
EMBODIED = Path(sys.executable).with_name("embodied")

WORDS = [
    "train", "experiment=reach_state", "run.name=two", "collect.episodes=2", "supervise.steps=5", "supervise.max_steps=5",
    "supervise.batch_size=32", "rollout.lanes=8", "rollout.decisions=4", "rollout.updates=2", "rollout.checkpoint_every=1",
    "algorithm.minibatch=16", "algorithm.critic_warmup=0", "eval.lanes=4", "eval.episodes=4", "eval.final_episodes=4",
]  # fmt: skip


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(TORCHRUN), "--standalone", "--nproc-per-node", "2", "--no-python", str(EMBODIED), *WORDS, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["replicate", "shard"])
def test_two_processes_train_one_policy_and_resume(parallel: str, tmp_path: Path) -> None:
    done = launch(tmp_path, f"parallel={parallel}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report:") == 1  # one speaks
    first, second = (tmp_path / "runs" / name for name in ("two", ".ranks/two/1"))
    assert json.loads((first / "summary.json").read_text())["figures"]["sft_steps"] == 5
    one, other = (checkpoint.load(folder / "checkpoints") for folder in (first, second))
    assert one.version == other.version == 2
    for name, tensor in one.model.items():
        torch.testing.assert_close(other.model[name], tensor, rtol=0, atol=1e-6, equal_nan=True)
    worlds = [part.trainer["experience"]["worlds"] for part in (one, other)]
    assert worlds[0].shape[0] == 4 and not (worlds[0] == worlds[1]).all()  # half of the lanes each, others for each
    for folder in (first, second):  # as if interrupted before the second update
        shutil.rmtree(folder / "checkpoints" / "2")
    again = launch(tmp_path, f"parallel={parallel}", "resume=true")
    assert again.returncode == 0, again.stderr
    resumed = checkpoint.load(first / "checkpoints")
    assert resumed.version == 2
    for name, tensor in one.model.items():
        torch.testing.assert_close(resumed.model[name], tensor, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.slow
def test_several_processes_want_a_name(tmp_path: Path) -> None:
    words = [word for word in WORDS if not word.startswith("run.name")]
    done = subprocess.run([str(EMBODIED), *words], cwd=tmp_path, env=os.environ | {"WORLD_SIZE": "2"}, capture_output=True, text=True)
    assert done.returncode == 2 and "add run.name=" in done.stderr
