"""The arm's model and its numbers agree."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied.sims import arm, scene


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(arm.mjcf(scene.objects_mjcf()))


def test_the_chain_puts_the_tip_where_mujoco_does(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    joints = np.random.default_rng(0).uniform(arm.CHAIN.low, arm.CHAIN.high, (50, 5))
    tips, rotations = arm.CHAIN.forward(joints)
    for q, tip, rotation in zip(joints, tips, rotations, strict=True):
        data.qpos[:5] = q
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(tip, data.site("tip").xpos, atol=1e-9)
        np.testing.assert_allclose(rotation, data.site("tip").xmat.reshape(3, 3), atol=1e-9)


def test_joints_have_the_published_ranges_and_gains(model: mujoco.MjModel) -> None:
    names = (*arm.JOINTS, arm.GRIPPER)
    wanted = [(-1.92, 1.92), (-1.745, 1.745), (-1.69, 1.69), (-1.658, 1.658), (-2.744, 2.841), (-0.175, 1.745)]
    for i, (name, limits) in enumerate(zip(names, wanted, strict=True)):
        joint = model.joint(name)
        np.testing.assert_allclose(joint.range, limits)
        np.testing.assert_allclose(model.actuator(name).ctrlrange, limits)
        dof = joint.dofadr[0]
        assert dof == joint.qposadr[0] == i
        assert (model.dof_damping[dof], model.dof_frictionloss[dof], model.dof_armature[dof]) == (0.60, 0.052, 0.028)
        assert model.actuator(name).gainprm[0] == 17.8
        np.testing.assert_allclose(model.actuator(name).forcerange, [-3.35, 3.35])


def test_links_have_the_published_lengths() -> None:
    lengths = [*np.linalg.norm(arm.CHAIN.origins[2:], axis=1), arm.CHAIN.tip[0]]
    np.testing.assert_allclose(lengths, [0.116, 0.135, 0.061, 0.098], atol=1e-3)
    assert arm.CHAIN.origins[1, 2] == pytest.approx(0.055, abs=1e-3)


def test_inertia_comes_from_the_geoms(model: mujoco.MjModel) -> None:
    """`mj_multiRay` loses geoms of bodies with an explicit inertia, so no body has one."""
    assert "<inertial" not in arm.mjcf(scene.objects_mjcf())
    assert (model.body_mass[1:] > 0).all()


def test_opening_and_servo_angle_invert_each_other() -> None:
    targets = np.random.default_rng(0).random((4, 6))
    np.testing.assert_allclose(arm.opening(arm.servo(targets)[:, -1]), targets[:, -1], atol=1e-12)
    assert arm.servo(np.zeros(6))[-1] == arm.GRIPPER_RANGE[0] and arm.servo(np.ones(6))[-1] == arm.GRIPPER_RANGE[1]


def test_fingers_are_parallel_around_an_object_and_meet_when_closed(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    half = model.geom("fixed_finger").size[1]
    data.joint(arm.GRIPPER).qpos = 0.247
    mujoco.mj_forward(model, data)  # the other hinges at 0: the hand's axes are the world's
    fixed, moving = data.geom("fixed_finger"), data.geom("moving_finger")
    np.testing.assert_allclose(fixed.xmat, moving.xmat, atol=1e-12)
    assert moving.xpos[1] - fixed.xpos[1] - 2 * half == pytest.approx(2 * scene.HALF_HEIGHT)
    assert (moving.xpos[1] + fixed.xpos[1]) / 2 == pytest.approx(arm.GRASP)
    data.joint(arm.GRIPPER).qpos = arm.GRIPPER_RANGE[0]
    mujoco.mj_forward(model, data)
    corner = moving.xpos + moving.xmat.reshape(3, 3) @ [model.geom("moving_finger").size[0], -half, 0]
    assert corner[1] - (fixed.xpos[1] + half) == pytest.approx(0, abs=1e-3)


def test_an_unknown_action_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="choose 'end_effector'"):
        arm.transform("torque")  # type: ignore[arg-type]
