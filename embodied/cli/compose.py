"""Hydra composes the files; every value then gets its type and name from the code (`schema`).

Group choices (`sim=…`, `experiment=…`) are Hydra's. Values (`key=value`) are laid over the result here, because only
the annotation of a setting says whether `1E234` is text or a number. Packages add files through the entry-point group
'embodied.configs'; a plug-in without a file is chosen by its entry-point name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import plugins
from . import schema
from .errors import UsageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

HOME = "embodied.configs"
"""The package, and the entry-point group, that holds the configuration files."""

Rule = Callable[[Any], str | None]
"""A condition over several settings: what is wrong, in words, or None."""

_WORD = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One word of the command line."""

    word: str
    sign: str
    key: str
    value: str | None


def parse(word: str) -> Override:
    """Split `key=value`."""
    match = _WORD.fullmatch(word)
    if not match or (match["value"] is None and match["sign"] != "~"):
        raise UsageError(f"Cannot read '{word}'. Settings are written key=value, for example seed=1.")
    return Override(word, match["sign"] or "", match["key"], match["value"])


def jobs(words: Sequence[str], sweep: bool) -> list[list[str]]:
    """Spread a sweep (`seed=0,1,2`, `range(0,3)`) into one list of words per job; without one, the single job."""
    if not sweep:
        return [list(words)]
    return [list(job) for job in itertools.product(*(_choices(parse(word)) for word in words))]


def compose[Settings](
    kind: type[Settings],
    name: str,
    words: Sequence[str],
    *,
    rules: Sequence[Rule] = (),
    folder: Path | None = None,
    saved: Path | None = None,
) -> Settings:
    """Compose `name`.yaml with the command line's words into checked settings of type `kind`.

    `folder` holds the user's own files beside the packages'. `saved` is a run's config.yaml to start from instead,
    unless a group is chosen on the command line.
    """
    overrides = [parse(word) for word in words]
    with _hydra(folder) as loader:
        chosen = [o for o in overrides if _is_group(loader, o, kind)]
        for override in chosen:
            _refuse_unknown_choice(loader, override, kind)
        values = [o for o in overrides if o not in chosen]
        data = load_yaml(saved) if saved and not chosen else _compose_groups(loader, name, chosen, kind)
    # A section's `name` or `_target_` first: it decides what the other keys mean.
    for override in sorted(values, key=lambda o: o.key.rpartition(".")[2] not in ("name", "_target_")):
        _lay(data, override, kind)
    settings = schema.read(kind, resolve(_over_defaults(data, kind)))
    check(settings, rules)
    return settings


def files(kind: type, name: str, folder: Path | None = None) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What `name`.yaml holds by itself, and what each group of files and plug-ins offers."""
    from hydra import compose as hydra_compose

    with _hydra(folder) as loader:
        data = resolve(_compose_groups(loader, name, [], kind))
        chosen = hydra_compose(name, return_hydra_config=True).hydra.runtime.choices
        groups = sorted({*(f.name for f in fields(kind)), *(g for g in chosen if "/" not in g)})
        return data, {group: _offered(loader, group, kind) for group in groups}


def check(settings: Any, rules: Sequence[Rule]) -> None:
    """Refuse settings that break a rule, naming every rule that is broken."""
    broken = [problem for rule in rules if (problem := rule(settings))]
    if broken:
        raise UsageError(" ".join(broken))


def experiment(words: Sequence[str]) -> str | None:
    """The experiment that the command line chooses, if it does."""
    return next((o.value for o in map(parse, words) if o.key == "experiment"), None)


def load_yaml(path: Path) -> DictConfig:
    """Read one file the way Hydra reads all of them (a second YAML reader would type values differently)."""
    from omegaconf import DictConfig, OmegaConf

    data = OmegaConf.load(path)
    if not isinstance(data, DictConfig):
        raise UsageError(f"{path} holds no settings.")
    return data


def dump_yaml(settings: Any) -> str:
    """Write settings so that `load_yaml` and `schema.read` give them back."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(schema.plain(settings)))


def resolve(data: DictConfig) -> dict[str, Any]:
    """Fill in `${…}` and return plain values."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(data, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UsageError(f"A reference cannot be filled in: {_first_line(error)}") from None


@contextmanager
def _hydra(folder: Path | None) -> Iterator[Any]:
    """Hydra's view of all configuration files, another Hydra of this process undisturbed."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    if folder and not folder.is_dir():
        raise UsageError(f"There is no folder {folder} to take configuration files from.")
    # Hydra's public `initialize` takes one place only; its `hydra.searchpath` reaches no primary file.
    path = create_config_search_path(f"pkg://{HOME}")
    for point in entry_points(group=HOME):
        if point.value != HOME:
            path.prepend(point.name, f"pkg://{point.value}", anchor="schema")  # Hydra wants its schemas last
    if folder:
        path.prepend("user", f"file://{folder.resolve()}")
    shared = GlobalHydra.instance()
    before = shared.hydra
    shared.clear()
    try:
        version.setbase("1.3")
        Hydra.create_main_hydra2(task_name="embodied", config_search_path=path)
        yield shared.config_loader()
    finally:
        shared.hydra = before


def _is_group(loader: Any, override: Override, kind: type) -> bool:
    """Whether a word chooses a file or plug-in (`sim=gym`) rather than sets a value."""
    if (override.value or "").startswith("{"):
        return False
    parent, _, leaf = override.key.partition("@")[0].rpartition("/")
    return leaf in loader.list_groups(parent) or _plugin_group(override.key, kind) != ""


