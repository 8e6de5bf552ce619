"""Run a command that computes: compose its settings, open its folder, once or once per job of a sweep."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import help, report, schema, sweep, together
from .compose import Rule, compose, dump_yaml, experiment, files, jobs, load_yaml, resolve
from .errors import UsageError
from .run import CONFIG, RUNS, CommandSettings, Run, prepare

Execute = Callable[[Any, Run], None]


@dataclass(frozen=True)
class Options:
    """The flags of a command line, apart from its settings."""

    words: list[str] = field(default_factory=list)
    sweep: bool = False
    show: bool = False
    help: bool = False
    folder: Path | None = None


def launch(
    command: str,
    kind: type[CommandSettings],
    execute: Execute,
    arguments: Sequence[str],
    *,
    rules: Sequence[Rule] = (),
    may_change: Sequence[str] = (),
) -> int:
    """Run `execute(settings, run)` for every job of the command line; all jobs are composed before the first runs.

    Settings come from configs/<command>.yaml. `may_change` names settings (or whole sections) that a resumed run may
    give a new value.
    """
    options = parse_options(arguments)
    if options.help:
        print(help.usage(command, kind, *files(kind, command, options.folder)))
        return 0
    words, name = _named(command, options)
    plans = []
    for number, job in enumerate(jobs(words, options.sweep)):
        place = f"{name}/{number}" if options.sweep else name
        plan = _plan(command, kind, job, place, options, rules, may_change)
        plans += [plan] if not plan[0].variants else [
            _plan(command, kind, [*job, *extra], f"{name}/{variant}-{number}", options, rules, may_change)
            for variant, extra in _variants(plan[0], options).items()
        ]
    if options.show:
        print("---\n".join(dump_yaml(settings) for settings, _ in plans), end="")
        return 0
    failed = 0
    for settings, folder in plans:
        try:
            with together.quiet():
                prepare(folder, settings)
                with Run(folder, command, settings, resume=settings.resume) as run:
                    execute(settings, run)
                print(f"report: {report.write(folder)}", flush=True)
        except (ValueError, RuntimeError) as error:
            if len(plans) == 1:
                raise
            print(f"embodied: {folder}: {error}", file=sys.stderr)
            failed += 1
    if options.sweep:
        print(sweep.tabulate(sweep.read(RUNS / name)).text())
        print(f"report: {report.write_sweep(RUNS / name)}", flush=True)
    return 1 if failed else 0


def _variants(settings: CommandSettings, options: Options) -> dict[str, tuple[str, ...]]:
    """The named variations of an experiment, which only a sweep runs."""
    if not options.sweep:
        raise UsageError(
            f"This experiment is a set of {len(settings.variants)} variants ({', '.join(settings.variants)}); add -m to run "
            "them all, or 'variants={}' for its base."
        )
    return settings.variants


def parse_options(arguments: Sequence[str]) -> Options:
    """Tell flags from settings."""
    words, sweep, show, asked, folder = [], False, False, False, None
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "--multirun"):
            sweep = True
        elif word in ("-c", "--cfg"):
            show = True
        elif word in ("-h", "--help"):
            asked = True
        elif word == "--config-dir":
            if not rest:
                raise UsageError("--config-dir wants a folder.")
            folder = Path(rest.pop(0))
        elif word.startswith("-"):
            raise UsageError(
                f"Unknown flag '{word}'. Flags: -m (sweep), --cfg (show the settings), --config-dir DIR, --help."
            )
        else:
            words.append(word)
    return Options(words, sweep, show, asked, folder)


def _named(command: str, options: Options) -> tuple[list[str], str]:
    """Take `run.name` out of the words, or make one."""
    given = [word for word in options.words if word.startswith("run.name=")]
    words = [word for word in options.words if word not in given]
    if given:
        return words, given[-1].partition("=")[2].strip("'\"")
    if together.count() > 1:
        raise UsageError("Several processes train together under one name: add run.name=<its folder under runs/>.")
    if "resume=true" in [word.lower() for word in words]:
        raise UsageError("resume=true wants the run to continue: add run.name=<its folder under runs/>.")
    chosen = experiment(words)
    return words, f"{chosen or command}-{time.strftime('%Y%m%d-%H%M%S')}".replace(",", "+")


def _plan(
    command: str,
    kind: type[CommandSettings],
    words: list[str],
    name: str,
    options: Options,
    rules: Sequence[Rule],
    may_change: Sequence[str],
) -> tuple[CommandSettings, Path]:
    """Compose one job and say where it runs."""
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UsageError(f"run.name is a folder under {RUNS}/, got '{name}'.")
    folder = together.place(RUNS, name)
    saved = folder / CONFIG
    resuming = "resume=true" in [word.lower() for word in words] and saved.is_file()
    settings = compose(kind, command, words, rules=rules, folder=options.folder, saved=saved if resuming else None)
    settings = replace(settings, run=replace(settings.run, name=name))
    if resuming:
        _refuse_changes(kind, settings, saved, may_change)
    return settings, folder


def _refuse_changes(
    kind: type[CommandSettings], settings: CommandSettings, saved: Path, may_change: Sequence[str]
) -> None:
    """A run continues as it began: state in its checkpoints belongs to its settings."""
    before = schema.flat(schema.plain(schema.read(kind, resolve(load_yaml(saved)))))
    now = schema.flat(schema.plain(settings))
    free = ("run", "resume", "overwrite", "device", *may_change)
    changed = [
        f"{key}: {before.get(key)} there, {now.get(key)} here"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not any(key == f or key.startswith(f + ".") for f in free)
    ]
    if changed:
        raise UsageError(
            f"{saved.parent} was begun with other settings: {'; '.join(changed)}. Start a new run for them."
        )
