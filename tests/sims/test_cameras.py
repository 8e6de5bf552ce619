"""Pictures: exact, of the right worlds, and the same however they are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied import tree
from embodied.sims import analytic, gl, look, scene, tabletop
from embodied.sims.analytic import AnalyticCaster
from embodied.sims.multi_ray import MultiRayCaster
from embodied.sims.pictures import Props, RayCameras
from embodied.sims.raycast import RayCaster, pixel_rays, place
from embodied.sims.tabletop import Tabletop

TASKS = ("push", "place")
N = 6
ALL = np.arange(N)
CASTERS: dict[str, Callable[..., RayCaster]] = {"analytic": AnalyticCaster, "multi_ray": MultiRayCaster}


def playing(frames: int = 8, tasks: Sequence[str] = TASKS, **options: Any) -> Tabletop:
    """The suite in the middle of things: arms bent over objects, some objects in the fingers."""
    env = tabletop.make(tasks, N, threads=1, **options)
    env.reset(seed=1)
    for _ in range(frames):
        env.step_chunk(env.expert(ALL), ALL)
    return env


@pytest.fixture(scope="module")
def played() -> Tabletop:
    return playing(9)


def world(env: Tabletop) -> tuple[np.ndarray, np.ndarray]:
    return env.engine.qpos(env.engine.state), Props(env.engine.model, env.tasks).places(env.scene)


# -------------------------------------------------------------------- exactness


@pytest.mark.parametrize("kind", CASTERS)
def test_every_pixel_is_what_mj_ray_finds(played: Tabletop, kind: str) -> None:
    caster = CASTERS[kind](played.engine.model, look.CAMERAS, height=24, width=32)
    qpos, mocap = world(played)
    poses = caster.poses(qpos, mocap)
    data, found, normal = mujoco.MjData(played.engine.model), np.zeros(1, np.int32), np.zeros(3)
    seen = set()
    for c, hits in enumerate(caster.cast(qpos, mocap, poses)):
        geom = np.where(hits.table, caster.table, -1).ravel()
        geom[hits.pixel] = hits.geom
        depth = caster.table_depth(poses, c, np.arange(geom.size))
        depth[hits.pixel] = hits.depth
        normals = np.tile([0.0, 0.0, 1.0], (geom.size, 1))
        normals[hits.pixel] = hits.normal
        for lane in ALL:
            place(played.engine.model, data, qpos[lane], mocap[lane])
            rays = caster.rays[c] @ poses.camera_rotation[lane, c].T
            for i, ray in enumerate(rays):
                origin = poses.camera_position[lane, c]
                distance = mujoco.mj_ray(played.engine.model, data, origin, ray, None, 1, -1, found, normal)
                pixel = lane * len(rays) + i
                assert geom[pixel] == found[0]
                if found[0] >= 0:
                    assert depth[pixel] == pytest.approx(distance, abs=1e-9)
                    np.testing.assert_allclose(normals[pixel], normal, atol=1e-7)
        seen |= set(geom)
    # Nothing of this scene was missed: table, arm, both fingers, objects, mark and bins.
    names = {played.engine.model.geom(int(g)).name for g in seen if g >= 0}
    assert {
        "table",
        "fixed_finger",
        "moving_finger",
        "palm",
        "object_0",
        "object_1",
        "object_2",
        "mark",
        "white_bin",
    } <= names
    caster.close()


def test_both_casters_take_the_same_pictures(played: Tabletop) -> None:
    qpos, _ = world(played)
    pictures = []
    for make in CASTERS.values():
        caster = make(played.engine.model, look.CAMERAS, height=64, width=64)
        pictures.append(RayCameras(caster, played.tasks).see(qpos, played.scene, full=True))
        caster.close()
    for name in look.CAMERAS:
        a, b = (picture[name] for picture in pictures)
        np.testing.assert_array_equal(a.geom, b.geom)
        assert np.abs(a.rgb.astype(int) - b.rgb).max() <= 1  # a rounding apart
        np.testing.assert_allclose(a.depth, b.depth, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(played: Tabletop, threads: int) -> None:
    qpos, mocap = world(played)
    one, many = (MultiRayCaster(played.engine.model, ["front"], height=16, width=16, threads=t) for t in (2, threads))
    (a,), (b,) = (caster.cast(qpos, mocap, caster.poses(qpos, mocap)) for caster in (one, many))
    for x, y in zip((a.pixel, a.geom, a.depth), (b.pixel, b.geom, b.depth), strict=True):
        np.testing.assert_array_equal(x, y)


def test_threads_that_share_the_worlds_take_the_same_pictures(played: Tabletop) -> None:
    qpos = np.tile(played.engine.qpos(played.engine.state), (24, 1))
    scenes = np.tile(played.scene, (24, 1))
    caster = CASTERS["analytic"](played.engine.model, look.CAMERAS, height=16, width=16)
    one, two = (RayCameras(caster, played.tasks, threads=t).see(qpos, scenes, full=True) for t in (1, 2))
    for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(["box", "capsule", "cylinder"]), seed=st.integers(0, 2**32 - 1))
def test_primitives_are_hit_where_mj_ray_hits_them(kind: str, seed: int) -> None:
    """Random sizes, poses and rays; the camera stands outside, as the intersections ask for."""
    rng = np.random.default_rng(seed)
    size = " ".join(f"{x:.3f}" for x in rng.uniform(0.02, 0.3, 3 if kind == "box" else 2))
    turn = " ".join(f"{x:.3f}" for x in rng.uniform(-3, 3, 3))
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><body><freejoint/><geom name="g" type="{kind}" size="{size}" euler="{turn}"/></body></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    origin = rng.normal(size=3)
    origin *= 1.2 / np.linalg.norm(origin)
    rays = 0.3 * rng.normal(size=(64, 3)) - origin
    rotation = data.geom("g").xmat.reshape(3, 3)
    local = [np.full(64, x) for x in origin @ rotation], list((rays @ rotation).T)
    with np.errstate(all="ignore"):
        hit, t, normal = analytic.INTERSECT[int(model.geom_type[0])](*local, model.geom_size[0])
    distances, normals = np.full(64, -1.0), np.zeros((64, 3))
    distances[hit], normals[hit] = t, normal @ rotation.T
    for ray, distance, outward in zip(rays, distances, normals, strict=True):
        wanted = np.zeros(3)
        assert mujoco.mj_ray(model, data, origin, ray, None, 1, -1, None, wanted) == pytest.approx(distance, abs=1e-8)
        if distance >= 0:
            np.testing.assert_allclose(outward, wanted, atol=1e-5)


def test_rays_go_through_the_middle_of_pixels() -> None:
    """Square pixels: an angle of fovy from the upper to the lower edge; rows go down, columns right."""
    rays = pixel_rays(90.0, 4, 6).reshape(4, 6, 3)
    np.testing.assert_allclose(rays[:, 0, 1], [0.75, 0.25, -0.25, -0.75])
    np.testing.assert_allclose(rays[0, :, 0], [-1.25, -0.75, -0.25, 0.25, 0.75, 1.25])
    assert (rays[..., 2] == -1).all()


def test_bodies_with_several_geoms_are_refused_where_mj_multi_ray_would_lose_some() -> None:
    two = '<body name="pair"><geom size=".1"/><geom size=".1" pos=".3 .1 0"/></body>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><geom name="table" type="plane" size="1 1 1"/><camera name="c"/>{two}</worldbody></mujoco>'
    )
    with pytest.raises(ValueError, match="Bodies pair have several geoms"):
        MultiRayCaster(model, ["c"], height=4, width=4)
    with pytest.raises(ValueError, match="use cameras of kind 'multi_ray'"):
        AnalyticCaster(model, ["c"], height=4, width=4)


# -------------------------------------------------------------------- what pictures show


def test_pictures_have_their_orientation_and_colours() -> None:
    """Seen from the front, the arm's left is the picture's right, and near things are below far ones."""
    env = tabletop.make(["reach"], 1, cameras=["front"])
    env.reset(seed=0)
    places = {"red": (0.20, -0.12), "green": (0.20, 0.12), "blue": (0.27, 0.0)}
    for i in range(3):
        colour = list(scene.COLOURS)[int(env.scene[0, scene.COLOUR][i])]
        column = scene.ARM_DOFS + 4 * i
        env.engine.qpos(env.engine.state)[0, column : column + 4] = [*places[colour], 0, 0]
    picture = env.pictures(np.array([0]))["front"].rgb[0].astype(int)
    centres = {}
    for channel, colour in enumerate(scene.COLOURS):
        mask = picture[..., channel] - np.delete(picture, channel, axis=2).max(2) > 60
        assert mask.sum() > 8
        centres[colour] = np.argwhere(mask).mean(0)  # row, column
    assert centres["red"][1] < centres["blue"][1] < centres["green"][1]
    assert centres["blue"][0] > centres["red"][0]
    assert abs(centres["red"][0] - centres["green"][0]) < 2


def test_the_named_object_can_be_picked_out_of_a_picture() -> None:
    env = playing(3, ("reach", "lift"), cameras=["front"])
    picture = env.pictures(ALL)["front"]
    named = env.geom_of(ALL)
    for lane in ALL:
        mask = picture.geom[lane] == named[lane]
        colour = list(scene.COLOURS)[int(env.scene[lane, scene.COLOUR][int(env.scene[lane, scene.NAMED])])]
        assert colour in env._seen.prompt[lane]
        if mask.any():
            assert picture.rgb[lane][mask].mean(0).argmax() == list(scene.COLOURS).index(colour)
    assert sum((picture.geom[lane] == named[lane]).any() for lane in ALL) >= N - 1


def test_depth_is_measured_along_the_cameras_axis(played: Tabletop) -> None:
    """Over the table plane: every point's height, put back together from its depth, is 0."""
    env = playing(0, cameras=["front"])
    picture = env.pictures(ALL)["front"]
    model = env.engine.model
    caster = AnalyticCaster(model, ["front"], height=64, width=64)
    poses = caster.poses(*world(env))
    points = poses.camera_position[0, 0] + picture.depth[0].reshape(-1, 1) * (
        caster.rays[0] @ poses.camera_rotation[0, 0].T
    )
    table = picture.geom[0].ravel() == caster.table
    assert table.sum() > 2000
    np.testing.assert_allclose(points[table, 2], 0, atol=1e-6)


