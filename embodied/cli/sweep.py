"""The table of a folder of runs: one row per run, then median, minimum and maximum over seeds of every variant."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import schema
from .compose import load_yaml, resolve
from .run import CONFIG, SUMMARY

SPREAD: dict[str, Callable[[list[float]], float]] = {"median": statistics.median, "minimum": min, "maximum": max}


@dataclass(frozen=True)
class Job:
    """One finished or unfinished run of a sweep."""

    folder: Path
    settings: dict[str, Any]
    """Every setting by its full key."""
    summary: Mapping[str, Any]
    """Contents of summary.json; empty while there is none."""

    @property
    def figures(self) -> Mapping[str, float]:
        return {"wall_s": self.summary["wall_s"], **self.summary["figures"]} if self.summary else {}


@dataclass(frozen=True)
class Table:
    """Cells as text."""

    header: list[str]
    rows: list[list[str]]
    """One per job."""
    spread: list[list[str]]
    """Median, minimum and maximum of every variant that ran more than once."""

    def text(self) -> str:
        """Columns side by side."""
        lines = [self.header, *self.rows, *self.spread]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )


def read(folder: Path) -> list[Job]:
    """The runs of a sweep, in the order of its jobs."""
    found = [path for path in folder.iterdir() if (path / CONFIG).is_file()] if folder.is_dir() else []
    ordered = sorted(
        found, key=lambda path: (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, path.name)
    )
    return [Job(path, schema.flat(resolve(load_yaml(path / CONFIG))), summary(path)) for path in ordered]


def summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, or nothing while there is none."""
    path = folder / SUMMARY
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def tabulate(jobs: Sequence[Job]) -> Table:
    """Lay the jobs out by the settings in which they differ and the figures they reached."""
    keys = varying(jobs)
    figures = list(dict.fromkeys(name for job in jobs for name in job.figures))
    rows = [
        [
            job.folder.name,
            *(cell(job.settings.get(key)) for key in keys),
            *(cell(job.figures.get(name)) for name in figures),
        ]
        for job in jobs
    ]
    spread = []
    for variant in dict.fromkeys(_variant(job, keys) for job in jobs):
        members = [job for job in jobs if _variant(job, keys) == variant]
        for word, reduce in SPREAD.items() if len(members) > 1 else ():
            labels = ["" if key == "seed" else cell(members[0].settings.get(key)) for key in keys]
            values = [[job.figures[name] for job in members if name in job.figures] for name in figures]
            spread.append([word, *labels, *(cell(reduce(v)) if v else "-" for v in values)])
    return Table(["job", *keys, *figures], rows, spread)


def varying(jobs: Sequence[Job]) -> list[str]:
    """Settings in which jobs differ, the seed last; where a run is written is no difference."""
    keys = dict.fromkeys(key for job in jobs for key in job.settings if key != "run.name")
    different = [key for key in keys if len({json.dumps(job.settings.get(key)) for job in jobs}) > 1]
    return sorted(different, key=lambda key: key == "seed")


def cell(value: Any) -> str:
    """A setting or figure as text."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _variant(job: Job, keys: Sequence[str]) -> str:
    return json.dumps([job.settings.get(key) for key in keys if key != "seed"])
