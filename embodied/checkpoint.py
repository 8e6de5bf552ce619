"""Save and load checkpoints so that a kill at any moment leaves the last whole one loadable.

A checkpoint is a folder `checkpoints/<version>/`:

    model.safetensors     the policy's tensors, its normalisation statistics among them
    trainer.safetensors   every tensor and array of the trainer's state
    trainer.json          the rest of that state: its nesting, numbers and text
    policy.json           spec, architecture tag and constructor arguments
    assets/               what else rebuilds the policy (tokenizer, configuration), where it has any
    complete              written last: a folder without it is no checkpoint

It is written under a temporary name, flushed to disk, marked, renamed; only then does the file `last` name it. There is
no pickle: arrays go to safetensors, the rest to JSON, and both come back bit for bit.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .types import Spec

MODEL, TRAINER, SKELETON, POLICY, ASSETS, COMPLETE, LAST = (
    "model.safetensors",
    "trainer.safetensors",
    "trainer.json",
    "policy.json",
    "assets",
    "complete",
    "last",
)


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found."""

    version: int
    model: dict[str, Tensor]
    trainer: Any
    """The nested trainer state as it was saved; None if there was none."""
    policy: dict[str, Any]
    """Contents of policy.json."""
    assets: Path | None = None
    """Folder of what the policy wrote beside its weights."""


def save(
    folder: Path, version: int, model: dict[str, Tensor], trainer: Any, policy: dict[str, Any], *, keep: int = 0,
    assets: Callable[[Path], None] | None = None,
) -> Path:  # fmt: skip
    """Write `folder/<version>` whole or not at all, point `last` at it, keep the newest `keep` (0: all).

    `trainer` is any nesting of dicts, lists and tuples with tensors, NumPy arrays, numbers, text, booleans and None.
    `assets` writes further files into the folder it is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _settle(folder)
    temporary = folder / f".{version}.partial"
    temporary.mkdir()
    tensors: dict[str, Tensor] = {}
    skeleton = flatten(trainer, "", tensors)
    save_file({name: _own(t) for name, t in model.items()}, temporary / MODEL)
    save_file(tensors, temporary / TRAINER)
    (temporary / SKELETON).write_text(json.dumps(skeleton))
    (temporary / POLICY).write_text(json.dumps(policy, indent=1))
    if assets is not None:
        assets(temporary / ASSETS)
    for file in sorted(temporary.rglob("*")):
        _flush(file)
    (temporary / COMPLETE).touch()  # empty, so that it is there or not there, never half
    _flush(temporary)
    _settle(folder)
    _point(folder, version)
    if keep:
        prune(folder, keep)
    return folder / str(version)


def load(folder: Path, version: int | str = "last") -> Checkpoint:
    """Load a version, or the newest whole one, to the CPU."""
    path = find(folder, version)
    tensors = load_file(path / TRAINER)
    return Checkpoint(
        version=_version(path),
        model=load_file(path / MODEL),
        trainer=unflatten(json.loads((path / SKELETON).read_text()), tensors),
        policy=json.loads((path / POLICY).read_text()),
        assets=path / ASSETS if (path / ASSETS).is_dir() else None,
    )


def find(folder: Path, version: int | str = "last") -> Path:
    """Name the folder of a whole checkpoint; `last` is the newest whole one, even if a kill left the pointer behind."""
    whole = _whole(folder)
    if not whole:
        raise RuntimeError(f"No whole checkpoint in {folder}. Train first, or give another folder.")
    wanted = max(whole) if version == "last" else int(version)
    if wanted not in whole:
        raise RuntimeError(
            f"No whole checkpoint {version} in {folder}. There are: {', '.join(map(str, sorted(whole)))}."
        )
    return whole[wanted]


def versions(folder: Path) -> list[int]:
    """List the whole checkpoints, oldest first."""
    return sorted(_whole(folder))


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for version in versions(folder)[:-keep]:
        _discard(folder / str(version))


def describe(spec: Spec, architecture: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Contents of policy.json: what rebuilds the policy whose tensors lie beside it."""
    return {"architecture": architecture, "arguments": arguments, "spec": asdict(spec), **more}