def test_props_of_other_tasks_are_put_away() -> None:
    env = playing(0, ("push", "place"), cameras=["front"])
    geom = env.pictures(ALL)["front"].geom
    for lane, task in enumerate(env.task_names(ALL)):
        names = {env.engine.model.geom(int(g)).name for g in np.unique(geom[lane]) if g >= 0}
        assert ("mark" in names) == (task == "push")
        assert any(name.endswith("bin") for name in names) == (task == "place")


# -------------------------------------------------------------------- in the environment


def test_observations_carry_pictures_of_the_state_after_the_step() -> None:
    env = playing(0, ("reach",), cameras=["front", "wrist"], image_size=32)
    assert env.embodiment.cameras == (("front", 32, 32), ("wrist", 32, 32))
    result = env.step_chunk(env.expert(ALL), ALL)
    for name, picture in env.pictures(ALL).items():
        np.testing.assert_array_equal(result.observation.images[name], picture.rgb)
    observation, _ = env.reset(options={"reset_mask": ALL == 2})
    assert observation["images/front"].shape == (N, 32, 32, 3)
    changed = (observation["images/front"] != result.observation.images["front"]).any((1, 2, 3))
    np.testing.assert_array_equal(changed, ALL == 2)


def test_pictures_of_a_lane_do_not_depend_on_its_neighbours() -> None:
    many = playing(4, ("push",), cameras=["front", "wrist"])
    alone = tabletop.make(["push"], 1, cameras=["front", "wrist"])
    alone.reset(seed=3)
    for _ in range(4):
        single = alone.step_chunk(alone.expert(np.array([0])), np.array([0])).observation
    for name in look.CAMERAS:
        np.testing.assert_array_equal(single.images[name][0], many._seen.images[name][2])


