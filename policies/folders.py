"""Checkpoint folders of LeRobot's: found, read, checked against an embodiment, filled into a network."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch
from draccus.utils import DraccusException
from huggingface_hub import snapshot_download
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE
from safetensors import SafetensorError, safe_open
from torch import nn

from ..types import Spec

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer"
APART = "weights_apart"
"""A mark in a folder without weights: they are loaded from somewhere else, or meant to be random."""


def find(path: str) -> Path:
    """The local folder that a path names, or that a hub holds under this name."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.model"]))
    except (OSError, ValueError) as error:  # what the hub's client raises without network, or for a name that is none
        raise ValueError(
            f"There is no folder {path}, and no hub gave a checkpoint of that name ({_first_line(error)}). Give a local folder of "
            "LeRobot's: policy.path=<folder with config.json, model.safetensors, policy_preprocessor.json>."
        ) from error


def tokenizer(folder: Path, given: str | None) -> Path | None:
    """Where to take the tokenizer from: what a checkpoint of ours kept, else what was given, else by its name."""
    kept = folder / TOKENIZER
    if kept.is_dir() and (given is None or (folder / APART).is_file()):
        return kept
    if given is not None and not Path(given).is_dir():
        raise ValueError(f"policy.tokenizer is {given}, which is no folder. Give a local folder that holds a tokenizer.")
    return None if given is None else Path(given)


def unreachable(what: str, error: Exception) -> ValueError:
    """What to say when something that a checkpoint refers to by name cannot be loaded."""
    return ValueError(
        f"{what} cannot be loaded: {_first_line(error)}. If it is on a hub that cannot be reached, give a local folder: "
        "policy.tokenizer=<folder>."
    )


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)


def read_config(folder: Path, kind: str) -> PreTrainedConfig:
    """Read config.json and prepare it for building on the CPU."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no checkpoint of LeRobot's: it holds no config.json. A run of ours keeps one in its folder 'exported'.")
    try:
        config = PreTrainedConfig.from_pretrained(folder)
    except (ValueError, TypeError, DraccusException) as error:  # no JSON, or fields of another version of LeRobot's
        raise ValueError(
            f"{folder / 'config.json'} cannot be read by the installed LeRobot {version('lerobot')}: {_first_line(error)}. Take a "
            "checkpoint of its format, or remove the field."
        ) from error
    if config.type != kind:
        raise ValueError(f"{folder} is a checkpoint of type '{config.type}', not '{kind}'. Use policy={config.type}.")
    config.device, config.compile_model = "cpu", False
    return config


def fit_features(config: PreTrainedConfig, spec: Spec, folder: Path) -> None:
    """Check the sizes of state and action; a size of the whole padded width belongs to no robot and takes ours."""
    config.input_features, config.output_features = dict(config.input_features or {}), dict(config.output_features or {})
    lines = []
    for key, features, kind, names, room in (
        (OBS_STATE, config.input_features, FeatureType.STATE, spec.state_names, config.max_state_dim),
        (ACTION, config.output_features, FeatureType.ACTION, spec.action_names, config.max_action_dim),
    ):
        size = features[key].shape[0] if key in features else room
        if size not in (len(names), room):
            lines.append(f"{key} has {size} numbers there, {len(names)} here ({', '.join(names)})")
        elif len(names) > room:
            lines.append(f"{key} has room for {room} numbers there, there are {len(names)} here ({', '.join(names)})")
        features[key] = PolicyFeature(type=kind, shape=(len(names),))
    if lines:
        raise ValueError(f"The checkpoint {folder} does not fit: {'; '.join(lines)}.")


def map_cameras(config: PreTrainedConfig, spec: Spec, given: dict[str, str] | None) -> dict[str, str]:
    """Our camera to the checkpoint's image feature."""
    prefix = f"{OBS_IMAGES}."
    ours = [name for name, _, _ in spec.cameras]
    theirs = {key.removeprefix(prefix): key for key in config.image_features if "empty_camera" not in key}
    pairs = dict(given) if given is not None else {name: name for name in ours}
    if given is None and len(ours) == len(theirs) == 1:
        pairs = {ours[0]: next(iter(theirs))}
    pairs = {camera: feature.removeprefix(prefix) for camera, feature in pairs.items()}
    complete = given is not None or set(theirs) == set(pairs.values())  # who names pairs may leave features out
    if set(pairs) != set(ours) or not set(pairs.values()) <= set(theirs) or not complete or len(set(pairs.values())) < len(pairs):
        example = ", ".join(f"{camera}: {_closest(camera, theirs)}" for camera in ours)
        raise ValueError(
            f"The cameras do not fit: {', '.join(ours) or 'none'} here, {', '.join(theirs) or 'none'} there"
            + (f", paired as {pairs}" if given is not None else "")
            + f". Say which is which, for example policy.cameras={{{example}}}; features left out are treated as absent."
        )
    return {camera: theirs[feature] for camera, feature in pairs.items()}


def _closest(name: str, valid: dict[str, str]) -> str:
    return next(iter(difflib.get_close_matches(name, valid, n=1, cutoff=0.0)), "<feature>")


def require_memory(folder: Path, network: nn.Module) -> None:
    """Refuse to build what will not fit into this machine's memory; `network` is the same one without storage."""
    numbers = sum(parameter.numel() for parameter in network.parameters())
    needed, free = 4 * numbers / 2**30, psutil.virtual_memory().available / 2**30
    if needed > free:
        raise ValueError(
            f"{folder} has {numbers / 1e9:.2f} billion parameters: {needed:.1f} GiB in float32, and {free:.1f} GiB of memory are "
            "free here. Use a machine with more memory or a smaller checkpoint."
        )


def _weights(folder: Path) -> Any:
    try:
        return safe_open(folder / WEIGHTS, "pt")
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged or incomplete: {_first_line(error)}. Copy the checkpoint again.") from error


def load_weights(network: nn.Module, folder: Path, parameter_names: Callable[[Sequence[str]], dict[str, str]]) -> None:
    """Fill a network from model.safetensors, one tensor at a time; anything that does not fit is an error."""
    if (folder / APART).is_file():
        return
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}. Give a folder with weights.")
    own = network.state_dict()
    with _weights(folder) as file:
        names = parameter_names(list(file.keys()))
        filled = {own[name].data_ptr() for name in names if name in own}
        wrong = [f"{name} is missing" for name, tensor in own.items() if name not in names and tensor.data_ptr() not in filled]
        wrong += [f"{name} is unknown" for name in names if name not in own]
        for name, source in names.items():
            shape = tuple(file.get_slice(source).get_shape())
            if name in own and shape != tuple(own[name].shape):
                wrong.append(f"{name} is {shape} there, {tuple(own[name].shape)} here")
        if wrong:
            raise ValueError(f"The weights of {folder} do not fit its config.json: {'; '.join(wrong[:5])} ({len(wrong)} in all).")
        with torch.no_grad():
            for name, source in names.items():
                own[name].copy_(file.get_tensor(source))
