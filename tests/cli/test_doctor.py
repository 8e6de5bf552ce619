"""`embodied doctor` tells the truth about this machine."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from embodied.cli import doctor, main

NAMES = ["python", "packages", "cpu", "gpu", "serial", "network", "disk", "gl", "omp"]


def test_json_is_one_object_with_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == NAMES
    assert code == (1 if any(f["status"] == "fault" for f in found.values()) else 0)
    assert found["python"]["facts"]["version"] == platform.python_version()
    assert found["omp"]["facts"]["now"] == os.environ["OMP_WAIT_POLICY"]


def test_a_backend_that_does_not_draw_is_a_note_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "crayon")
    finding = doctor.gl()
    assert finding.status == "note" and "crayon" in finding.text and "MUJOCO_GL" in finding.text
    assert finding.facts["backends"]["crayon"]["works"] is False


def test_a_stuck_driver_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GL_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "PROBE_S", 0.5)
    assert doctor._draw("egl") == (False, "stuck, stopped after 0.5 s")


def test_the_software_rasteriser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(doctor, "GL_PROBE", "print('RENDERER llvmpipe (LLVM 15)')")
    finding = doctor.gl()
    assert finding.status == "note" and finding.facts["software"] and "CPU (llvmpipe" in finding.text


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.disk().status == "ok"
    tmp_path.chmod(0o500)
    if not os.access(tmp_path, os.W_OK):  # root may always write
        assert doctor.disk().status == "fault"
    tmp_path.chmod(0o700)
