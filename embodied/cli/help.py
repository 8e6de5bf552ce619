"""A command's help: every setting, its value and what it is, read from the code that owns it."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from . import schema

HEAD = """usage: embodied {command} [-m] [--cfg] [--config-dir DIR] [key=value ...]

  -m                 one job per combination: seed=0,1,2
  --cfg              print the resolved settings and leave
  --config-dir DIR   a folder with configuration files of your own

Lists are written 'key=[1, 2]', nothing is null, and text with special characters goes in quotes inside
the shell's: 'key="put it down, gently"'.
"""


def usage(command: str, kind: type, data: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> str:
    """Help text for a command whose files compose to `data`; `choices` are the groups of files and plug-ins."""
    groups = [f"{group}=…  one of {', '.join(names)}" for group, names in choices.items() if names]
    return "\n".join(
        [HEAD.format(command=command), *groups, "", "Settings and their values:", "", *outline(kind, data)]
    )


def outline(hint: Any, data: Any, depth: int = 0) -> Iterator[str]:
    """One line per setting, nested as in YAML; what has no value says what it wants."""
    values = data if isinstance(data, Mapping) else {}
    part = schema.part_of(hint)
    entries = _arguments(part, values) if part else _fields(schema.bare(hint))
    for name, (inner, default, text) in entries.items():
        value = values.get(name, default)
        label, comment = "  " * depth + name, f"  # {text}" if text else ""
        if value is not None and is_dataclass(schema.bare(inner)):  # a Factory is one, too
            yield f"{label}:{comment}"
            yield from outline(inner, schema.plain(value) if value is not MISSING else {}, depth + 1)
        else:
            told = f"<{schema.words(inner)}>" if value is MISSING else schema.shown(schema.plain(value))
            yield f"{label}: {told}{comment}"


def _arguments(part: schema.Part, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any, str]]:
    """Name to (annotation, default, text) of the arguments of the callable that a section names."""
    label = "name" if part.group else "_target_"
    name = values.get(label, part.target)
    if not name:
        return {label: (str, MISSING, "")}
    parameters, hints, _ = schema.signature(schema.find(part, name))
    known = {p: d for p, d in parameters.items() if p not in part.supplied}
    defaults = {p: MISSING if d is inspect.Parameter.empty else d for p, d in known.items()}
    beside = {p: (str, None, "") for p in part.beside if p not in known}
    return {label: (str, name, "")} | {p: (hints.get(p, Any), d, "") for p, d in defaults.items()} | beside


def _fields(kind: type) -> dict[str, tuple[Any, Any, str]]:
    hints, texts = typing.get_type_hints(kind, include_extras=True), docstrings(kind)
    return {f.name: (hints[f.name], _default(f), texts.get(f.name, "")) for f in fields(kind)}


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@functools.cache
def docstrings(kind: type) -> dict[str, str]:
    """Field to the first line of the text that follows it in the source, of a dataclass and what it inherits."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, node in zip(body.body, body.body[1:], strict=False):
            is_text = (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
            if is_text and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
                found[before.target.id] = inspect.cleandoc(node.value.value).splitlines()[0]  # type: ignore[attr-defined]
    return found