def test_snapshots_restore_pictures() -> None:
    env = playing(3, ("place",), cameras=["wrist"], randomise=1.0)
    saved, before = env.snapshot(ALL), env._seen.images["wrist"].copy()
    env.reset()
    np.testing.assert_array_equal(env.restore(ALL, saved).images["wrist"], before)


def test_a_diverged_lane_keeps_the_picture_of_its_decision(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = playing(2, ("reach",), cameras=["front"])
    before = env._seen.images["front"].copy()
    env.engine.qvel(env.engine.state)[3, 2] = np.nan
    result = env.step_chunk(env.expert(ALL), ALL)
    assert result.invalid[3]
    np.testing.assert_array_equal(result.observation.images["front"][3], before[3])


def test_unknown_cameras_sizes_and_kinds_are_refused() -> None:
    for options, words in (
        ({"cameras": ["top"]}, "no camera 'top'"),
        ({"cameras": ["front", "front"]}, "repeat"),
        ({"cameras": ["front"], "image_size": 0}, "at least 1 x 1"),
        ({"cameras": ["front"], "renderer": "vulkan"}, "choose 'ray'"),
        ({"randomise": 2.0}, "randomise is 2.0"),
    ):
        with pytest.raises(ValueError, match=words):
            tabletop.make(["reach"], 1, **options)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="without cameras"):
        playing(0, ("reach",)).pictures(ALL)


