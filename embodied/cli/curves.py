"""Draw a run's curves: success with its intervals as a picture, everything else as small inline SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..metrics import wilson

TRAIN, EVAL, INK, FAINT = "#a9b4c0", "#1f5f99", "#20262d", "#d9dee4"
MEASURED = {"sft": "start", "final": "end"}
"""Phases of the reported evaluations and their words."""


@dataclass(frozen=True)
class Point:
    """One measured success rate."""

    steps: float
    rate: float
    low: float
    high: float


def success_points(records: Sequence[Mapping[str, Any]], prefix: str, task: str = "all") -> list[Point]:
    """Success by `<prefix>/success` and `<prefix>/count` of the records of reinforcement, with Wilson's interval."""
    end = "" if task == "all" else f"/{task}"
    points = []
    for record in records:
        rate, count = record.get(f"{prefix}/success{end}"), record.get(f"{prefix}/count{end}")
        if record["phase"] == "sft" or rate is None or not count:
            continue
        low, high = wilson(round(rate * count), int(count))
        points.append(Point(record["env_steps"], rate, low, high))
    return points


def learning_curve(path: Path, records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Write the success curve to `path` (PNG) and return it as SVG; several tasks also get a curve each.

    Training success (exploring, SDE) and evaluated success (ODE) are different quantities, hence apart.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    style: Any = {"font.family": "sans-serif", "font.size": 10, "svg.fonttype": "none", "axes.edgecolor": FAINT}
    style |= {
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.hashsalt": "embodied",
    }
    prefix = "eval/success/"
    tasks = sorted({key.removeprefix(prefix) for record in records for key in record if key.startswith(prefix)})
    tasks = tasks if len(tasks) > 1 else []
    with matplotlib.rc_context(style):
        figure = pyplot.figure(figsize=(8.4, 6.2 if tasks else 3.8), layout="constrained")
        grid = figure.add_gridspec(2 if tasks else 1, max(len(tasks), 1), height_ratios=[1.6, 1] if tasks else [1])
        whole = figure.add_subplot(grid[0, :])
        _draw(whole, records, evaluations)
        whole.set(xlabel="frames simulated", ylabel="success, %")
        if whole.get_legend_handles_labels()[0]:
            whole.legend(frameon=False, loc="lower right")
        for column, task in enumerate(tasks):
            axes = figure.add_subplot(grid[1, column])
            _draw(axes, records, evaluations, task)
            axes.set_title(task, fontsize=10)
        figure.savefig(path, dpi=150)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw(
    axes: Any, records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], task: str = "all"
) -> None:
    train, test = success_points(records, "episode", task), success_points(records, "eval", task)
    if train:
        x, y = [p.steps for p in train], [100 * p.rate for p in train]
        low, high = [100 * p.low for p in train], [100 * p.high for p in train]
        axes.fill_between(x, low, high, color=TRAIN, alpha=0.25, lw=0)
        axes.plot(x, y, color=TRAIN, lw=1.2, label="training episodes, exploring (SDE)")
    if test:
        x, y = [p.steps for p in test], [100 * p.rate for p in test]
        style: Any = {"color": EVAL, "lw": 1.6, "elinewidth": 1, "marker": "o", "ms": 4}
        axes.errorbar(x, y, yerr=_bars(test), label="selection scenes (ODE)", **style)
    reported = [row for row in evaluations if row["task"] == task]
    _reported(axes, reported, max((r["env_steps"] for r in records), default=0))
    axes.set(ylim=(0, 102))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _bars(points: Sequence[Point]) -> list[list[float]]:
    return [[100 * max(0.0, p.rate - p.low) for p in points], [100 * max(0.0, p.high - p.rate) for p in points]]


def _reported(axes: Any, evaluations: Sequence[Mapping[str, Any]], last: float) -> None:
    """The reported evaluations, at the start and end of the axis."""
    for row in evaluations:
        steps = 0 if row["phase"] == "sft" else last
        point = Point(steps, row["success_rate"], row["wilson_low"], row["wilson_high"])
        first = row["phase"] == "sft"
        axes.errorbar(
            [steps],
            [100 * point.rate],
            yerr=_bars([point]),
            color=INK,
            marker="D",
            ms=6,
            capsize=3,
            ls="none",
            label="reported, fresh scenes (ODE)" if first or len(evaluations) == 1 else None,
            zorder=5,
        )
        axes.annotate(
            f"{point.rate:.1%}",
            (steps, 100 * point.rate),
            xytext=(8 if first else -8, -4 if point.rate > 0.5 else 6),
            textcoords="offset points",
            ha="left" if first else "right",
            va="top" if point.rate > 0.5 else "bottom",
            weight="bold",
        )


def small(xs: Sequence[float], ys: Sequence[float | None], width: int = 260, height: int = 72) -> str:
    """A line without axes, as inline SVG; its range is told beside it."""
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None and math.isfinite(y)]
    if len(pairs) < 2:
        return ""
    low, high = min(y for _, y in pairs), max(y for _, y in pairs)
    left, right = pairs[0][0], pairs[-1][0]
    points = " ".join(
        f"{(x - left) / ((right - left) or 1) * (width - 4) + 2:.1f},{(high - y) / ((high - low) or 1) * (height - 8) + 4:.1f}"
        for x, y in pairs
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img"><polyline points="{points}" fill="none" '
        'stroke="currentColor" stroke-width="1.4" stroke-linejoin="round"/></svg>'
    )
