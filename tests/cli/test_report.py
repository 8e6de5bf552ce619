"""The page of a run: what it shows, and that it needs nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied.cli import curves, main, media, report, sweep
from embodied.metrics import wilson
from embodied.types import Observation

from .test_run import make


def finished(folder: Path, *, seed: int = 0, end: int = 250, lanes: int = 8) -> Path:
    """A run that improved from 128 of 256 to `end`."""
    with make(folder, seed=seed, lanes=lanes, prompt="<b>not bold</b>") as run:
        run.log(50, "sft", {"loss/policy": 0.5}, policy_version=0)
        run.evaluation("sft", "all", policy_version=0, sampler="ode", episodes=256, successes=128)
        for update in range(1, 6):
            run.env_steps = 1000 * update
            figures = {
                "episode/success": 0.1 * update,
                "episode/count": 10.0,
                "loss/policy": 1 / update,
                "ratio/first": 0.0,
            }
            figures |= {"time/act_s": 0.0, "time/step_s": 0.0, "time/update_s": 0.0}
            if update in (2, 4):
                figures |= {"eval/success": 0.2 * update, "eval/count": 40.0}
            run.log(update, "rl", figures, policy_version=update)
        run.evaluation("final", "all", policy_version=5, sampler="ode", episodes=256, successes=end)
        run.figures |= {"final/all": end / 256}
        run.finish()
    (run.media / "after.mp4").write_bytes(b"")
    (run.media / "first_batch.png").write_bytes(b"")
    return folder


def test_the_page_shows_start_end_curves_videos_figures_and_settings(tmp_path: Path) -> None:
    page = report.write(finished(tmp_path / "a")).read_text()
    low, high = wilson(250, 256)
    assert "50.0%" in page and "97.7%" in page and f"{low:.1%} \N{EN DASH} {high:.1%}" in page
    assert page.count("<svg") == 2  # the learning curve, and loss/policy; what never changed is told in words
    assert re.search(r"Constant throughout: ratio/first 0, ", page)
    assert '<video src="media/after.mp4"' in page and '<img src="media/first_batch.png"' in page
    assert "final/all" in page and "0.9766" in page
    assert "&lt;b&gt;not bold&lt;/b&gt;" in page and "<b>not bold" not in page
    assert (tmp_path / "a" / "media" / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"


def test_the_page_refers_to_nothing_outside_its_folder(tmp_path: Path) -> None:
    page = report.write(finished(tmp_path / "a")).read_text()
    assert (
        re.findall(r"""(?:src|href|action)\s*=\s*["'](?:https?:|//)|@import|url\(\s*["']?(?:https?:|//)""", page) == []
    )
    assert "<script" not in page


def test_training_and_evaluated_success_are_apart_with_their_own_intervals(tmp_path: Path) -> None:
    records = report.read_metrics(finished(tmp_path / "a") / "metrics.jsonl")
    train, test = curves.success_points(records, "episode"), curves.success_points(records, "eval")
    assert [p.steps for p in train] == [1000, 2000, 3000, 4000, 5000] and [p.steps for p in test] == [2000, 4000]
    assert (train[0].low, train[0].high) == wilson(1, 10)
    assert (test[1].low, test[1].high) == wilson(32, 40)


def test_several_tasks_have_a_curve_each_with_their_own_counts(tmp_path: Path) -> None:
    with make(tmp_path / "a") as run:
        for update in (1, 2):
            run.env_steps = 1000 * update
            figures = {"eval/success": 0.5, "eval/count": 40.0}
            figures |= {f"eval/{kind}/{task}": v for task, s in (("lift", 0.25), ("push", 0.75)) for kind, v in (("success", s), ("count", 20.0))}
            run.log(update, "rl", figures, policy_version=update)
        run.finish()
    records = report.read_metrics(tmp_path / "a" / "metrics.jsonl")
    (first, _) = curves.success_points(records, "eval", "lift")
    assert first.rate == 0.25 and (first.low, first.high) == wilson(5, 20)
    page = report.write(tmp_path / "a").read_text()
    assert ">lift<" in page and ">push<" in page


def test_stills_show_every_camera_and_instruction_of_the_first_lanes(tmp_path: Path) -> None:
    pictures = np.zeros((8, 4, 4, 3), np.uint8)
    obs = Observation(
        images={"front": pictures, "wrist": pictures}, state=np.zeros((8, 2), np.float32),
        prompt=np.array(["lift the red cube"] * 8), time=np.zeros(8),
    )  # fmt: skip
    assert media.stills(obs, tmp_path / "first.png", count=3)
    assert (tmp_path / "first.png").read_bytes()[:4] == b"\x89PNG"
    assert not media.stills(replace(obs, images={}), tmp_path / "none.png") and not (tmp_path / "none.png").exists()


def test_a_run_that_has_not_finished_gets_what_there_is(tmp_path: Path) -> None:
    with make(tmp_path / "a"):
        pass
    assert "not finished" in report.write(tmp_path / "a").read_text()
    with make(tmp_path / "b") as run:
        run.log(1, "rl", {"loss/policy": float("nan")}, policy_version=1)
    assert "not finished" in report.write(tmp_path / "b").read_text()


def test_the_command_rebuilds_a_page_by_folder_or_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = finished(tmp_path / "runs" / "a")
    for given in ("a", "runs/a", str(folder)):
        assert main.main(["report", given]) == 0
        (folder / "report.html").unlink()
    capsys.readouterr()
    assert main.main(["report", "b"]) == 1
    assert "embodied: b is no run's folder: it holds no config.yaml." in capsys.readouterr().err
    assert main.main(["report"]) == 2


def test_a_sweep_gets_a_row_per_run_and_the_spread_over_seeds_of_every_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {(8, 0): 240, (8, 1): 256, (8, 2): 250, (9, 0): 128, (9, 1): 130}
    for job, ((lanes, seed), end) in enumerate(ends.items()):
        finished(tmp_path / "s" / str(job), seed=seed, end=end, lanes=lanes)
    assert main.main(["report", str(tmp_path / "s")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["job", "lanes", "seed", "wall_s", "final/all"]
    assert rows[2][:3] == ["1", "8", "1"] and rows[2][-1] == "1"
    assert [(row[0], row[1], row[-1]) for row in rows[6:12]] == [
        ("median", "8", f"{250 / 256:.4g}"),
        ("minimum", "8", f"{240 / 256:.4g}"),
        ("maximum", "8", "1"),
        ("median", "9", f"{129 / 256:.4g}"),
        ("minimum", "9", f"{128 / 256:.4g}"),
        ("maximum", "9", f"{130 / 256:.4g}"),
    ]
    page = (tmp_path / "s" / "report.html").read_text()
    assert all(f'href="{job}/report.html"' in page for job in range(5))


def test_the_table_of_runs_that_failed_has_gaps(tmp_path: Path) -> None:
    finished(tmp_path / "s" / "0")
    with make(tmp_path / "s" / "1", seed=1):
        pass
    rows = [line.split() for line in sweep.tabulate(sweep.read(tmp_path / "s")).text().splitlines()]
    assert rows[0] == ["job", "prompt", "seed", "wall_s", "final/all"]
    assert rows[2] == ["1", "1", "-", "-"]  # an empty prompt
