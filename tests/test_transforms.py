"""Kinematics of a chain and end-effector steps."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.transforms import EndEffectorDelta, JointTargets, SerialChain

PLANAR = SerialChain(
    origins=np.array([[0.0, 0, 0], [0.3, 0, 0]]),
    axes=np.array([[0, 0, 1.0], [0, 0, 1.0]]),
    tip=np.array([0.2, 0, 0]),
    low=np.array([-3.0, -3.0]),
    high=np.array([3.0, 3.0]),
)
ARM = SerialChain(
    origins=np.array([[0, 0, 0.1], [0.03, 0, 0.05], [0.03, 0, 0.11], [0.13, 0, 0], [0.06, 0, 0]]),
    axes=np.array([[0, 0, 1.0], [0, 1.0, 0], [0, 1.0, 0], [0, 1.0, 0], [1.0, 0, 0]]),
    tip=np.array([0.1, 0, 0]),
    low=np.full(5, -1.7),
    high=np.full(5, 1.7),
)
BENT = np.array([[0.2, -0.6, 0.5, 1.3, 0.3]])
"""A pose well inside the workspace, the tip pointing down."""
delta = EndEffectorDelta(ARM, 3, roll=4)


def command(joints: np.ndarray, opening: float = 0.5) -> np.ndarray:
    return np.column_stack([joints, np.full(len(joints), opening)])


def action(**parts: float) -> np.ndarray:
    return np.array([[[parts.get(name, 0.0) for name in EndEffectorDelta.names]]])


def test_two_links_in_a_plane_follow_the_textbook() -> None:
    q = np.random.default_rng(0).uniform(-3, 3, (20, 2))
    tip, rotation = PLANAR.forward(q)
    total = q.sum(1)
    np.testing.assert_allclose(tip[:, 0], 0.3 * np.cos(q[:, 0]) + 0.2 * np.cos(total), atol=1e-12)
    np.testing.assert_allclose(tip[:, 1], 0.3 * np.sin(q[:, 0]) + 0.2 * np.sin(total), atol=1e-12)
    np.testing.assert_allclose(rotation[:, 0, 0], np.cos(total), atol=1e-12)


def test_forward_keeps_leading_axes() -> None:
    q = np.random.default_rng(0).uniform(-1, 1, (3, 4, 5))
    tip, rotation = ARM.forward(q)
    assert tip.shape == (3, 4, 3) and rotation.shape == (3, 4, 3, 3)
    np.testing.assert_array_equal(tip[1, 2], ARM.forward(q[1, 2][None])[0][0])


@given(st.lists(st.floats(-1.7, 1.7), min_size=5, max_size=5))
def test_jacobian_is_the_derivative_of_the_tip(joints: list[float]) -> None:
    q, h = np.array([joints]), 1e-6
    tip, linear, _ = ARM.jacobian(q)
    np.testing.assert_allclose(tip.T, ARM.forward(q)[0], atol=1e-12)
    for j in range(5):
        step = np.eye(5)[j] * h
        numeric = (ARM.forward(q + step)[0] - ARM.forward(q - step)[0]) / (2 * h)
        np.testing.assert_allclose(linear[:, j].T, numeric, atol=1e-8)


@given(st.tuples(*[st.floats(-0.02, 0.02)] * 3))
def test_a_step_moves_the_commanded_tip_as_asked(move: tuple[float, float, float]) -> None:
    before = ARM.forward(BENT)[0]
    after = delta.targets(command(BENT), action(dx=move[0], dy=move[1], dz=move[2]))[0]
    # One linear step on joints that turn by move / 0.15 m: an arc leaves its tangent by move^2 / 0.3 m in each of the
    # hinges that share it. Damping holds back (.02 / .07)^2 = 8 % along the weakest direction of this pose.
    error, size = np.linalg.norm(ARM.forward(after[:, :5])[0] - before - move), np.linalg.norm(move)
    assert error <= size**2 / 0.2 + 0.08 * size + 1e-12


def test_pitch_is_the_sum_of_parallel_joints_and_moves_by_dpitch() -> None:
    after = delta.targets(command(BENT), action(dpitch=-0.1))[0, 0]
    assert after[1:4].sum() - BENT[0, 1:4].sum() == pytest.approx(-0.1, abs=5e-3)
    np.testing.assert_allclose(ARM.forward(after[None, :5])[0], ARM.forward(BENT)[0], atol=3e-3)


def test_roll_turns_only_the_roll_joint() -> None:
    after = delta.targets(command(BENT), action(droll=0.2))[0, 0]
    np.testing.assert_allclose(after[:5] - BENT[0], [0, 0, 0, 0, 0.2], atol=1e-12)


def test_a_chunk_is_its_frames_one_by_one() -> None:
    rng = np.random.default_rng(1)
    start = command(np.repeat(BENT, 6, 0))
    actions = rng.normal(size=(6, 5, 6)) * delta.high
    frame = start
    for h, target in enumerate(delta.targets(start, actions).transpose(1, 0, 2)):
        frame = delta.targets(frame, actions[:, h : h + 1])[:, 0]
        np.testing.assert_array_equal(frame, target)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(2)
    start = command(BENT + 0.2 * rng.normal(size=(9, 5)))
    actions = rng.normal(size=(9, 3, 6)) * delta.high
    whole = delta.targets(start, actions)
    for row in range(9):
        np.testing.assert_array_equal(delta.targets(start[[row]], actions[[row]])[0], whole[row])


def test_the_tip_is_commanded_no_lower_than_the_floor() -> None:
    targets = delta.targets(command(BENT), np.tile(action(dz=-1.0), (1, 40, 1)))
    heights = ARM.forward(targets[0, :, :5])[0][:, 2]
    assert heights[-1] == pytest.approx(0.01, abs=1e-4)
    # A step that would overshoot aims at the floor itself; only its linearisation error may fall short of it.
    assert heights.min() > 0.01 - 2e-3


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1e6))
def test_targets_stay_inside_joint_limits(seed: int, size: float) -> None:
    actions = np.random.default_rng(seed).normal(size=(2, 30, 6)) * size
    targets = delta.targets(command(np.repeat(BENT, 2, 0)), actions)
    assert (targets[:, :, :5] >= ARM.low).all() and (targets[:, :, :5] <= ARM.high).all()
    assert (targets[:, :, 5] >= 0).all() and (targets[:, :, 5] <= 1).all()
    assert np.isfinite(targets).all()


def test_requests_beyond_the_limits_are_clipped_to_them() -> None:
    far = np.full((1, 3, 6), 50.0)
    np.testing.assert_array_equal(
        delta.targets(command(BENT), far), delta.targets(command(BENT), np.tile(delta.high, (1, 3, 1)))
    )


def test_joint_targets_are_actions_inside_the_limits() -> None:
    joint = JointTargets(ARM, ("a", "b", "c", "d", "e", "grip"))
    actions = np.array([[[0.1, -9, 0.3, 9, 0.5, 2.0]]], np.float32)
    np.testing.assert_allclose(joint.targets(command(BENT), actions)[0, 0], [0.1, -1.7, 0.3, 1.7, 0.5, 1.0], atol=1e-7)


def test_transforms_load_no_torch() -> None:
    code = "import sys, embodied.transforms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
