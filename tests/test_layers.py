"""Which part may import which: read from the source, imports inside functions included."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"plugins", "types", "tree"}),
    frozenset({"interfaces"}),
    frozenset(
        {
            "flow",
            "transforms",
            "advantages",
            "kernels",
            "critics",
            "advantage_models",
            "journal",
            "checkpoint",
            "metrics",
        }
    ),
    frozenset({"agent", "parallel"}),
    frozenset({"shards"}),
    frozenset({"data", "rollout", "transport", "algorithms"}),
    frozenset({"learner"}),
    frozenset({"cli"}),
)
"""The core, lowest first: a part imports parts of lower layers, never one beside it."""

PLUGINS = {"sims": {"sims"}, "policies": {"policies"}, "robots": {"robots", "sims"}}
"""A plug-in folder and the plug-in folders it may import: a twin is a simulated task."""

SURFACE = {"types", "tree", "interfaces", "flow", "transforms", "plugins"}
"""All of the core that a plug-in imports."""


def sources() -> dict[str, Path]:
    """Module name to file of everything below `embodied`, the linked folders included."""
    found = {}
    for folder in (ROOT / "embodied", *(ROOT / name for name in (*PLUGINS, "configs"))):
        prefix = [] if folder.name == "embodied" else ["embodied"]
        for path in folder.rglob("*.py"):
            if "__pycache__" not in path.parts:
                parts = [*prefix, *path.relative_to(ROOT).with_suffix("").parts]
                found[".".join(parts).removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if not name.endswith("_pb2")}


SOURCES = sources()


def imports(module: str) -> Iterator[str]:
    """Modules of this project that `module` imports anywhere in its source."""
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in SOURCES:
                name = name.rpartition(".")[0]
            if name and name not in ("embodied", package):
                yield name


def part(module: str) -> str:
    """`embodied.data.store` belongs to `data`."""
    return module.split(".")[1]


CORE = sorted(m for m in SOURCES if m != "embodied" and part(m) not in (*PLUGINS, "configs"))
OUTSIDE = sorted(m for m in SOURCES if m != "embodied" and part(m) in PLUGINS)


def test_every_core_module_has_its_layer() -> None:
    assert {part(m) for m in CORE} <= frozenset().union(*LAYERS)


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_downwards_only(module: str) -> None:
    level = next(i for i, layer in enumerate(LAYERS) if part(module) in layer)
    allowed = frozenset().union(*LAYERS[:level]) | {part(module)}
    assert {part(m) for m in imports(module)} <= allowed


@pytest.mark.parametrize("module", OUTSIDE)
def test_plugins_import_the_surface_and_themselves_only(module: str) -> None:
    assert {part(m) for m in imports(module)} <= SURFACE | PLUGINS[part(module)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports(module)) for module in SOURCES if module != "embodied"}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_the_reader_of_imports_sees_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from ..types import Spec\ndef f():\n    from .. import tree\n    import embodied.flow as g\n    from . import lanes\n"
    file = tmp_path / "probe.py"
    file.write_text(source)
    monkeypatch.setitem(SOURCES, "embodied.rollout.probe", file)
    assert set(imports("embodied.rollout.probe")) == {
        "embodied.types",
        "embodied.tree",
        "embodied.flow",
        "embodied.rollout.lanes",
    }


def literals_compared(tree: ast.AST) -> set[str]:
    """Text that source compares something with, by ==, in or match."""
    compared = [n for node in ast.walk(tree) if isinstance(node, ast.Compare) for n in (node.left, *node.comparators)]
    compared += [node for node in ast.walk(tree) if isinstance(node, ast.match_case)]  # type: ignore[misc]
    constants = (c for node in compared for c in ast.walk(node.pattern if isinstance(node, ast.match_case) else node))
    return {c.value for c in constants if isinstance(c, ast.Constant) and isinstance(c.value, str)}


def test_the_core_tests_no_model_robot_or_task_by_name() -> None:
    groups = ("sims", "tasks", "policies", "robots")
    names = {point.name for group in groups for point in entry_points(group=f"embodied.{group}")}
    assert names, "the built-in plug-ins are not installed"
    found = {m: literals_compared(ast.parse(SOURCES[m].read_text())) & names for m in CORE}
    assert not {m: n for m, n in found.items() if n}


def test_a_comparison_with_a_name_is_seen() -> None:
    source = "if kind == 'a' or kind in ('b', 'c'): pass\nmatch kind:\n    case 'd': pass\n"
    assert literals_compared(ast.parse(source)) == {"a", "b", "c", "d"}


NO_TORCH = [m for m in SOURCES if m in ("embodied.types", "embodied.interfaces", "embodied.rollout.governor")]
NO_TORCH += [m for m in OUTSIDE if part(m) == "robots"]


def test_the_robot_side_needs_no_torch() -> None:
    code = f"import sys, {', '.join(NO_TORCH)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
