"""A run's folder: created once, written as the run goes, finished with its figures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from tqdm import tqdm

from .. import metrics
from .compose import dump_yaml
from .schema import plain

RUNS = Path("runs")
"""Where runs are kept, under the folder that the command is started in."""

PHASES = ("sft", "rl", "online", "offline", "final")
CONFIG, METRICS, SUMMARY = "config.yaml", "metrics.jsonl", "summary.json"


@dataclass(frozen=True)
class RunSettings:
    """Where a run is written and which sinks take its figures."""

    name: str = ""
    """Folder under runs/; default <experiment or command>-<date-time>."""
    tensorboard: bool = False
    """Whether TensorBoard files are written beside metrics.jsonl."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases: offline writes files to be synced later."""
    keep: int = 3
    """Checkpoints kept; 0 keeps all."""


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """What every command that computes takes."""

    run: RunSettings = RunSettings()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Named variations, each some further words of the command line; -m runs them all, for every combination."""
    resume: bool = False
    """Continue the run `run.name` from its last checkpoint, with the settings it began with."""
    overwrite: bool = False
    """Replace a run of the same name."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Run:
    """One run's folder, open for writing. Use it as a context manager."""

    folder: Path
    figures: dict[str, float]
    """The experiment's named figures, for summary.json."""

    def __init__(self, folder: Path, command: str, settings: CommandSettings, *, resume: bool = False) -> None:
        """Open a folder that `prepare` has made ready."""
        self.folder, self.command, self.seed = folder, command, settings.seed
        self.device = "cpu"
        """The device in use, as summary.json names it; the command sets it."""
        self.keep = settings.run.keep
        self.env_steps = 0
        """Frames simulated or executed so far; the command keeps it."""
        self.figures = {}
        self._evaluations: list[dict[str, Any]] = []
        self._before_s = _last_wall(folder / METRICS) if resume else 0.0
        self._start = time.monotonic()
        self._sinks: list[metrics.Sink] = [metrics.JsonLines(folder / METRICS)]
        if settings.run.tensorboard:
            self._sinks.append(metrics.TensorBoard(folder / "tensorboard"))
        if settings.run.wandb != "off":
            self._sinks.append(metrics.WeightsAndBiases(folder, folder.name, plain(settings), settings.run.wandb))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def media(self) -> Path:
        path = self.folder / "media"
        path.mkdir(exist_ok=True)
        return path

    @property
    def wall_s(self) -> float:
        """Seconds this run has taken, those before a resume included."""
        return self._before_s + time.monotonic() - self._start

    def log(
        self, step: int, phase: str, figures: Mapping[str, float], *, policy_version: int, show: Sequence[str] = ()
    ) -> None:
        """Record one update's figures; `show` names those that the console line holds."""
        record = {
            "step": step,
            "phase": phase,
            "wall_s": round(self.wall_s, 3),
            "env_steps": self.env_steps,
            "policy_version": policy_version,
        }
        for sink in self._sinks:
            sink.write({**record, **figures})
        if show:
            shown = [f"{name.rpartition('/')[2]} {figures[name]:8.4g}" for name in show if name in figures]
            self.say(f"{phase:<6} {step:>6}  {self.wall_s:7.1f} s  " + "  ".join(shown))

    def say(self, line: str) -> None:
        """Print a line without breaking a progress bar."""
        tqdm.write(line)
        sys.stdout.flush()

    def evaluation(
        self, phase: str, task: str, *, policy_version: int, sampler: str, episodes: int, successes: int
    ) -> dict[str, Any]:
        """Add one row to summary.json's `eval`, with Wilson's interval."""
        if phase not in PHASES:
            raise ValueError(f"An evaluation's phase is one of {', '.join(PHASES)}, got '{phase}'.")
        low, high = metrics.wilson(successes, episodes)
        row = {
            "phase": phase,
            "task": task,
            "policy_version": policy_version,
            "sampler": sampler,
            "episodes": episodes,
            "successes": successes,
            "success_rate": successes / episodes,
            "wilson_low": low,
            "wilson_high": high,
        }
        same = [r for r in self._evaluations if (r["phase"], r["task"]) == (phase, task)]
        self._evaluations = [r for r in self._evaluations if r not in same] + [row]
        return row

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rows so far; part of what a resumed run needs."""
        return list(self._evaluations)

    def restore(self, step: int, phase: str, *, env_steps: int, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Go back to a checkpoint: forget what was logged of `phase` after `step`."""
        self.env_steps = env_steps
        self._evaluations = [dict(row) for row in evaluations]
        path = self.folder / METRICS
        records = read_metrics(path)
        later = (i for i, r in enumerate(records) if r["phase"] == phase and r["step"] > step)
        kept = records[: next(later, len(records))]
        self._sinks[0].close()
        write_whole(path, "".join(json.dumps(r) + "\n" for r in kept))
        self._sinks[0] = metrics.JsonLines(path)

    def finish(self) -> dict[str, Any]:
        """Write summary.json."""
        summary = {
            "command": self.command,
            "git_commit": git_commit(),
            "seed": self.seed,
            "wall_s": round(self.wall_s, 3),
            "env_steps": self.env_steps,
            "device": self.device,
            "figures": dict(self.figures),
            "eval": self.evaluations,
        }
        write_whole(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        return summary


def prepare(folder: Path, settings: CommandSettings) -> None:
    """Create the folder and freeze the settings in it; refuse one that exists, unless told what to do with it."""
    if settings.resume and settings.overwrite:
        raise ValueError("resume=true and overwrite=true exclude each other. Give one.")
    if settings.resume and not (folder / CONFIG).is_file():
        raise ValueError(f"resume=true, but {folder} holds no run to continue. Check run.name.")
    if folder.exists() and any(folder.iterdir()) and not settings.resume:
        if not settings.overwrite:
            raise ValueError(
                f"{folder} exists. Continue it with resume=true, replace it with overwrite=true, or give another run.name."
            )
        if not (folder / CONFIG).is_file():
            raise ValueError(f"{folder} is no run's folder (it holds no {CONFIG}), so overwrite=true leaves it alone.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / CONFIG, dump_yaml(settings))


@contextmanager
def patient() -> Iterator[Callable[[], bool]]:
    """Let the loop inside finish its step: the first Ctrl-C or SIGTERM only makes the yielded function return True.

    The second one interrupts at once. Outside the main thread nothing changes.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("stopping after this step (again: at once)", file=sys.stderr, flush=True)

    before = {}
    with suppress(ValueError):  # only the main thread may set handlers
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal and about ten plain lines elsewhere; the yielded function advances it."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, leave=False, dynamic_ncols=True) as bar:

            def move(n: int) -> None:
                bar.update(n)

            yield move
        return
    done, shown = 0, 0

    def advance(n: int) -> None:
        nonlocal done, shown
        done += n
        if done * 10 // max(total, 1) > shown:
            shown = done * 10 // max(total, 1)
            print(f"{label} {done}/{total}", flush=True)

    yield advance


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl; a last line cut by a kill is left out."""
    records = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, so that a kill leaves the old or the new."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def git_commit() -> str:
    """The commit of the checkout this package runs from; 'unknown' when it is installed without one."""
    home = Path(__file__).parent
    here = ["git", "-C", str(home)]
    try:
        # Tracked, or the repository around us is the user's own.
        subprocess.run([*here, "ls-files", "--error-unmatch", Path(__file__).name], check=True, capture_output=True)
        return subprocess.run([*here, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _last_wall(path: Path) -> float:
    records = read_metrics(path)
    return float(records[-1]["wall_s"]) if records else 0.0
