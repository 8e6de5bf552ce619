"""An SO-101-like arm made of primitives, and the table it works on, as MJCF text.

Kinematics, ranges, servo gains, friction loss and armature are the published numbers of the SO-101; lateral offsets of
its brackets, which cancel along the arm, are left out, and the gripper is our own: one fixed and one turning finger,
parallel when they hold something 32 mm wide, whose middle is then GRASP from the tip in the closing direction. Every body has one geom, with a
mass, and none an explicit inertia: `mj_multiRay` loses geoms of bodies whose inertial frame is not their geoms' (MuJoCo
before 4.0.0).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..transforms import EndEffectorDelta, JointTargets, SerialChain

Action = Literal["end_effector", "joint"]
NAME = "so101_primitives"
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
GRIPPER = "gripper"
GRIPPER_RANGE = (-0.175, 1.745)
"""rad, closed and open."""
CHAIN = SerialChain(
    origins=np.array(
        [[0.0388, 0, 0.0624], [0.0304, 0, 0.0542], [0.028, 0, 0.1126], [0.1349, 0, 0.0052], [0.0611, 0, 0]]
    ),
    axes=np.array([[0, 0, 1.0], [0, 1.0, 0], [0, 1.0, 0], [0, 1.0, 0], [1.0, 0, 0]]),
    tip=np.array([0.0981, 0, 0]),
    low=np.array([-1.920, -1.745, -1.690, -1.658, -2.744]),
    high=np.array([1.920, 1.745, 1.690, 1.658, 2.841]),
)
GRASP = 0.01
"""m from the tip in the closing direction: the middle of a 32 mm wide thing between parallel fingers."""
HOME = (0.0, -0.606, 0.471, 1.335, 0.0)
"""rad: tip 10 cm above the table, 21 cm ahead of the base, fingers down and a little forward."""
SERVO = 'kp="17.8" forcerange="-3.35 3.35"'
HINGE = 'damping="0.60" armature="0.028"'


def transform(action: Action) -> EndEffectorDelta | JointTargets:
    """Make the action transform of this arm: 'end_effector' displacements or absolute 'joint' targets."""
    if action == "end_effector":
        return EndEffectorDelta(CHAIN, 3, roll=4)
    if action == "joint":
        return JointTargets(CHAIN, (*JOINTS, GRIPPER))
    raise ValueError(
        f"action is '{action}'; choose 'end_effector' (tip displacement) or 'joint' (absolute targets, rad)."
    )


def servo(targets: np.ndarray) -> np.ndarray:
    """Turn targets [..., J + 1] (rad, gripper opening 0-1) into what the servos are told, all in rad."""
    control = targets.copy()
    control[..., -1] = GRIPPER_RANGE[0] + control[..., -1] * (GRIPPER_RANGE[1] - GRIPPER_RANGE[0])
    return control


def opening(angle: np.ndarray) -> np.ndarray:
    """Turn gripper angles, rad, into the opening, 0-1."""
    return (angle - GRIPPER_RANGE[0]) / (GRIPPER_RANGE[1] - GRIPPER_RANGE[0])


def mjcf(objects: str, *, friction_loss: float = 0.052, timestep: float = 0.01) -> str:
    """Write the model: the arm, a table and the bodies given as MJCF text."""
    o, low, high = CHAIN.origins, CHAIN.low, CHAIN.high

    def vec(v: np.ndarray) -> str:
        return " ".join(f"{x:.6g}" for x in v)

    def hinge(i: int) -> str:
        return f'<joint name="{JOINTS[i]}" axis="{vec(CHAIN.axes[i])}" range="{low[i]} {high[i]}"/>'

    servos = "\n".join(
        f'<position name="{name}" joint="{name}" ctrlrange="{a} {b}" {SERVO}/>'
        for name, a, b in zip((*JOINTS, GRIPPER), (*low, GRIPPER_RANGE[0]), (*high, GRIPPER_RANGE[1]), strict=True)
    )
    return f"""
