"""The set-up: complete pins, no addresses, checks without a blind spot."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LINKED = ("sims", "robots", "policies")


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return {r.name: r for r in map(Requirement, lines)}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def test_every_requirement_is_one_exact_pin() -> None:
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; .+)?", line), line


def test_the_pins_meet_what_the_project_declares() -> None:
    for requirement in declared():
        (version,) = (s.version for s in pins()[requirement.name.lower()].specifier)
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_what_needs_cuda_is_pinned_for_linux_alone() -> None:
    for name, requirement in pins().items():
        if name.startswith(("nvidia", "cuda", "triton")):
            assert requirement.marker == Marker("sys_platform == 'linux'"), name


@pytest.mark.parametrize(
    "file", ["requirements.txt", "pyproject.toml", "Makefile", ".ci/run", ".ci/setup", ".ci/check"]
)
def test_no_file_of_the_set_up_holds_an_address(file: str) -> None:
    assert not re.search(
        r"https?://|index-url|find-links",
        (ROOT / file).read_text().replace("--no-emit-find-links", "").replace("--no-emit-index-url", ""),
    )


def test_a_second_set_up_does_nothing(tmp_path: Path) -> None:
    for name in (".ci", ".python-version", "pyproject.toml", "requirements.txt"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    made = tmp_path / ".venv" / "bin" / "embodied"
    made.parent.mkdir(parents=True)
    made.touch(mode=0o755)
    wanted = subprocess.run(
        "cat .python-version pyproject.toml requirements.txt | cksum",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (tmp_path / ".venv" / "installed").write_text(f"{wanted} torch=default\n")
    nothing_on_the_path = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", ".ci/setup"], cwd=tmp_path, env=nothing_on_the_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("folder", LINKED)
def test_a_type_error_in_a_plugin_folder_fails_the_check(folder: str, tmp_path: Path) -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / folder / "planted.py").write_text('"""A mistake."""\n\nnumber: int = "text"\n')
    check = subprocess.run(["bash", ".ci/check"], cwd=tmp_path, capture_output=True, text=True)
    assert check.returncode != 0
    assert f"{folder}/planted.py:3: error" in check.stdout
