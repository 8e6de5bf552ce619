"""A package outside the tree brings a simulator, a robot, a policy and an algorithm, and is used like our own."""

from __future__ import annotations

import json
import os
import re
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


SCRIPT = """
import sys
import numpy as np
import embodied
from embodied import plugins, tree
from embodied.cli.main import main

def say(*words):
    print("EXIT", main(words), flush=True)

say("train", "experiment=acme_rail", "run.name=a")
say("train", "sim=acme_rail", "sim.length=3", "--cfg")
say("train", "sim=acme_rail", "sim.lenght=3")

# The policy it left drives the package's robot.
robot = plugins.load("embodied.robots", "acme_cart")(start=0.3)
assert robot.spec.robot == "cart"
robot.connect()
seen = tree.map(lambda leaf: leaf[None], robot.observe())
executed = robot.act(embodied.load("runs/a").act(seen, explore=False).actions[0, 0])
assert executed.shape == (1,) and np.isfinite(robot.observe().state).all()
robot.stop()
robot.disconnect()
print("DROVE")
"""


@pytest.fixture(scope="module")
def session(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """Use the package in one fresh interpreter: its folder, what each command printed, and its complaints."""
    folder = tmp_path_factory.mktemp("work")
    line = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(line, env=installed, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, re.split(r"(?<=EXIT \d)\n", done.stdout), done.stderr


def test_an_experiment_of_the_package_trains_its_policy_in_its_simulator_by_its_algorithm(
    session: tuple[Path, list[str], str],
) -> None:
    folder, outputs, _ = session
    assert outputs[0].endswith("EXIT 0")
    config = (folder / "runs" / "a" / "config.yaml").read_text()
    assert "name: acme_rail" in config and "name: acme_linear" in config and "acme.algorithm.BestOfBatch" in config
    records = [json.loads(line) for line in (folder / "runs" / "a" / "metrics.jsonl").read_text().splitlines()]
    [update] = [record for record in records if record["phase"] == "rl"]
    assert update["loss/policy"] > 0 and update["policy_version"] == 1
    summary = json.loads((folder / "runs" / "a" / "summary.json").read_text())
    assert [(row["phase"], row["task"]) for row in summary["eval"]][-2:] == [("final", "centre"), ("final", "all")]


def test_the_policy_it_left_drives_the_packages_robot(session: tuple[Path, list[str], str]) -> None:
    assert session[1][-1] == "DROVE\n"


def test_a_plugin_without_a_file_is_chosen_by_name_and_its_settings_are_checked(
    session: tuple[Path, list[str], str],
) -> None:
    _, outputs, complaints = session
    assert "sim:\n  name: acme_rail\n  length: 3.0\n  time_limit: 6\n" in outputs[1] and outputs[1].endswith("EXIT 0")
    assert outputs[2].endswith("EXIT 2")
    assert (
        "Unknown setting 'sim.lenght'. Did you mean 'length'? sim (acme_rail) takes: length, time_limit." in complaints
    )


def test_nothing_of_it_is_left_in_our_environment() -> None:
    assert "acme_rail" not in plugins.names("embodied.sims")


def test_an_unknown_plugin_is_refused_with_the_nearest_and_the_installed_ones() -> None:
    with pytest.raises(
        ValueError, match=r"No policy named 'flow_mpl'\. Did you mean 'flow_mlp'\? Installed: .*flow_mlp"
    ):
        plugins.load("embodied.policies", "flow_mpl")


def test_a_plugin_whose_packages_are_missing_names_them_and_the_extras() -> None:
    hidden = "import sys; sys.modules['transformers'] = None; from embodied import plugins; plugins.load('embodied.policies', 'pi0')"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: The policy 'pi0' cannot be imported: import of transformers halted")
    assert "embodied-rl has the extras" in last and "pi, smolvla" in last