def test_render_shows_a_lane_at_video_size() -> None:
    env = playing(2, ("push",))
    frame = env.render(1)
    assert frame.shape == (360, 480, 3) and frame.dtype == np.uint8
    assert (frame != env.render(2)).any()
    assert env.render(1, camera="wrist", height=50, width=70).shape == (50, 70, 3)
    env.close()


# -------------------------------------------------------------------- randomisation


def test_randomisation_is_off_by_default_and_leaves_the_scene_alone() -> None:
    plain, varied = (playing(0, randomise=share) for share in (0.0, 1.0))
    np.testing.assert_array_equal(plain.engine.state, varied.engine.state)
    assert (plain.scene[:, scene.LOOK] == 0).all()
    assert (np.abs(varied.scene[:, scene.LOOK]) <= 1).all() and varied.scene[:, scene.LOOK].std() > 0.4
    np.testing.assert_array_equal(plain.scene[:, : scene.LOOK.start], varied.scene[:, : scene.LOOK.start])
    assert plain.engine.variants is None


def test_randomised_lanes_look_different_and_each_the_same_again() -> None:
    envs = [playing(0, ("reach",), cameras=["front"], randomise=1.0) for _ in range(2)]
    first, second = (env._seen.images["front"] for env in envs)
    np.testing.assert_array_equal(first, second)
    corners = first[:, -1, -1].astype(int)  # bare table
    assert len({tuple(c) for c in corners}) == N