def _compose_groups(loader: Any, name: str, chosen: Sequence[Override], kind: type) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    bare = [o for o in chosen if _is_bare_plugin(loader, o, kind)]
    words = [f"~{o.key}" if o.value == "null" else o.word for o in chosen if o not in bare]
    try:
        data = hydra_compose(name, overrides=words)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"The configuration does not compose: {_first_line(error)}") from None
    OmegaConf.set_struct(data, False)
    for override in bare:
        OmegaConf.update(data, override.key, {"name": override.value}, merge=False)
    return data


def _plugin_group(key: str, kind: type) -> str:
    """The entry-point group of the section `key`, or nothing."""
    part = schema.part_of(schema.hint_at(kind, {}, [key]))
    return part.group if part else ""


def _offered(loader: Any, group: str, kind: type) -> list[str]:
    """Names of a group's files and plug-ins."""
    return sorted({*loader.get_group_options(group), *plugins.names(_plugin_group(group, kind))})


def _is_bare_plugin(loader: Any, override: Override, kind: type) -> bool:
    """Whether the value names an installed plug-in that brings no file of its own."""
    installed = plugins.names(_plugin_group(override.key, kind))
    return override.value in installed and override.value not in loader.get_group_options(override.key)


def _refuse_unknown_choice(loader: Any, override: Override, kind: type) -> None:
    group = override.key.partition("@")[0]
    options = _offered(loader, group, kind)
    if override.value not in (*options, "null", None):
        suggestion = plugins.nearest(override.value or "", options)
        raise UsageError(f"No {group} named '{override.value}'.{suggestion} Available: {', '.join(options) or 'none'}.")


def _lay(data: DictConfig, override: Override, kind: type) -> None:
    """Lay one `key=value` over the composed files."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = override.key.split(".")
    try:
        if override.sign == "~":
            section = OmegaConf.select(data, ".".join(path[:-1])) if path[:-1] else data
            if not section or path[-1] not in section:
                raise UsageError(f"'{override.key}' is not set, so ~{override.key} removes nothing.")
            del section[path[-1]]
            return
        plain: Any = OmegaConf.to_container(data, resolve=False)
        hint = schema.hint_at(kind, plain, path)
        value = _unquoted(override, hint) if schema.is_text(hint) else _value(override)
        if len(path) > 1 and path[-1] in ("name", "_target_"):
            _change_origin(data, path, value, kind, plain)
        OmegaConf.update(data, override.key, value, merge=isinstance(value, Mapping), force_add=True)
    except OmegaConfBaseException as error:
        raise UsageError(f"Cannot set {override.word}: {_first_line(error)}") from None


def _over_defaults(data: DictConfig, kind: type) -> DictConfig:
    """Where there are references, lay the settings over the code's defaults, so that `${seed}` finds one."""
    from omegaconf import DictConfig, OmegaConf

    written = OmegaConf.to_container(data, resolve=False)
    known = _without_references(written)
    if known == written:
        return data
    filled = OmegaConf.merge(schema.plain(schema.read(kind, known)), data)
    assert isinstance(filled, DictConfig)
    return filled


def _without_references(node: Any) -> Any:
    def is_reference(value: Any) -> bool:
        return isinstance(value, str) and "${" in value

    if isinstance(node, dict):
        return {k: _without_references(v) for k, v in node.items() if not is_reference(v)}
    if isinstance(node, list):
        return [_without_references(v) for v in node if not is_reference(v)]
    return node


def _change_origin(data: DictConfig, path: list[str], value: Any, kind: type, plain: Any) -> None:
    """Empty a section that is to be built by something else: the old keys were the old callable's."""
    from omegaconf import OmegaConf

    key = ".".join(path[:-1])
    if schema.part_of(schema.hint_at(kind, plain, path[:-1])) and OmegaConf.select(data, f"{key}.{path[-1]}") != value:
        OmegaConf.update(data, key, {}, merge=False)


def _unquoted(override: Override, hint: Any) -> str | None:
    """Text as it stands; quotes around the whole of it are dropped; `null` is None where that is allowed."""
    value = override.value or ""
    if value == "null" and "null" in schema.words(hint).split(" or "):
        return None
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _value(override: Override) -> Any:
    """A value by Hydra's grammar: numbers, booleans, null, [lists], {maps}, text."""
    parsed = _hydra_override(override)
    if parsed.is_sweep_override():
        raise UsageError(
            f"'{override.word}' lists several values. Add -m to run one job each, or write [{override.value}]."
        )
    return parsed.value()


def _choices(override: Override) -> list[str]:
    """The words a sweep makes of one word."""
    value = override.value or ""
    if not re.search(r"[\[\](){}'\"]", value):
        return [f"{override.sign}{override.key}={v}" for v in value.split(",")] if value else [override.word]
    parsed = _hydra_override(override)
    if not parsed.is_sweep_override():
        return [override.word]
    return [f"{override.sign}{override.key}={v}" for v in parsed.sweep_string_iterator()]


def _hydra_override(override: Override) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(f"{override.key}={override.value}")
    except HydraException:
        raise UsageError(
            f"Cannot read the value of '{override.word}'. Put text in quotes inside the shell's: "
            f"'{override.key}=\"{override.value}\"'."
        ) from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
