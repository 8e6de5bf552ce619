"""Small checkpoint folders of LeRobot's families, written once a test run."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from embodied import plugins
from embodied.types import Spec

from .substitute import Widths, widths

FAMILIES = ("smolvla", "pi0", "pi05")


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vla-")  # removed when the interpreter ends


@cache
def folder(family: str, spec: Spec, *, statistics: bool = True) -> Path:
    """A toy checkpoint for `spec`, without weights: they are random."""
    place = Path(_home().name) / f"{family}-{abs(hash((spec, statistics)))}"
    plugins.load("embodied.policies", family).write_random(place, spec, statistics=statistics)
    return place


def build(family: str, spec: Spec, horizon: int | None = None, *, statistics: bool = True, sizes: Widths | None = None, **settings: Any) -> Any:
    """A small policy of a family with random weights."""
    with widths(sizes):
        return plugins.load("embodied.policies", family)(
            spec, horizon, **{"path": str(folder(family, spec, statistics=statistics))} | settings
        )
