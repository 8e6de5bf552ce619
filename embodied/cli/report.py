"""`embodied report RUN`: one page for a person, that opens from disk with no network.

A folder of runs (a sweep) gets a page with one row per run, their median and their minimum.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import checkpoint
from . import curves
from .errors import UsageError
from .run import CONFIG, METRICS, RUNS, SUMMARY, read_metrics, write_whole

PAGE = "report.html"
NOT_DRAWN = ("episode/success", "eval/success", "episode/count", "eval/count", "episode/invalid", "eval/invalid")
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
    jobs = job_folders(folder)
    if not jobs:
        raise ValueError(f"{given} is no run's folder: it holds no {CONFIG}. Runs are kept under {RUNS}/.")
    for job in jobs:
        write(job)
    print(table(folder))
    print(write_sweep(folder))
    return 0


def write(folder: Path) -> Path:
    """Write a run's report.html and media/learning_curve.png; a run that has not finished gets what there is."""
    records = read_metrics(folder / METRICS)
    summary = _summary(folder)
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
    jobs = job_folders(folder)
    figures = _figure_names(jobs)
    rows = [(job.name, _summary(job)) for job in jobs]
    page = _render("sweep", name=folder.resolve().name, rows=rows, figures=figures, spread=_spread(jobs, figures))
    write_whole(folder / PAGE, page)
    return folder / PAGE


def job_folders(folder: Path) -> list[Path]:
    """The runs of a sweep, in the order of its jobs."""
    found = [path for path in folder.iterdir() if (path / CONFIG).is_file()] if folder.is_dir() else []
    return sorted(
        found, key=lambda path: (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, path.name)
    )


def table(folder: Path) -> str:
    """The figures of a sweep as text: one line per job, then median and minimum."""
    jobs = job_folders(folder)
    names = _figure_names(jobs)
    spread = _spread(jobs, names)
    lines = [["job", "seed", "wall_s", *names]]
    for job in jobs:
        summary = _summary(job)
        figures = summary.get("figures", {})
        cells = [_number(figures[name]) if name in figures else "-" for name in names]
        lines.append([job.name, str(summary.get("seed", "-")), _number(summary.get("wall_s", 0.0)), *cells])
    lines += [[word, "", "", *(_number(spread[name][word]) for name in names)] for word in ("median", "minimum")]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _figure_names(jobs: Sequence[Path]) -> list[str]:
    names: dict[str, None] = {}
    for job in jobs:
        names |= dict.fromkeys(_summary(job).get("figures", {}))
    return list(names)


def _spread(jobs: Sequence[Path], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Median and minimum of every figure over the jobs that have it."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        values = [f[name] for job in jobs if name in (f := _summary(job).get("figures", {}))]
        found[name] = {"median": statistics.median(values), "minimum": min(values)}
    return found


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


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
        names |= dict.fromkeys(key for key in record if "/" in key and key not in NOT_DRAWN)
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
    environment.filters["number"] = _number
    return environment.get_template(f"{page}.html").render(**values)


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
