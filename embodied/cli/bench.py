"""`embodied bench KIND`: measure this machine; every figure is a ratio of two things timed side by side."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

from .. import plugins
from .compose import parse
from .errors import UsageError

GROUP = "embodied.benchmarks"


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark: `embodied bench sim`, with `--json` for one object on the last line."""
    words = [word for word in arguments if not word.startswith("-")]
    flags = [word for word in arguments if word.startswith("-")]
    kinds = plugins.names(GROUP)
    if flags in (["--help"], ["-h"]):
        print(f"usage: embodied bench {{{','.join(kinds)}}} [--json] [key=value ...]")
        return 0
    if not words or any(flag != "--json" for flag in flags):
        raise UsageError(f"usage: embodied bench {{{','.join(kinds)}}} [--json] [key=value ...]")
    kind, *rest = words
    if kind not in kinds:
        raise UsageError(f"No benchmark named '{kind}'.{plugins.nearest(kind, kinds)} Installed: {', '.join(kinds)}.")
    run = plugins.load(GROUP, kind)
    figures = run(**_settings(run, rest))
    width = max(map(len, figures))
    for name, figure in figures.items():
        print(f"{name:<{width}}  {figure:.4g}")
    if flags:
        print(json.dumps(figures))
    return 0


def _settings(run: object, words: Sequence[str]) -> dict[str, object]:
    """Read key=value words as the benchmark's own arguments."""
    assert callable(run)
    parameters = inspect.signature(run).parameters
    settings: dict[str, object] = {}
    for override in map(parse, words):
        if override.key not in parameters:
            raise UsageError(f"Unknown setting '{override.key}'.{plugins.nearest(override.key, parameters)} It takes: {', '.join(parameters) or 'none'}.")
        value = override.value or ""
        settings[override.key] = json.loads(value) if value.lstrip("-").replace(".", "", 1).isdigit() else value
    return settings
