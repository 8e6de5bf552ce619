"""The README does what it says: its commands run in order, at toy scale, and it stays short."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from embodied import plugins
from embodied.cli import main
from embodied.types import Observation

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
LINES = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line.strip()]
PYTHON = next(block for kind, block in BLOCKS if kind == "python")

_TRAIN = (
    "supervise.steps=2 supervise.max_steps=2 collect.episodes=1 rollout.lanes=4 rollout.decisions=2 "
    "algorithm.minibatch=8 eval.lanes=4 eval.episodes=4 eval.final_episodes=4 eval.film=false rollout.updates=1"
)
_SEE = f"{_TRAIN} perceive.steps=1 perceive.scenes=8 perceive.batch_size=4"
TOY = {
    "train -m experiment=demo_full": f"{_SEE} variants={{more_supervised:['supervise.extra_s=0.1']}}",
    "train -m experiment=ablations": f"{_TRAIN} rollout.lanes=8 seed=0",
    "train experiment=tabletop": _SEE,
    "train experiment=vla": f"{_TRAIN} rollout.lanes=2 algorithm.minibatch=4 policy.horizon=4",
    "train": _TRAIN,
    "eval": "episodes=4 lanes=4 film=false",
    "collect": "episodes=1 lanes=4",
    "sft": "steps=2",
    "bench sim": "pairs=1",
    "bench store": "minutes=0.1",
    "bench policy": "pairs=1 decisions=128 minibatch=64 epochs=1",
}
"""Words that make a command of the README small."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, with a checkpoint of LeRobot's; later ones use what earlier ones left."""
    folder = tmp_path_factory.mktemp("readme")
    spec = plugins.load("embodied.sims", "tabletop")().embodiment
    plugins.load("embodied.policies", "smolvla").write_random(folder / "checkpoint", spec)
    return folder


def words(line: str) -> list[str]:
    """A line of the README as the arguments of `embodied`, at toy scale; a run that goes on adds one update."""
    program, *given = shlex.split(line, comments=True)
    assert program == "embodied", line
    small = next((text for command, text in TOY.items() if " ".join(given).startswith(command)), "")
    if "resume=true" in given:
        small = small.replace("rollout.updates=1", "rollout.updates=2")
    return given if "--help" in given else [*given, *small.split()]


SLOW = [line for line in LINES if line.startswith(("embodied bench", "embodied doctor", "embodied train -m experiment=demo_full", "embodied train -m experiment=ablations"))]
"""Commands that take long however small; each has tests of its own."""
ORDINARY = [line for line in LINES if line.startswith("embodied") and line not in SLOW]
MADE = [line for line in LINES if line.startswith("make")]


def test_every_line_of_the_readme_is_run_by_a_test() -> None:
    assert set(LINES) == {*ORDINARY, *SLOW, *MADE} and len(ORDINARY) >= 8 and len(MADE) >= 2


@pytest.mark.parametrize("line", ORDINARY)
def test_a_command_of_the_readme_runs(line: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert main.main(words(line)) == 0


def test_the_three_lines_of_python_act(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import embodied

    monkeypatch.chdir(workplace)
    spec = embodied.load("runs/first").policy.spec
    obs = Observation(
        images={}, state=np.zeros((2, spec.state_dim), np.float32), prompt=np.array(["", ""]), time=np.zeros(2)
    )
    names: dict[str, object] = {"obs": obs}
    exec(PYTHON, names)
    chunk = names["chunk"]
    assert chunk.actions.shape[::2] == (2, spec.action_dim) and np.isfinite(chunk.actions).all()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("line", SLOW)
def test_a_long_command_of_the_readme_runs(line: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert main.main(words(line)) == 0


@pytest.mark.parametrize("line", MADE)
def test_a_make_target_of_the_readme_exists(line: str) -> None:
    target = shlex.split(line, comments=True)
    shown = subprocess.run([*target, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".ci/setup" in shown


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) < 150
