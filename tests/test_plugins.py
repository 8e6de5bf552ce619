"""A package outside the tree brings a simulator, a robot, a policy and an algorithm, and is used like our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from embodied import plugins

SOURCE = Path(__file__).parent / "outside"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build a wheel of tests/outside and unpack it where only this environment looks; our own stays clean."""
    build, target = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("site")
    shutil.copytree(SOURCE, build, dirs_exist_ok=True)
    make = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(build)!r}))"
    output = subprocess.run([sys.executable, "-c", make], cwd=build, capture_output=True, text=True, check=True).stdout
    zipfile.ZipFile(build / output.splitlines()[-1]).extractall(target)
    return {**os.environ, "PYTHONPATH": str(target)}


def command(*words: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "embodied.cli.main", *words]
    return subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


def test_an_experiment_of_the_package_trains_its_policy_in_its_simulator_by_its_algorithm(
    installed: dict[str, str], tmp_path: Path
) -> None:
    done = command("train", "experiment=acme_rail", "run.name=a", environment=installed, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "runs" / "a" / "config.yaml").read_text()
    assert "name: acme_rail" in config and "name: acme_linear" in config and "acme.algorithm.BestOfBatch" in config
    records = [json.loads(line) for line in (tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()]
    [update] = [record for record in records if record["phase"] == "rl"]
    assert update["loss/policy"] > 0 and update["policy_version"] == 1
    summary = json.loads((tmp_path / "runs" / "a" / "summary.json").read_text())
    assert [(row["phase"], row["task"]) for row in summary["eval"]][-2:] == [("final", "centre"), ("final", "all")]

    # The policy it left drives the package's robot.
    drive = (
        "import numpy as np, embodied\n"
        "from embodied import plugins, tree\n"
        "robot = plugins.load('embodied.robots', 'acme_cart')(start=0.3)\n"
        "assert robot.spec.robot == 'cart'\n"
        "robot.connect()\n"
        "chunk = embodied.load('runs/a').act(tree.map(lambda leaf: leaf[None], robot.observe()), explore=False)\n"
        "executed = robot.act(chunk.actions[0, 0])\n"
        "assert executed.shape == (1,) and np.isfinite(robot.observe().state).all()\n"
        "robot.stop(); robot.disconnect()\n"
    )
    subprocess.run([sys.executable, "-c", drive], env=installed, cwd=tmp_path, check=True, timeout=60)


def test_a_plugin_without_a_file_is_chosen_by_name_and_its_settings_are_checked(
    installed: dict[str, str], tmp_path: Path
) -> None:
    done = command("train", "sim=acme_rail", "sim.length=3", "--cfg", environment=installed, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sim:\n  name: acme_rail\n  length: 3.0\n  time_limit: 6\n" in done.stdout
    wrong = command("train", "sim=acme_rail", "sim.lenght=3", environment=installed, folder=tmp_path)
    assert wrong.returncode == 2
    assert (
        "Unknown setting 'sim.lenght'. Did you mean 'length'? sim (acme_rail) takes: length, time_limit."
        in wrong.stderr
    )


def test_nothing_of_it_is_left_in_our_environment() -> None:
    assert "acme_rail" not in plugins.names("embodied.sims")


def test_an_unknown_plugin_is_refused_with_the_nearest_and_the_installed_ones() -> None:
    with pytest.raises(
        ValueError, match=r"No policy named 'flow_mpl'\. Did you mean 'flow_mlp'\? Installed: .*flow_mlp"
    ):
        plugins.load("embodied.policies", "flow_mpl")