def test_randomised_cameras_stay_rigid_and_near() -> None:
    env = playing(0, ("reach",), randomise=1.0)
    caster = AnalyticCaster(env.engine.model, look.CAMERAS, height=8, width=8)
    plain = caster.poses(*world(env))
    moved = look.move_cameras(plain, env.scene, [0, 1])
    turn = moved.camera_rotation
    np.testing.assert_allclose(turn @ turn.transpose(0, 1, 3, 2), np.broadcast_to(np.eye(3), turn.shape), atol=1e-12)
    shift = np.abs(moved.camera_position - plain.camera_position)
    assert 0 < shift.max() <= look.CAMERA_MOVE
    cosine = (turn * plain.camera_rotation).sum((2, 3)).min() / 2 - 0.5
    assert cosine >= np.cos(3 * look.CAMERA_TURN)


def test_objects_keep_the_colour_they_are_named_by() -> None:
    env = playing(0, ("reach",), randomise=1.0)
    seen = look.Appearance(env.engine.model).look(env.scene)
    for i in range(3):
        geom = env.engine.model.geom(f"object_{i}").id
        np.testing.assert_array_equal(seen.colour[:, geom].argmax(1), env.scene[:, scene.COLOUR][:, i])


def test_friction_varies_with_the_lane_and_returns_with_a_snapshot() -> None:
    env = playing(2, ("push",), randomise=1.0)
    finger = env.engine.model.geom("fixed_finger").id
    plain = env.engine.model.geom_friction[finger, 0]
    assert env.engine.variants is not None
    friction = [variant.geom_friction[finger, 0] for variant in env.engine.variants]
    np.testing.assert_allclose(friction, plain * (1 + look.FRICTION_SHARE * env.scene[:, scene.LOOK][:, look.FRICTION]))
    saved = env.snapshot(ALL)
    moves = np.random.default_rng(0).normal(size=(N, 12, 6)).astype(np.float32) * 0.02
    first = env.step_chunk(moves, ALL).observation.state
    env.reset()
    env.restore(ALL, saved)
    np.testing.assert_array_equal(env.step_chunk(moves, ALL).observation.state, first)


# -------------------------------------------------------------------- OpenGL


@pytest.fixture(scope="module")
def backend() -> gl.Backend:
    try:
        return gl.backend()
    except RuntimeError as problem:
        pytest.skip(str(problem))


def test_opengl_shows_the_same_world(backend: gl.Backend) -> None:
    assert backend.name in gl.BACKENDS and backend.renderer
    ray, drawn = (playing(6, ("place",), cameras=["front", "wrist"], renderer=kind) for kind in ("ray", "gl"))
    for name in look.CAMERAS:
        a, b = (env._seen.images[name].astype(int) for env in (ray, drawn))
        # Other shading and anti-aliasing, the same things at the same places.
        assert (np.abs(a - b).max(3) < 40).mean() > 0.93
        assert (np.abs(a - b[:, ::-1]).max(3) < 40).mean() < (np.abs(a - b).max(3) < 40).mean()
    drawn.close()


def test_software_rasterisers_are_called_so() -> None:
    assert gl.Backend("egl", "llvmpipe (LLVM 15.0.6, 256 bits)").software
    assert gl.Backend("osmesa", "whatever").software
    assert not gl.Backend("egl", "NVIDIA H200/PCIe/SSE2").software


def test_without_opengl_the_run_goes_on_with_rays_and_says_so() -> None:
    """A child process in which neither EGL nor OSMesa can be loaded."""
    code = (
        "import warnings, sys\n"
        "from embodied.sims import gl, tabletop\n"
        "gl._ASK = 'raise ImportError(\"no driver of {name}\")'\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    env = tabletop.make(['reach'], 1, cameras=['front'], renderer='gl')\n"
        "env.reset(seed=0)\n"
        "words = str(caught[-1].message)\n"
        "assert 'no driver of egl' in words and 'no driver of osmesa' in words, words\n"
        "assert 'Going on with' in words and env._seen.images['front'].any()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_state_runs_load_no_opengl() -> None:
    code = (
        "import sys\nfrom embodied.sims import tabletop\nenv = tabletop.make(['reach'], 1, cameras=['front'])\n"
        "env.reset(seed=0)\nsys.exit('OpenGL' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
