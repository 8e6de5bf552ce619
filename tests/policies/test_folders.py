"""Checkpoints that do not fit are refused with the difference, before anything is built in vain."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied import plugins
from embodied.types import Observation

from . import checkpoints
from .conftest import SPEC, seen
from .substitute import widths

POLICY = "smolvla"


def build(**settings: Any) -> Any:
    with widths():
        return plugins.load("embodied.policies", POLICY)(settings.pop("spec", SPEC), **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with weights, to be damaged."""
    place = tmp_path / "checkpoint"
    checkpoints.build(POLICY, SPEC).save(place)
    return place


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_whole_checkpoint_is_loaded_exactly(folder: Path) -> None:
    policy = build(path=str(folder))
    saved = load_file(folder / "model.safetensors")
    own = policy.network.state_dict()
    assert saved.keys() <= own.keys() and all(torch.equal(own[name], tensor) for name, tensor in saved.items())


def test_a_hub_name_without_network_says_how_to_give_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"no folder someone/checkpoint.*policy\.path=<folder with config\.json"):
        build(path="someone/checkpoint")


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_a_tokenizer_out_of_reach_says_how_to_give_one(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, here = tmp_path / "checkpoint", checkpoints.folder(family, SPEC)
    shutil.copytree(here, place, ignore=shutil.ignore_patterns("tokenizer"))
    for file in place.glob("*.json"):
        file.write_text(file.read_text().replace(str(here / "tokenizer"), "someone/words"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with widths(), pytest.raises(ValueError, match=r"policy\.tokenizer=<folder>"):
        plugins.load("embodied.policies", family)(SPEC, path=str(place))
    with widths():
        policy = plugins.load("embodied.policies", family)(SPEC, path=str(place), tokenizer=str(here / "tokenizer"))
    assert policy.encode(seen())["valid"].any()


def test_a_tokenizer_that_is_no_folder_and_a_negative_rank_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.tokenizer is nowhere, which is no folder"):
        build(path=str(folder), tokenizer="nowhere")
    with pytest.raises(ValueError, match="lora_rank must be 0"):
        build(path=str(folder), lora_rank=-1)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint of LeRobot's: it holds no config\.json"):
        build(path=str(tmp_path))


def test_a_checkpoint_of_another_family_names_the_right_one() -> None:
    with pytest.raises(ValueError, match=r"type 'pi0', not 'smolvla'\. Use policy=pi0"):
        build(path=str(checkpoints.folder("pi0", SPEC)))


def test_other_sizes_of_state_and_action_are_refused_with_the_difference(folder: Path) -> None:
    other = replace(SPEC, state_names=tuple("abcdefg"), action_names=("x", "y"), action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    with pytest.raises(ValueError, match=r"state has 5 numbers there, 7 here \(a, b.*action has 3 numbers there, 2 here \(x, y\)"):
        build(path=str(folder), spec=other)


def test_a_robot_larger_than_the_networks_padding_is_refused(folder: Path) -> None:
    change(folder, input_features={"observation.state": {"type": "STATE", "shape": [32]}})
    with pytest.raises(ValueError, match="room for 32 numbers there, there are 40 here"):
        build(path=str(folder), spec=replace(SPEC, state_names=tuple(f"s{i}" for i in range(40))))


def test_a_base_checkpoint_of_the_whole_padded_width_takes_any_robot_but_needs_statistics(folder: Path) -> None:
    padded = {"observation.state": {"type": "STATE", "shape": [32]}}
    pictures = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 8, 8]} for name in ("front", "wrist")}
    change(folder, input_features=padded | pictures, output_features={"action": {"type": "ACTION", "shape": [32]}})
    for file in folder.glob("*normalizer*.safetensors"):
        save_file({}, file)
    policy = build(path=str(folder))
    with pytest.raises(RuntimeError, match="no statistics"):
        policy.encode(seen())
    policy.fit_statistics(np.random.default_rng(0).normal(size=(9, 5)), np.random.default_rng(0).normal(size=(9, 3)))
    assert bool(policy.encode(seen())["cache"].isfinite().all())


def test_other_cameras_are_refused_with_an_example_that_works(folder: Path) -> None:
    other = replace(SPEC, cameras=(("top", 8, 8), ("wrist", 8, 8)))
    with pytest.raises(ValueError, match=r"top, wrist here, front, wrist there.*policy\.cameras="):
        build(path=str(folder), spec=other)
    paired = build(path=str(folder), spec=other, cameras={"top": "front", "wrist": "wrist"})
    assert paired.features == {"top": "observation.images.front", "wrist": "observation.images.wrist"}


def test_a_named_pairing_may_leave_features_out(folder: Path) -> None:
    one = replace(SPEC, cameras=(("top", 8, 8),))
    with pytest.raises(ValueError, match="top here, front, wrist there"):
        build(path=str(folder), spec=one)
    assert build(path=str(folder), spec=one, cameras={"top": "wrist"}).encode(seen(spec=one))["valid"].any()


@pytest.mark.parametrize("pairs", [{"front": "front"}, {"front": "front", "wrist": "front"}, {"front": "top", "wrist": "wrist"}])
def test_an_impossible_pairing_is_refused(folder: Path, pairs: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="The cameras do not fit"):
        build(path=str(folder), cameras=pairs)


def test_the_only_camera_is_the_only_feature(tmp_path: Path) -> None:
    ours, theirs = (replace(SPEC, cameras=((name, 8, 8),)) for name in ("front", "base_0_rgb"))
    assert build(path=str(checkpoints.folder(POLICY, theirs)), spec=ours).features == {"front": "observation.images.base_0_rgb"}


def test_statistics_of_another_robot_are_refused(folder: Path) -> None:
    file = next(folder.glob("policy_preprocessor*normalizer*.safetensors"))
    save_file({name: tensor[:2].contiguous() for name, tensor in load_file(file).items()}, file)
    with pytest.raises(ValueError, match="statistics of 2 state numbers, there are 5 here"):
        build(path=str(folder))


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_missing_processors_are_an_error(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(ValueError, match=f"holds no {file}, hence no statistics"):
        build(path=str(folder))


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_damaged_processors_are_an_error(folder: Path, file: str) -> None:
    (folder / file).write_text((folder / file).read_text()[:100])
    with pytest.raises(ValueError, match=rf"{file} is damaged"):
        build(path=str(folder))


def test_missing_weights_are_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no model\.safetensors"):
        build(path=str(folder))


def test_damaged_weights_are_an_error(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged or incomplete"):
        build(path=str(folder))


@pytest.mark.parametrize("text", ["{", '{"type": "smolvla", "a_field_of_a_later_version": 1}'])
def test_a_configuration_of_another_version_is_an_error(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="cannot be read by the installed LeRobot"):
        build(path=str(folder))


def test_weights_that_do_not_fit_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.action_in_proj.bias")
    weights["model.extra"] = torch.zeros(1)
    weights["model.action_out_proj.bias"] = torch.zeros(7)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        build(path=str(folder))
    for words in ("model.action_in_proj.bias is missing", "model.extra is unknown", "model.action_out_proj.bias is (7,) there, (32,) here", "3 in all"):
        assert words in str(caught.value)


def test_too_little_memory_is_said_with_the_estimate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    numbers = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    with pytest.raises(ValueError, match=rf"{numbers / 1e9:.2f} billion parameters: {4 * numbers / 2**30:.1f} GiB in float32"):
        build(path=str(folder))


def test_relative_actions_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "pi0"
    shutil.copytree(checkpoints.folder("pi0", SPEC), place)
    file = place / "policy_preprocessor.json"
    steps = json.loads(file.read_text())
    for step in steps["steps"]:
        if step["registry_name"] == "relative_actions_processor":
            step["config"]["enabled"] = True
    file.write_text(json.dumps(steps))
    with pytest.raises(ValueError, match="relative to the state"), widths():
        plugins.load("embodied.policies", "pi0")(SPEC, path=str(place))


def test_a_prompt_longer_than_its_room_is_refused_not_cut(folder: Path) -> None:
    policy = build(path=str(folder), prompt_tokens=20)
    said = replace(seen(), prompt=np.array(["a very long instruction"] * 4))
    with pytest.raises(ValueError, match=r"A prompt has 24 tokens, policy\.prompt_tokens is 20"):
        policy.encode(said)


def test_an_observation_without_the_picture_is_refused(folder: Path) -> None:
    obs: Observation = seen()
    with pytest.raises(ValueError, match="no picture of wrist"):
        build(path=str(folder)).encode(replace(obs, images={"front": obs.images["front"]}))


def test_an_entry_that_seldom_moves_is_normalised_by_its_range() -> None:
    policy = checkpoints.build("pi05", SPEC)  # normalises by the 1st and 99th percentiles
    actions = np.zeros((1000, 3))
    actions[0] = 1.0  # 0 at both percentiles, 1 once; the last entry never moves
    actions[:, 2] = 0.5
    policy.fit_statistics(np.random.default_rng(0).normal(size=(1000, 5)), actions)
    normal = policy.normalise(torch.tensor([[0.0, 1.0, 0.5]]))[..., :3]
    torch.testing.assert_close(normal, torch.tensor([[-1.0, 1.0, 0.0]]))
