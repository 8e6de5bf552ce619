"""Give every setting a type and a name: plain nested values in, dataclasses and checked factories out.

A command's settings are one frozen dataclass. Sections that become objects are `Factory` fields, annotated with a
`Part` that says where the callable comes from; their keys are that callable's own arguments, so the defaults live
beside the code and are written nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from .. import plugins
from .errors import UsageError


@dataclass(frozen=True)
class Part:
    """How a section of the settings becomes an object."""

    group: str = ""
    """Entry-point group such as 'embodied.sims'; the section's `name` picks the plug-in."""
    target: str = ""
    """Import path of the callable, 'package.module.name', where there is no group; `_target_` replaces it."""
    supplied: tuple[str, ...] = ()
    """Arguments that code passes when it builds the object, and that nobody configures."""
    beside: tuple[str, ...] = ()
    """Text settings of the section that code reads itself, unless the callable takes an argument of that name."""


@dataclass(frozen=True)
class Factory:
    """A callable with its checked settings. Call it with what the code supplies to build the object."""

    key: str
    """The section it was read from."""
    origin: dict[str, str]
    """`{"name": plug-in}` or `{"_target_": import path}`."""
    function: Callable[..., Any]
    settings: dict[str, Any]
    """Every setting, defaults included."""
    beside: dict[str, str]
    """Settings of `Part.beside` that were given."""
    part: Part

    def __call__(self, **supplied: Any) -> Any:
        settings = {k: v() if isinstance(v, Factory) else v for k, v in self.settings.items()}
        return self.function(**supplied, **settings)

    def changed(self, settings: Mapping[str, Any]) -> Factory:
        """The same callable with some settings changed, checked again."""
        return factory({**plain(self), **settings}, self.part, self.key)

    @property
    def name(self) -> str:
        return next(iter(self.origin.values()))


def read[Settings](schema: type[Settings], data: Mapping[str, Any], key: str = "") -> Settings:
    """Turn nested plain values into the dataclass `schema`; unknown keys, wrong types and gaps are errors."""
    hints = typing.get_type_hints(schema, include_extras=True)
    valid = [f.name for f in fields(schema)]  # type: ignore[arg-type]
    _refuse_unknown(data, valid, key, key or "The command")
    values = {}
    for field in fields(schema):  # type: ignore[arg-type]
        path = _join(key, field.name)
        hint = hints[field.name]
        if field.name in data:
            values[field.name] = convert(data[field.name], hint, path)
        elif _required(field) and (part := part_of(hint)):
            values[field.name] = factory({}, part, path)
        elif _required(field) and is_dataclass(hint) and isinstance(hint, type):
            values[field.name] = read(hint, {}, path)
        elif _required(field):
            raise UsageError(f"{path} is missing: it wants {words(hint)}.")
    try:
        return schema(**values)
    except ValueError as error:  # the dataclass checks itself
        raise UsageError(f"{key}: {error}" if key else str(error)) from None


def plain(value: Any) -> Any:
    """The inverse of `read`: nested dicts, lists and scalars that a YAML file can hold."""
    if isinstance(value, Factory):
        return {**value.origin, **plain(value.settings), **value.beside}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Plain nested settings by their full keys."""
    if isinstance(value, dict) and value:
        return {k: v for name, inner in value.items() for k, v in flat(inner, _join(key, name)).items()}
    return {key: value}


def factory(data: Mapping[str, Any] | None, part: Part, key: str) -> Factory:
    """Check a section against the arguments of the callable it names."""
    values = dict(data or {})
    label = "name" if part.group else "_target_"
    name = values.pop(label, part.target or None)
    if not isinstance(name, str):
        options = f" Installed: {', '.join(plugins.names(part.group))}." if part.group else ""
        raise UsageError(f"{key}.{label} is missing: it says what to build.{options}")
    function = find(part, name)
    parameters, hints, open_ended = signature(function)
    valid = {p: v for p, v in parameters.items() if p not in part.supplied}
    apart = [p for p in part.beside if p not in valid]
    beside = {p: convert(values.pop(p), str, _join(key, p)) for p in apart if p in values}
    if not open_ended:
        _refuse_unknown(values, [*valid, *apart], key, f"{key} ({name})")
    settings = {}
    for parameter, default in valid.items():
        path, hint = _join(key, parameter), hints.get(parameter, Any)
        if parameter in values:
            settings[parameter] = convert(values[parameter], hint, path)
        elif default is inspect.Parameter.empty:
            raise UsageError(f"{path} is missing: {name} wants {words(hint)}.")
        elif _storable(default):
            settings[parameter] = default
    settings.update({k: v for k, v in values.items() if k not in valid})
    return Factory(key, {label: name}, function, settings, beside, part)


def find(part: Part, name: str) -> Callable[..., Any]:
    """Import the callable that a section names."""
    if part.group:
        try:
            return plugins.load(part.group, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"_target_ '{name}' cannot be imported: {error}. Give 'package.module.name'.") from None


def signature(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Arguments with their defaults, their annotations, and whether any further keyword is taken."""
    body = function.__init__ if inspect.isclass(function) else function  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(body, include_extras=True)
    except NameError:  # annotations that exist for type checkers only
        hints = {}
    parameters, open_ended = {}, False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            parameters[parameter.name] = parameter.default
    return parameters, hints, open_ended


def part_of(hint: Any) -> Part | None:
    """The `Part` that annotates a `Factory` field, optional or not."""
    for option in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        for extra in get_args(option)[1:] if get_origin(option) is Annotated else ():
            if isinstance(extra, Part):
                return extra
    return None


