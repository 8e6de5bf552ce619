"""Foreign data come in whole, go out whole, and are refused where they are unsound or ambiguous."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from embodied.cli import data as command
from embodied.data.episodes import DamageError
from embodied.data.experience import Demonstrations, Replay
from embodied.data.interop import replay_buffer
from embodied.data.interop.fields import Fields, choose_pictures, choose_scale
from embodied.data.interop.replay_buffer import ReplayBuffer
from embodied.data.store import Store
from embodied.types import Spec

from .episodes import SPEC, make_episode

LENGTHS = (3, 2, 4)
PROMPTED = Spec(**{**vars(SPEC), "cameras": (("front", 32, 48), ("wrist", 32, 48)), "prompts": True})
EPISODES = [make_episode(n, seed=i, spec=PROMPTED) for i, n in enumerate(LENGTHS)]


def make_buffer(path: Path, zarr_format: int = 2, **change: Any) -> Path:
    """A replay buffer as diffusion policy writes it, with chunks that do not end where episodes do."""
    columns: dict[str, Any] = {
        "action": np.concatenate([e.action for e in EPISODES]),
        "state": np.concatenate([e.state[:-1] for e in EPISODES]),
        "img": np.concatenate([e.images["front"][:-1] for e in EPISODES]).astype(np.float32),
        "n_contacts": np.ones((9, 1), np.float32),
    } | change
    root = zarr.create_group(path, zarr_format=zarr_format)
    for name, rows in columns.items():
        if rows is not None and name != "ends":
            root.create_array(f"data/{name}", data=rows, chunks=(5, *rows.shape[1:]), config={"write_empty_chunks": True})
    ends = change.get("ends", np.cumsum(LENGTHS))
    root.create_array("meta/episode_ends", data=ends, chunks=ends.shape)
    return path


def zipped(path: Path) -> Path:
    target = path.with_name(path.name + ".zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(path).as_posix())
    return target


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("pack", [lambda path: path, zipped], ids=["folder", "zip"])
def test_a_replay_buffer_is_read_in_place(tmp_path: Path, zarr_format: int, pack: Callable[[Path], Path]) -> None:
    path = pack(make_buffer(tmp_path / "push.zarr", zarr_format))
    source = ReplayBuffer(path, Fields(hz=10.0))
    assert [row.length for row in source.rows] == list(LENGTHS)
    assert source.spec.cameras == (("img", 32, 48),)
    for read, written in zip(source, EPISODES, strict=True):
        np.testing.assert_array_equal(read.action, written.action)
        np.testing.assert_array_equal(read.state[:-1], written.state[:-1])
        np.testing.assert_array_equal(read.state[-1], read.state[-2])
        np.testing.assert_array_equal(read.images["img"], written.images["front"][:-1])
        assert read.terminated, "nothing bootstraps from the observation that was never recorded"
    batch = next(Demonstrations(source, horizon=2, batch_size=9, seed=0))
    frame, number = batch.obs.state[:, 0].astype(int), batch.obs.state[:, 1].astype(int)
    for i in range(9):
        np.testing.assert_array_equal(batch.obs.images["img"][i], EPISODES[number[i]].images["front"][frame[i]])
    np.testing.assert_array_equal(batch.executed, np.minimum(2, np.array(LENGTHS)[number] - frame))
    assert (next(Replay(source, horizon=2, batch_size=9, seed=0)).discount >= 0).all()


def test_columns_of_read_only_data_lie_beside_it(tmp_path: Path) -> None:
    source = ReplayBuffer(make_buffer(tmp_path / "push.zarr"), Fields(hz=10.0), side=tmp_path / "side")
    source.columns.write("advantage", [(row.id, np.full(row.length, row.sequence, np.float32)) for row in source.rows], {})
    batch = next(Demonstrations(source, horizon=2, batch_size=9, seed=0, advantage="advantage"))
    np.testing.assert_array_equal(batch.advantage, batch.obs.state[:, 1])


BAD_BUFFERS: dict[str, tuple[dict[str, Any], Fields, str]] = {
    "ends beyond the rows": ({"ends": np.array([3, 5, 10])}, Fields(hz=10), "has 9 rows, episode_ends ends at 10"),
    "ends before the rows": ({"ends": np.array([3, 5])}, Fields(hz=10), "has 9 rows, episode_ends ends at 5"),
    "an empty episode": ({"ends": np.array([5, 5, 9])}, Fields(hz=10), "at least one frame"),
    "falling ends": ({"ends": np.array([5, 3, 9])}, Fields(hz=10), "at least one frame"),
    "a short column": ({"state": np.zeros((8, 3))}, Fields(hz=10), "state has 8 rows"),
    "NaN": ({"action": np.full((9, 2), np.nan)}, Fields(hz=10), "action is not finite at row 0"),
    "no rate": ({}, Fields(), "--hz"),
    "degrees": ({"state": np.full((9, 3), 90.0) + np.arange(9)[:, None]}, Fields(hz=10), "--units deg"),
    "no action": ({"action": None}, Fields(hz=10), "--action"),
    "two states": ({"state": None, "pose": np.zeros((9, 2)), "pos": np.zeros((9, 2))}, Fields(hz=10), "--state"),
    "an unknown column": ({}, Fields(hz=10, state=("stat",)), "no column 'stat'"),
    "pictures up to 1": ({"img": np.full((9, 32, 48, 3), 0.9)}, Fields(hz=10), "--picture-top"),
    "pictures below 0": ({"img": np.full((9, 32, 48, 3), -1.0)}, Fields(hz=10), "from -1 to -1"),
    "pictures of 3 by 3 by 3": ({"img": np.zeros((9, 3, 4, 3), np.uint8)}, Fields(hz=10), "--pictures"),
    "grey pictures": ({"img": np.zeros((9, 32, 48, 1), np.uint8)}, Fields(hz=10), "--camera"),
}


@pytest.mark.parametrize("change, fields, words", BAD_BUFFERS.values(), ids=BAD_BUFFERS)
def test_an_unsound_or_ambiguous_buffer_is_refused(tmp_path: Path, change: dict[str, Any], fields: Fields, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        ReplayBuffer(make_buffer(tmp_path / "bad.zarr", **change), fields)
    assert "\n" not in str(caught.value)


def test_what_is_no_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no replay buffer"):
        ReplayBuffer(tmp_path)


def test_a_missing_chunk_is_an_error_and_never_zeros(tmp_path: Path) -> None:
    path = make_buffer(tmp_path / "push.zarr")
    source = ReplayBuffer(path, Fields(hz=10.0))
    (path / "data" / "img" / "1.0.0.0").unlink()
    source.read("000000000")
    with pytest.raises(DamageError, match=r"img lacks chunks in rows 5 to 9.*--missing-is-zero"):
        source.read("000000002")


def test_zeros_that_zarr_left_out_can_be_declared(tmp_path: Path) -> None:
    path = make_buffer(tmp_path / "push.zarr")
    (path / "data" / "img" / "1.0.0.0").unlink()
    read = ReplayBuffer(path, Fields(hz=10.0, missing_is_zero=True)).read("000000002")
    assert not read.images["img"].any()


def test_degrees_become_radians_and_grippers_open_at_one() -> None:
    names = ["shoulder.pos", "gripper.pos"]
    low, high = np.array([-90.0, 0.0]), np.array([90.0, 100.0])
    scale = choose_scale("state", names, low, high, Fields(units="deg", gripper=(0, 100)))
    np.testing.assert_allclose(scale(np.array([[90.0, 25.0]])), [[np.pi / 2, 0.25]], rtol=1e-6)
    flipped = choose_scale("state", names, low, high, Fields(units="deg", gripper=(1, -1)))
    np.testing.assert_allclose(flipped(np.array([[0.0, 1.0], [0.0, -1.0]]))[:, 1], [0, 1])
    with pytest.raises(ValueError, match="--gripper"):
        choose_scale("state", names, low, high, Fields(units="deg"))


def test_pictures_keep_their_values_whatever_their_layout() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), np.uint8)
    for array, fields in (
        (pictures.astype(np.float32), Fields()),
        (pictures / np.float32(255), Fields(picture_top=1)),
        (pictures.transpose(0, 3, 1, 2), Fields()),
        (pictures[:, :3].transpose(0, 3, 1, 2), Fields()),
    ):
        read = choose_pictures("img", array, fields)(array)
        np.testing.assert_array_equal(read, pictures[:, : read.shape[1]])


def test_a_store_goes_out_as_a_replay_buffer_and_comes_back(tmp_path: Path) -> None:
    replay_buffer.write(tmp_path / "out.zarr", EPISODES)
    for read, written in zip(ReplayBuffer(tmp_path / "out.zarr", Fields(hz=10)), EPISODES, strict=True):
        np.testing.assert_array_equal(read.action, written.action)
        np.testing.assert_array_equal(read.images["wrist"], written.images["wrist"][:-1])


def make_store(path: Path) -> Path:
    with Store.create(path, PROMPTED) as store:
        for episode in EPISODES:
            store.append(episode)
    return path


def test_robomimic_demonstrations_keep_their_true_last_observation(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "demo.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        for number in (10, 2, 1):  # not in order
            episode = EPISODES[number % 3]
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = episode.length
            demo["actions"], demo["rewards"] = episode.action, episode.reward
            for group, rows in (("obs", slice(0, -1)), ("next_obs", slice(1, None))):
                demo[f"{group}/eef"], demo[f"{group}/agentview_image"] = episode.state[rows], episode.images["front"][rows]
        file["mask/train"] = np.array([b"demo_2"])
    assert command.main(["import", str(path), str(tmp_path / "s"), "--task", "lift"]) == 0
    with Store.open(tmp_path / "s") as store:
        assert (store.spec.control_hz, store.spec.robot) == (20.0, "Lift")
        assert store.spec.cameras == (("agentview", 32, 48),)
        for read, number in zip(store, (1, 2, 10), strict=True):
            written = EPISODES[number % 3]
            np.testing.assert_array_equal(read.state, written.state)
            np.testing.assert_array_equal(read.images["agentview"], written.images["front"])
            np.testing.assert_array_equal(read.reward, written.reward)
            assert read.success
    assert command.main(["import", str(path), str(tmp_path / "m"), "--mask", "train"]) == 0
    assert len(Store.open(tmp_path / "m")) == 1
    with h5py.File(path, "a") as file:
        file["data/demo_2"].attrs["num_samples"] = 7
    with pytest.raises(ValueError, match="num_samples says 7"):
        command.main(["import", str(path), str(tmp_path / "bad")])
    assert not (tmp_path / "bad").exists()


@pytest.fixture(scope="module")
def lerobot_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that lerobot itself wrote."""
    pytest.importorskip("datasets")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = tmp_path_factory.mktemp("lerobot") / "set"
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["dx", "dy"]},
        "observation.images.top": {"dtype": "image", "shape": (32, 48, 3), "names": ["height", "width", "channels"]},
    }
    made = LeRobotDataset.create("me/set", fps=10, features=features, root=root, robot_type="arm", use_videos=False)
    for episode in EPISODES:
        for t in range(episode.length):
            frame = {"observation.state": episode.state[t], "action": episode.action[t], "task": episode.prompt}
            made.add_frame(frame | {"observation.images.top": episode.images["front"][t]})
        made.save_episode()
    made.finalize()
    return root