def spec_of(policy: dict[str, Any]) -> Spec:
    """Read the spec out of policy.json."""
    return Spec(**{name: _tuples(value) for name, value in policy["spec"].items()})


def require(spec: Spec, saved: Spec, *, ignore: tuple[str, ...] = ()) -> None:
    """Refuse a checkpoint of another robot or task set, with the difference."""
    lines = spec.difference(saved, ignore)
    if lines:
        raise ValueError(
            "The checkpoint does not fit: " + "; ".join(lines) + ". ('here' is what is to run, 'there' the checkpoint.)"
        )


def _version(path: Path) -> int:
    """The version of a checkpoint's folder, renamed into place (`7`) or not yet (`.7.partial`); -1 for anything else."""
    name = path.name.removeprefix(".").removesuffix(".partial")
    return int(name) if name.isdigit() else -1


def _whole(folder: Path) -> dict[int, Path]:
    """Version to folder of every whole checkpoint, one that was marked but not yet renamed included."""
    paths = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []  # `.7.partial` after `7`: the newer wins
    return {_version(path): path for path in paths if _version(path) >= 0 and (path / COMPLETE).exists()}


def _settle(folder: Path) -> None:
    """Finish what a kill cut short: rename marked checkpoints into place, clear away what has no mark."""
    for path in list(folder.iterdir()):
        if _version(path) < 0:
            continue
        if not (path / COMPLETE).exists():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != str(_version(path)):
            target = folder / str(_version(path))
            _discard(target)
            path.rename(target)
    _flush(folder)


def _discard(path: Path) -> None:
    """Delete a checkpoint, its mark first, so that a kill here leaves no half one that looks whole."""
    (path / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _point(folder: Path, version: int) -> None:
    """Move `last` in one step."""
    temporary = folder / f".{LAST}"
    temporary.write_text(str(version))
    _flush(temporary)
    temporary.replace(folder / LAST)
    _flush(folder)


def _flush(path: Path) -> None:
    """Force a file's contents, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _own(tensor: Tensor) -> Tensor:
    """A contiguous CPU copy: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def flatten(node: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Move every array of `node` into `tensors` and return the rest as JSON. A mark says what each place was."""
    if isinstance(node, Tensor):
        tensors[key] = _own(node)
        return {"tensor": key}
    if isinstance(node, (np.ndarray, np.generic)):
        return _flatten_array(np.asarray(node), key, tensors)
    if isinstance(node, dict):
        items = []
        for name, value in node.items():
            if not isinstance(name, (str, int)):
                raise ValueError(f"Keys of a trainer state are text or whole numbers, got {name!r} at '{key}'.")
            items.append([name, flatten(value, f"{key}/{name}", tensors)])
        return {"dict": items}
    if isinstance(node, (list, tuple)):
        values = [flatten(value, f"{key}/{i}", tensors) for i, value in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": values}
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"value": node}
    raise ValueError(f"A trainer state holds arrays, numbers and text, got {type(node).__name__} at '{key}'.")


def _flatten_array(array: np.ndarray, key: str, tensors: dict[str, Tensor]) -> Any:
    if array.dtype.kind in "US":
        return {"text": array.tolist(), "dtype": array.dtype.str, "shape": list(array.shape)}
    # As bytes: torch has no tensors of every NumPy type, and a 0-d array must come back 0-d.
    tensors[key] = torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
    return {"array": key, "dtype": array.dtype.str, "shape": list(array.shape)}


def unflatten(node: Any, tensors: dict[str, Tensor]) -> Any:
    if "value" in node:
        return node["value"]
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "array" in node:
        flat = np.frombuffer(tensors[node["array"]].numpy().tobytes(), np.dtype(node["dtype"]))
        return flat.reshape(node["shape"]).copy()
    if "text" in node:
        return np.array(node["text"], np.dtype(node["dtype"])).reshape(node["shape"])
    if "dict" in node:
        return {name: unflatten(value, tensors) for name, value in node["dict"]}
    values = [unflatten(value, tensors) for value in node.get("tuple", node.get("list"))]
    return tuple(values) if "tuple" in node else values


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