<mujoco model="{NAME}">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{timestep}" integrator="implicitfast" iterations="8">
    <flag warmstart="disable"/>
  </option>
  <default>
    <joint type="hinge" {HINGE} frictionloss="{friction_loss}"/>
    <geom contype="0" conaffinity="0" rgba="0.93 0.70 0.18 1"/>
    <default class="servo"><geom rgba="0.16 0.16 0.18 1"/></default>
    <default class="finger">
      <geom type="box" contype="1" conaffinity="2" friction="1.5" condim="3" priority="1" solimp="0.99 0.999 0.001"
        rgba="0.93 0.70 0.18 1"/>
    </default>
    <default class="object">
      <geom contype="2" conaffinity="3" friction="1.5" condim="3" mass="0.03"/>
    </default>
    <default class="slide"><joint type="slide" damping="6" armature="0" frictionloss="0"/></default>
    <default class="rise"><joint type="slide" axis="0 0 1" damping="0.5" armature="0" frictionloss="0" range="0 1"/></default>
    <default class="spin"><joint type="hinge" axis="0 0 1" damping="0.0015" armature="0" frictionloss="0"/></default>
  </default>
  <worldbody>
    <light name="lamp" directional="true" pos="0.3 -0.4 1.2" dir="-0.3 0.4 -1.2" diffuse="0.6 0.6 0.6" castshadow="false"/>
    <camera name="front" pos="0.58 0 0.42" xyaxes="0 1 0 -0.643 0 0.766" fovy="42"/>
    <geom name="table" type="plane" size="0.6 0.6 0.01" rgba="0.62 0.60 0.57 1"/>
    <geom name="foot" type="box" class="servo" pos="0.02 0 0.03" size="0.045 0.03 0.03"/>
    <body name="shoulder" pos="{vec(o[0])}">
      {hinge(0)}
      <geom name="shoulder" type="capsule" class="servo" fromto="0 0 0 {vec(o[1])}" size="0.024" mass="0.12"/>
      <body name="upper_arm" pos="{vec(o[1])}">
        {hinge(1)}
        <geom name="upper_arm" type="capsule" fromto="0 0 0 {vec(o[2])}" size="0.017" mass="0.11"/>
        <body name="forearm" pos="{vec(o[2])}">
          {hinge(2)}
          <body>
            <geom name="elbow" type="capsule" class="servo" fromto="0 -0.012 0 0 0.012 0" size="0.02" mass="0.05"/>
          </body>
          <geom name="forearm" type="capsule" fromto="0 0 0 {vec(o[3])}" size="0.015" mass="0.09"/>
          <body name="wrist" pos="{vec(o[3])}">
            {hinge(3)}
            <geom name="wrist" type="capsule" class="servo" fromto="0 0 0 0.045 0 0" size="0.017" mass="0.09"/>
            <body name="hand" pos="{vec(o[4])}">
              {hinge(4)}
              <geom name="palm" type="box" class="servo" pos="0.008 0.008 0" size="0.014 0.026 0.014" mass="0.06"/>
              <body pos="0.06 -0.01 0">
                <geom name="fixed_finger" class="finger" size="0.04 0.004 0.01" mass="0.02"/>
              </body>
              <camera name="wrist" pos="0 0.008 0.055" xyaxes="0 -1 0 0.208 0 0.978" fovy="75"/>
              <site name="tip" pos="{vec(CHAIN.tip)}"/>
              <body name="jaw" pos="0.02 0.03 0" euler="0 0 -0.247">
                <joint name="{GRIPPER}" axis="0 0 1" range="{GRIPPER_RANGE[0]} {GRIPPER_RANGE[1]}"/>
                <geom name="moving_finger" class="finger" pos="0.04 0 0" size="0.04 0.004 0.01" mass="0.02"/>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
    {objects}
  </worldbody>
  <actuator>
    {servos}
  </actuator>
</mujoco>"""
