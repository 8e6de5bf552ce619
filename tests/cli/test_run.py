"""A run's folder: made once, written as it goes, finished with its figures."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from embodied.cli import run as runs
from embodied.cli.run import Run, RunSettings, prepare
from embodied.metrics import wilson

from .parts import ToySettings
from .test_schema import POLICY


def settings(**changes: object) -> ToySettings:
    from embodied.cli import schema

    return schema.read(ToySettings, POLICY | changes)


def make(folder: Path, **changes: object) -> Run:
    chosen = settings(**changes)
    prepare(folder, chosen)
    return Run(folder, "toy", chosen, resume=chosen.resume)


def test_a_folder_that_exists_is_refused_continued_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with make(folder) as run:
        run.log(1, "sft", {"loss/policy": 1.0}, policy_version=0)
    with pytest.raises(ValueError, match=r"a exists\. Continue it with resume=true, replace it with overwrite=true"):
        make(folder)
    with pytest.raises(ValueError, match="exclude each other"):
        make(folder, resume=True, overwrite=True)
    with make(folder, resume=True):
        assert len(runs.read_metrics(folder / runs.METRICS)) == 1
    with make(folder, overwrite=True):
        assert runs.read_metrics(folder / runs.METRICS) == []


def test_a_folder_that_is_no_run_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is no run's folder"):
        make(tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="holds no run to continue"):
        make(tmp_path, resume=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_every_record_has_the_columns_of_the_contract(tmp_path: Path) -> None:
    with make(tmp_path / "a") as run:
        run.env_steps = 40
        run.log(3, "rl", {"episode/success": 0.5}, policy_version=2)
    [record] = runs.read_metrics(run.folder / runs.METRICS)
    assert list(record) == ["step", "phase", "wall_s", "env_steps", "policy_version", "episode/success"]
    assert (record["step"], record["phase"], record["env_steps"], record["policy_version"]) == (3, "rl", 40, 2)


def test_the_console_line_is_aligned_and_holds_what_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make(tmp_path / "a") as run:
        run.log(9, "rl", {"episode/success": 0.5, "loss/policy": 1e-5}, policy_version=2, show=("episode/success",))
        run.log(10, "rl", {"episode/success": 0.25}, policy_version=2, show=("episode/success", "loss/policy"))
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"rl          9 +\d+\.\d s  success      0\.5", first)
    assert len(first) == len(second)


def test_the_summary_holds_what_the_contract_names(tmp_path: Path) -> None:
    with make(tmp_path / "a", seed=4) as run:
        run.env_steps = 7
        run.figures["gain"] = 0.4
        run.evaluation("final", "all", policy_version=3, sampler="ode", episodes=256, successes=250)
        run.finish()
    summary = json.loads((run.folder / runs.SUMMARY).read_text())
    assert {k: summary[k] for k in ("command", "seed", "env_steps", "device", "figures")} == {
        "command": "toy",
        "seed": 4,
        "env_steps": 7,
        "device": "cpu",
        "figures": {"gain": 0.4},
    }
    assert re.fullmatch(r"[0-9a-f]{40}", summary["git_commit"]) and summary["wall_s"] >= 0
    low, high = wilson(250, 256)
    assert summary["eval"] == [
        {
            "phase": "final",
            "task": "all",
            "policy_version": 3,
            "sampler": "ode",
            "episodes": 256,
            "successes": 250,
            "success_rate": 250 / 256,
            "wilson_low": low,
            "wilson_high": high,
        }
    ]


def test_an_evaluation_of_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    with make(tmp_path / "a") as run, pytest.raises(ValueError, match="one of sft, rl, online, offline, final"):
        run.evaluation("finale", "all", policy_version=0, sampler="ode", episodes=1, successes=1)


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with make(tmp_path / "a") as run:
        for phase, step in (("sft", 50), ("rl", 1), ("rl", 2), ("rl", 3)):
            run.log(step, phase, {}, policy_version=step)
        row = run.evaluation("sft", "all", policy_version=0, sampler="ode", episodes=4, successes=2)
    with (run.folder / runs.METRICS).open("a") as file:
        file.write('{"step": 4, "pha')  # cut by a kill
    with make(tmp_path / "a", resume=True) as again:
        assert again.wall_s >= runs.read_metrics(again.folder / runs.METRICS)[-1]["wall_s"]
        again.restore(2, "rl", env_steps=80, evaluations=[row])
        again.log(3, "rl", {}, policy_version=3)
        summary = again.finish()
    records = runs.read_metrics(again.folder / runs.METRICS)
    assert [(r["phase"], r["step"], r["env_steps"]) for r in records] == [
        ("sft", 50, 0),
        ("rl", 1, 0),
        ("rl", 2, 0),
        ("rl", 3, 80),
    ]
    assert summary["eval"] == [row]


SINKS = """
import sys
from pathlib import Path
from tests.cli.test_run import make
with make(Path(sys.argv[1]), run={"tensorboard": True, "wandb": "offline"}) as run:
    run.log(1, "rl", {"episode/success": 0.5}, policy_version=1)
"""


def test_tensorboard_and_offline_wandb_are_written_by_flag(tmp_path: Path) -> None:
    # In a process of its own: W&B keeps threads alive until the end.
    folder = tmp_path / "a"
    environment = {**os.environ, "WANDB_SILENT": "true"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SINKS, str(folder)], check=True, env=environment, cwd=root, timeout=180)
    assert list(folder.glob("tensorboard/events*"))
    [log] = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert b"rl/episode/success" in log.read_bytes()


def test_a_patient_loop_finishes_its_step_and_a_second_signal_interrupts() -> None:
    with runs.patient() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_is_ten_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with runs.progress(1000, "episodes") as advance:
        for _ in range(1000):
            advance(1)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"episodes {n}00/1000" for n in range(1, 11)]


def test_progress_is_a_bar_on_a_terminal() -> None:
    main, child = pty.openpty()
    termios.tcsetwinsize(child, (24, 80))
    code = "from embodied.cli.run import progress\nwith progress(4, 'episodes') as a:\n    [a(1) for _ in range(4)]"
    subprocess.run([sys.executable, "-c", code], stderr=child, check=True)
    assert select.select([main], [], [], 60)[0], "nothing was drawn"
    assert b"episodes:" in os.read(main, 65536)
    os.close(child)
    os.close(main)


def test_the_default_settings_name_no_sink() -> None:
    assert RunSettings() == RunSettings(name="", tensorboard=False, wandb="off")