def bare(hint: Any) -> Any:
    """An annotation without `Annotated[...]` and `| None`."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    options = [o for o in get_args(hint) if o is not type(None)]
    return bare(options[0]) if get_origin(hint) in (Union, types.UnionType) and len(options) == 1 else hint


def convert(value: Any, hint: Any, key: str) -> Any:
    """Check one value against its annotation. Nothing is guessed: 'none' is no None, 1.0 is no whole number."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        part = part_of(hint)
        return factory(_mapping(value, hint, key), part, key) if part else convert(value, options[0], key)
    if origin in (Union, types.UnionType):
        return _convert_union(value, hint, key)
    if origin is Literal:
        if value in options and any(value == o and type(value) is type(o) for o in options):
            return value
        raise UsageError(
            f"{key} wants {words(hint)}, got {shown(value)}.{plugins.nearest(str(value), map(str, options))}"
        )
    if origin in (tuple, list, Sequence):
        return _convert_sequence(value, hint, key)
    if origin in (dict, Mapping):
        pairs = _mapping(value, hint, key)
        return {k: convert(v, options[1] if options else Any, _join(key, k)) for k, v in pairs.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return read(hint, _mapping(value, hint, key), key)
    if hint in (bool, int, float, str, Path, type(None)):
        return _convert_scalar(value, hint, key)
    if isinstance(value, Mapping) and "_target_" in value:
        return factory(value, Part(), key)
    return value


def words(hint: Any) -> str:
    """Say an annotation in words."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return words(options[0])
    if origin in (Union, types.UnionType):
        return " or ".join(words(o) for o in options)
    if origin is Literal:
        return "one of " + ", ".join(str(o) for o in options)
    if origin in (tuple, list, Sequence):
        inner = [o for o in options if o is not Ellipsis]
        if origin is tuple and Ellipsis not in options:
            return f"a list of {len(inner)} ({', '.join(words(o) for o in inner)})"
        return f"a list, each {words(inner[0])}" if inner else "a list"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    names |= {type(None): "null", dict: "settings", Factory: "settings"}
    return names.get(hint, "settings" if is_dataclass(hint) else "a value")


def is_text(hint: Any) -> bool:
    """Whether a setting is text, so that a command line's word is taken as it stands (1E234 is no number then)."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return is_text(options[0])
    if origin in (Union, types.UnionType):
        return all(is_text(o) for o in options if o is not type(None))
    return hint in (str, Path) or (origin is Literal and all(isinstance(o, str) for o in options))


def hint_at(schema: Any, data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The annotation of the setting at `path`, given the plain values around it; Any where there is none."""
    hint: Any = schema
    for depth, step in enumerate(path):
        inside: Any = data
        for outer in path[:depth]:
            inside = inside.get(outer) if isinstance(inside, Mapping) else None
        part = part_of(hint)
        if part:
            label = "name" if part.group else "_target_"
            name = inside.get(label, part.target) if isinstance(inside, Mapping) else part.target
            hints = signature(find(part, name))[1] | {label: str} if name else {label: str}
        elif is_dataclass(hint):
            hints = typing.get_type_hints(hint, include_extras=True)
        else:
            hints = {}
        hint = hints.get(step, Any)
    return hint


def _convert_union(value: Any, hint: Any, key: str) -> Any:
    options = get_args(hint)
    if value is None and type(None) in options:
        return None
    # The exact type first: an int stays an int where int | float is asked for.
    for option in sorted(options, key=lambda o: o is not type(value)):
        try:
            return convert(value, option, key)
        except UsageError as error:
            if len([o for o in options if o is not type(None)]) == 1 and (is_dataclass(option) or part_of(option)):
                raise error
    raise UsageError(f"{key} wants {words(hint)}, got {shown(value)}.")


def _convert_sequence(value: Any, hint: Any, key: str) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{key} wants {words(hint)}, got {shown(value)}. Write {key}=[{value}].")
    inner = list(options) or [Any]
    if origin is tuple and Ellipsis not in inner:
        if len(value) != len(inner):
            raise UsageError(f"{key} wants {words(hint)}, got {len(value)}: {list(value)}.")
        each = inner
    else:
        each = [inner[0]] * len(value)
    items = [convert(v, h, f"{key}[{i}]") for i, (v, h) in enumerate(zip(value, each, strict=True))]
    return items if origin is list else tuple(items)


def _convert_scalar(value: Any, hint: Any, key: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and type(value) is float and math.isnan(value):
        raise UsageError(f"{key} wants a number, got nan.")
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is hint:
        return value
    quote = f" Put text in quotes: '{key}=\"{value}\"'." if hint is str and value is not None else ""
    raise UsageError(f"{key} wants {words(hint)}, got {shown(value)}.{quote}")


def shown(value: Any) -> str:
    """A value as it is written in YAML and on the command line."""
    return json.dumps(value, default=repr, ensure_ascii=False)


def _mapping(value: Any, hint: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} wants settings ({key}.<setting>=…), got {shown(value)}.")
    return value


def _refuse_unknown(data: Mapping[str, Any], valid: list[str], key: str, owner: str) -> None:
    for name in data:
        if name not in valid:
            takes = f"{owner} takes: {', '.join(valid)}." if valid else f"{owner} takes no settings."
            raise UsageError(f"Unknown setting '{_join(key, str(name))}'.{plugins.nearest(str(name), valid)} {takes}")


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _storable(value: Any) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return _storable(asdict(value))
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _storable(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(_storable(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str, Path))


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
