"""`embodied report RUN`: one page for a person, that opens from disk with no network.

A folder of runs (a sweep) gets a table of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import checkpoint
from . import curves, sweep
from .errors import UsageError
from .run import CONFIG, METRICS, RUNS, read_metrics, write_whole

PAGE = "report.html"
NOT_DRAWN = tuple(f"{kind}/{figure}" for kind in ("episode", "eval") for figure in ("success", "count", "invalid"))
"""Beginnings of the names that have a curve of their own, or need none."""
TIMES = {"time/act_s": "acting", "time/step_s": "simulating", "time/update_s": "updating"}
"""Parts of an update's wall time and their words; the rest is evaluation, saving and logging."""


def main(arguments: Sequence[str]) -> int:
    """Rebuild the page of one run, or of a folder of runs."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        if list(arguments) in (["-h"], ["--help"]):
            print("usage: embodied report RUN    (a run's folder, or its name under runs/)")
            return 0
        raise UsageError("report wants one run: embodied report RUN, a folder or its name under runs/.")
    given = Path(arguments[0])
    folder = given if given.is_dir() else RUNS / given
    if (folder / CONFIG).is_file():
        print(write(folder))
        return 0
    jobs = sweep.read(folder)
    if not jobs:
        raise ValueError(f"{given} is no run's folder: it holds no {CONFIG}. Runs are kept under {RUNS}/.")
    for job in jobs:
        write(job.folder)
    print(sweep.tabulate(jobs).text())
    print(write_sweep(folder))
    return 0


def write(folder: Path) -> Path:
    """Write a run's report.html and media/learning_curve.png; a run that has not finished gets what there is."""
    records = read_metrics(folder / METRICS)
    summary = sweep.summary(folder)
    media = folder / "media"
    media.mkdir(exist_ok=True)
    evaluations = summary.get("eval", [])
    panels = _panels(records)
    page = _render(
        "run",
        name=folder.resolve().name,
        summary=summary,
        headline=_headline(evaluations),
        curve=curves.learning_curve(media / "learning_curve.png", records, evaluations)
        if records or evaluations
        else "",
        videos=[_video(path, folder) for path in sorted(media.glob("*.mp4"), reverse=True)],
        pictures=[p.relative_to(folder) for p in sorted(media.glob("*.png")) if p.name != "learning_curve.png"],
        evaluations=evaluations,
        figures=summary.get("figures", {}),
        times=_times(records),
        panels=[panel for panel in panels if panel["low"] != panel["high"]],
        constants=[panel for panel in panels if panel["low"] == panel["high"]],
        checkpoints=checkpoint.versions(folder / "checkpoints"),
        config=(folder / CONFIG).read_text(encoding="utf-8"),
    )
    write_whole(folder / PAGE, page)
    return folder / PAGE


def write_sweep(folder: Path) -> Path:
    """Write the page of a folder of runs."""
    table = sweep.tabulate(sweep.read(folder))
    write_whole(folder / PAGE, _render("sweep", name=folder.resolve().name, table=table))
    return folder / PAGE


def _headline(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The reported success over all tasks, before and after."""
    whole = [row for row in evaluations if row["task"] == "all"]
    return [{"word": curves.MEASURED.get(row["phase"], row["phase"]), **row} for row in whole]


def _video(path: Path, folder: Path) -> dict[str, str]:
    return {"source": path.relative_to(folder).as_posix(), "caption": path.stem.replace("_", " ")}


def _times(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where the wall time of reinforcement went, largest share first."""
    updates = [r for r in records if r["phase"] not in ("sft", "final")]
    if len(updates) < 2:
        return []
    whole = updates[-1]["wall_s"] - updates[0]["wall_s"]
    parts = {word: sum(r.get(name) or 0.0 for r in updates[1:]) for name, word in TIMES.items()}
    parts["evaluation, saving"] = max(0.0, whole - sum(parts.values()))
    shares = [{"word": word, "seconds": s, "share": s / whole} for word, s in parts.items() if whole > 0 and s > 0]
    return sorted(shares, key=lambda part: -part["share"])


def _panels(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A small curve for every figure of reinforcement, or of supervised training where there is nothing else."""
    chosen = [r for r in records if r["phase"] != "sft"] or list(records)
    names: dict[str, None] = {}
    for record in chosen:
        names |= dict.fromkeys(key for key in record if "/" in key and not key.startswith(NOT_DRAWN))
    panels = []
    for name in sorted(names):
        values = [record.get(name) for record in chosen]
        drawn = curves.small([record["step"] for record in chosen], values)
        known = [v for v in values if v is not None]
        if drawn:
            panels.append({"name": name, "svg": drawn, "last": known[-1], "low": min(known), "high": max(known)})
    return panels


def _render(page: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "pages"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    environment.filters["number"] = sweep.cell
    return environment.get_template(f"{page}.html").render(**values)
