"""The command line as a user meets it: exit codes, messages, sweeps, interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from embodied.cli import main as cli
from embodied.cli.launch import launch
from embodied.cli.run import Run

from .parts import ToySettings

RULES = (lambda s: f"lanes is {s.lanes}; at least 1 is needed." if s.lanes < 1 else None,)


def execute(settings: ToySettings, run: Run) -> None:
    """Pretend to work: leave the lanes in the summary; some prompts fail in their own ways."""
    if settings.prompt == "mistake":
        raise ValueError("the mistake in words")
    if settings.prompt == "fault":
        raise KeyError("a fault of ours")
    run.figures["lanes"] = settings.lanes
    run.finish()


def toy(arguments: Sequence[str]) -> int:
    return launch("toy", ToySettings, execute, arguments, rules=RULES, may_change=("steps",))


@pytest.fixture(autouse=True)
def toy_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a command `toy` and work in an empty folder with the files it needs."""
    module = types.ModuleType("embodied.cli.toy")
    module.main = toy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "embodied.cli.toy", module)
    monkeypatch.setitem(cli.COMMANDS, "toy", "a toy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "toy.yaml").write_text("defaults: [{experiment: null}, _self_]\npolicy: {name: flow_mlp}\n")
    (tmp_path / "files" / "experiment").mkdir()
    (tmp_path / "files" / "experiment" / "big.yaml").write_text("# @package _global_\nlanes: 64\n")


def run(*words: str) -> int:
    return cli.main(["toy", "--config-dir", "files", *words])


def test_a_finished_command_exits_with_0_and_leaves_its_folder() -> None:
    assert run("run.name=a", "seed=3") == 0
    names = ["config.yaml", "media", "metrics.jsonl", "report.html", "summary.json"]
    assert sorted(p.name for p in Path("runs/a").iterdir()) == names
    assert "seed: 3\n" in Path("runs/a/config.yaml").read_text()


def test_the_default_name_is_the_experiment_or_command_and_the_time() -> None:
    run()
    run("experiment=big")
    first, second = sorted(p.name for p in Path("runs").iterdir())
    assert first.startswith("big-2") and second.startswith("toy-2")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["lanse=1"], 2, "embodied: Unknown setting 'lanse'. Did you mean 'lanes'?"),
        (["lanes=0"], 2, "embodied: lanes is 0; at least 1 is needed."),
        (["--foo"], 2, "embodied: Unknown flag '--foo'."),
        (["resume=true"], 2, "embodied: resume=true wants the run to continue: add run.name="),
        (["run.name=../up"], 2, "embodied: run.name is a folder under runs/, got '../up'."),
        (["run.name=none", "resume=true"], 1, "embodied: resume=true, but runs/none holds no run to continue."),
        (["prompt=mistake"], 1, "embodied: the mistake in words"),
    ],
)
def test_a_users_mistake_is_one_message_without_a_traceback(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == code
    error = capsys.readouterr().err
    assert error.startswith(sentence) and "Traceback" not in error


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        run("prompt=fault")


def test_what_is_refused_at_composition_leaves_no_folder() -> None:
    assert run("lanes=0", "run.name=a") == 2
    assert run("-m", "lanes=1,0", "run.name=a") == 2
    assert not Path("runs").exists()


def test_an_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("embodied: No command 'trian'. Did you mean 'train'?")


def test_help_names_every_command_and_a_commands_help_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in cli.COMMANDS)
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert "lanes: 8" in text and "  blocks: 2" in text and "'key=[1, 2]'" in text
    assert "  keep: 3  # Checkpoints kept; 0 keeps all." in text
    assert re.search(r"experiment=.  one of .*\bbig\b", text) and re.search(r"policy=.  one of .*flow_mlp", text)


def test_help_says_what_a_setting_without_a_value_wants(capsys: pytest.CaptureFixture[str]) -> None:
    for command, line in (
        ("collect", "store: <a path>  # Folder of the store"),
        ("eval", "  path: <text>  # A run's folder"),
    ):
        assert cli.main([command, "--help"]) == 0
        assert line in capsys.readouterr().out


def test_every_command_listed_exists() -> None:
    missing = [c for c in cli.COMMANDS if c != "toy" and not (Path(cli.__file__).parent / f"{c}.py").is_file()]
    assert missing == []


def test_showing_the_settings_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cfg", "experiment=big") == 0
    assert "lanes: 64" in capsys.readouterr().out and not Path("runs").exists()


def test_a_sweep_writes_one_folder_per_job_and_goes_on_after_a_failed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", "seed=4,5,6", "lanes=${seed}", "run.name=s") == 0
    assert [Path(f"runs/s/{job}/summary.json").is_file() for job in range(3)] == [True] * 3
    assert "lanes: 6" in Path("runs/s/2/config.yaml").read_text()
    assert run("-m", "prompt=mistake,fine", "run.name=t") == 1
    assert "embodied: runs/t/0: the mistake in words" in capsys.readouterr().err
    assert Path("runs/t/1/summary.json").is_file()


def test_a_run_goes_on_with_its_own_settings_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    run("experiment=big", "run.name=a", "seed=3")
    assert run("run.name=a") == 1
    assert run("run.name=a", "resume=true") == 0
    assert "lanes: 64" in Path("runs/a/config.yaml").read_text() and "seed: 3" in Path("runs/a/config.yaml").read_text()
    assert run("run.name=a", "resume=true", "steps=9") == 0
    capsys.readouterr()
    assert run("run.name=a", "resume=true", "lanes=5") == 2
    assert "runs/a was begun with other settings: lanes: 64 there, 5 here." in capsys.readouterr().err
    assert run("run.name=a", "overwrite=true") == 0
    assert "lanes: 8" in Path("runs/a/config.yaml").read_text()


def test_interruption_leaves_with_a_word_and_no_traceback() -> None:
    code = (
        "import sys, time, types\n"
        "from embodied.cli import main as cli\n"
        "module = types.ModuleType('x'); module.main = lambda a: print('up', flush=True) or time.sleep(30)\n"
        "sys.modules['embodied.cli.toy'] = module; cli.COMMANDS['toy'] = ''\n"
        "sys.exit(cli.main(['toy']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdout.readline() == "up\n"
        os.kill(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=60)
    assert (child.returncode, error) == (cli.FAILED, "embodied: interrupted\n")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m embodied.cli.main --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