def test_a_lerobot_set_comes_in_and_goes_back_with_equal_frames(lerobot_set: Path, tmp_path: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    assert command.main(["import", str(lerobot_set), str(tmp_path / "s")]) == 0
    with Store.open(tmp_path / "s") as store:
        assert store.spec.state_names == ("x", "y", "z")
        assert store.spec.control_hz == 10
        for read, written in zip(store, EPISODES, strict=True):
            np.testing.assert_array_equal(read.state[:-1], written.state[:-1])
            np.testing.assert_array_equal(read.action, written.action)
            np.testing.assert_array_equal(read.images["top"], written.images["front"][:-1])
            assert read.prompt == written.prompt
    assert command.main(["export", str(tmp_path / "s"), str(tmp_path / "back")]) == 0
    ours, theirs = LeRobotDataset("me/back", root=tmp_path / "back"), LeRobotDataset("me/set", root=lerobot_set)
    assert len(ours) == len(theirs) == sum(LENGTHS)
    for i in range(len(ours)):
        one, other = ours[i], theirs[i]
        for key in theirs.features:
            np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(other[key]))
        assert one["task"] == other["task"]


def test_videos_go_out_and_come_in_nearly_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    smooth = np.linspace(0, 200, 48, dtype=np.uint8)[None, :, None] + np.zeros((32, 48, 3), np.uint8)
    episodes = [
        replace(e, images={n: np.stack([smooth + 10 * i + t for t in range(e.length + 1)]) for n in e.images})
        for i, e in enumerate(EPISODES)
    ]
    with Store.create(tmp_path / "s", PROMPTED) as store:
        for episode in episodes:
            store.append(episode)
    assert command.main(["export", str(tmp_path / "s"), str(tmp_path / "v"), "--videos"]) == 0
    assert list((tmp_path / "v" / "videos").rglob("*.mp4"))
    assert command.main(["import", str(tmp_path / "v"), str(tmp_path / "back")]) == 0
    with Store.open(tmp_path / "back") as store:
        for read, written in zip(store, episodes, strict=True):
            apart = read.images["front"].astype(int) - written.images["front"][:-1].astype(int)
            assert np.abs(apart).mean() < 3


