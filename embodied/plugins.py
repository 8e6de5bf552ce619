"""Find plug-ins by entry point: the one way, for built-in ones and for anyone's."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any


def names(group: str) -> list[str]:
    """List what is installed under an entry-point group, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """Import the plug-in `name` of a group such as 'embodied.sims'."""
    found = [point for point in entry_points(group=group) if point.name == name]
    plural = group.rpartition(".")[2]
    kind = plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")
    if not found:
        raise ValueError(
            f"No {kind} named '{name}'.{nearest(name, names(group))} Installed: {', '.join(names(group)) or 'none'}. "
            f"A package adds one under the entry point group '{group}'."
        )
    try:
        return found[0].load()
    except ImportError as error:
        package = found[0].dist
        extras = sorted(package.metadata.get_all("Provides-Extra") or []) if package is not None else []
        offered = f"; {package.name} has the extras {', '.join(extras)}" if package is not None and extras else ""
        raise ValueError(f"The {kind} '{name}' cannot be imported: {error}. Install what is missing{offered}.") from error


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the closest valid name, as a sentence that starts with a space, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.4)
    return f" Did you mean '{close[0]}'?" if close else ""
