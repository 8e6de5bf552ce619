"""The batched engine: one call for all lanes, and what a lane's state decides."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied.sims import arm, scene
from embodied.sims.engine import Engine

FALL = """
<mujoco><option timestep="0.01" gravity="0 0 -9.81"><flag warmstart="disable"/></option>
<worldbody><body pos="0 0 5"><freejoint/><geom size="0.1" mass="1"/></body></worldbody></mujoco>"""
LANES = np.arange(6)


def engine(threads: int = 2, lanes: int = 6) -> Engine:
    made = Engine(mujoco.MjModel.from_xml_string(arm.mjcf(scene.objects_mjcf())), lanes, substeps=10, threads=threads)
    made.qpos(made.state)[:, : scene.ARM_DOFS] = arm.servo(np.append(arm.HOME, 0.4))
    for i in range(3):
        made.qpos(made.state)[:, scene.ARM_DOFS + 4 * i : scene.ARM_DOFS + 4 * i + 2] = 0.21, 0.05 * (i - 1)
    return made


def controls(lanes: int = 6, frames: int = 5, seed: int = 0) -> np.ndarray:
    """Targets that press the fingers into the objects, so that contacts are part of every comparison."""
    rng = np.random.default_rng(seed)
    goal = np.array([0.0, -0.3, 0.75, 1.1, 0.0, 0.1])
    return arm.servo(goal + 0.2 * rng.normal(size=(lanes, frames, 6)))


def run(made: Engine, control: np.ndarray, lanes: np.ndarray = LANES) -> np.ndarray:
    after, sane = made.run(lanes, control)
    assert sane.all()
    return after


def test_contacts_happen_in_these_tests() -> None:
    after = run(engine(), controls())
    moved = np.abs(after[:, -1, 1 + scene.ARM_DOFS : 19] - engine().state[:, 1 + scene.ARM_DOFS : 19]).max(1)
    assert (moved > 1e-3).sum() >= 3


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    np.testing.assert_array_equal(run(engine(threads), controls()), run(engine(2), controls()))


def test_frames_one_by_one_equal_a_chunk_bit_for_bit() -> None:
    made = engine()
    whole = run(made, controls())
    for h in range(whole.shape[1]):
        made.state[:] = run(made, controls()[:, h : h + 1])[:, 0]
        np.testing.assert_array_equal(made.state, whole[:, h])


def test_a_restored_state_continues_bit_for_bit() -> None:
    whole = run(engine(), controls())
    other = engine()
    run(other, controls(seed=9))  # something else in the pool's memory
    other.state[:] = whole[:, 1]
    np.testing.assert_array_equal(run(other, controls()[:, 2:]), whole[:, 2:])


def test_lanes_do_not_know_each_other() -> None:
    whole = run(engine(), controls())
    for lane in LANES:
        alone = run(engine(1, 1), controls()[lane : lane + 1], np.array([0]))
        np.testing.assert_array_equal(alone[0], whole[lane])


def test_a_run_commits_nothing() -> None:
    made = engine()
    before = made.state.copy()
    run(made, controls())
    np.testing.assert_array_equal(made.state, before)


def test_states_are_those_after_the_step() -> None:
    """Free fall of 10 steps (public fault B47): z = 5 - g dt^2 (1 + 2 + ... + 10), not one substep older."""
    made = Engine(mujoco.MjModel.from_xml_string(FALL), 1, substeps=10, threads=1)
    made.qpos(made.state)[0, :7] = 0, 0, 5, 1, 0, 0, 0
    after = run(made, np.zeros((1, 1, 0)), np.array([0]))
    assert made.qpos(after)[0, 0, 2] == pytest.approx(5 - 9.81 * 0.01**2 * 55, abs=1e-12)
    assert made.qpos(after)[0, 0, 2] == pytest.approx(4.946045, abs=1e-6)


@pytest.fixture
def warnings_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes MUJOCO_LOG.TXT into the working directory when a world diverges."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("warnings_elsewhere")
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12, 9e9])
def test_a_diverged_lane_is_reported_and_touches_no_other(value: float) -> None:
    whole = run(engine(), controls())
    made = engine()
    made.qvel(made.state)[2, 1] = value
    after, sane = made.run(LANES, controls())
    np.testing.assert_array_equal(sane, LANES != 2)
    np.testing.assert_array_equal(after[sane], whole[sane])


@pytest.mark.usefixtures("warnings_elsewhere")
def test_a_diverged_lane_leaves_the_pool_usable() -> None:
    made = engine()
    made.qvel(made.state)[2, 1] = 9e9
    made.run(LANES, controls())
    made.state[:] = engine().state
    np.testing.assert_array_equal(run(made, controls()), run(engine(), controls()))


def test_lanes_may_differ_in_physics() -> None:
    made = engine()
    slippery = mujoco.MjModel.from_xml_string(arm.mjcf(scene.objects_mjcf(), friction_loss=0.0))
    made.variants = [made.model, slippery] * 3
    mixed, plain = run(made, controls()), run(engine(), controls())
    np.testing.assert_array_equal(mixed[::2], plain[::2])
    assert (mixed[1::2] != plain[1::2]).any((1, 2)).all()


def test_a_model_with_warm_start_is_refused() -> None:
    model = mujoco.MjModel.from_xml_string(FALL.replace('<flag warmstart="disable"/>', ""))
    with pytest.raises(ValueError, match="warm start"):
        Engine(model, 1, substeps=1)


def test_closing_twice_is_allowed_and_running_starts_anew() -> None:
    made = engine()
    before = run(made, controls())
    made.close()
    made.close()
    np.testing.assert_array_equal(run(made, controls()), before)