def test_a_set_whose_recorder_was_killed_is_refused_in_words(lerobot_set: Path, tmp_path: Path) -> None:
    shutil.copytree(lerobot_set, tmp_path / "torn")
    (table,) = (tmp_path / "torn" / "data").rglob("*.parquet")
    table.write_bytes(table.read_bytes()[:-200])
    with pytest.raises(ValueError, match="lerobot cannot open"):
        command.main(["import", str(tmp_path / "torn"), str(tmp_path / "s")])
    assert not list(tmp_path.glob("s*"))


def test_info_names_what_is_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = Spec(**{**vars(SPEC), "state_names": ("x", "fixed", "gripper")})
    with Store.create(tmp_path / "s", names) as store:
        for seed in range(2):
            episode = make_episode(8, seed=seed, spec=names)
            state = episode.state.copy()
            state[:, 1], state[0, 2] = 0.5, 80
            still = {name: np.repeat(pictures[:1], 9, 0) for name, pictures in episode.images.items()}
            store.append(replace(episode, state=state, images=still))
    assert command.main(["info", str(tmp_path / "s"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["episodes"], facts["frames"], facts["success"]) == (2, 16, 1.0)
    assert facts["length"] == {"min": 8, "median": 8.0, "max": 8}
    assert any("fixed is always 0.5" in line for line in facts["odd"])
    assert any("gripper runs from" in line and "80" in line for line in facts["odd"])
    assert any("repeat the one before in 2 episodes" in line for line in facts["odd"])
    assert command.main(["info", str(tmp_path / "s")]) == 0
    assert "look at" in capsys.readouterr().out


def test_verify_finds_what_repair_sets_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_store(tmp_path / "s")
    with Store.open(path, write=True) as store:
        for n in range(10):
            store.append(make_episode(2, seed=n, spec=PROMPTED))
        bad = store.ids[0]
    assert command.main(["verify", str(path)]) == 0
    assert "13 episodes, 0 damaged" in capsys.readouterr().out
    (file,) = (path / "episodes").glob(f"*/{bad}/frames/c.0.0")
    file.write_bytes(bytes(file.stat().st_size))
    assert command.main(["verify", str(path)]) == 1
    assert f"damaged: Episode '{bad}': frames/c.0.0" in capsys.readouterr().out
    assert command.main(["repair", str(path)]) == 0
    assert command.main(["verify", str(path)]) == 0
    assert "12 episodes, 0 damaged" in capsys.readouterr().out


def test_an_export_of_a_store_equals_it_after_an_import(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    assert command.main(["export", str(path), str(tmp_path / "out.zarr"), "--kind", "replay-buffer"]) == 0
    assert command.main(["import", str(tmp_path / "out.zarr"), str(tmp_path / "back"), "--hz", "10"]) == 0
    with Store.open(tmp_path / "back") as store:
        for read, written in zip(store, EPISODES, strict=True):
            np.testing.assert_array_equal(read.action, written.action)
