"""Random scenes carry true labels, and showing them disturbs nothing."""

from __future__ import annotations

import numpy as np
import pytest

from embodied import tree
from embodied.sims.tabletop import make


def test_scenes_are_a_function_of_the_seed_and_leave_the_lanes_alone() -> None:
    env = make(["reach", "push"], 24, cameras=["front"], state_objects=False)
    env.reset(seed=3)
    before = env.snapshot(np.arange(24))
    first, again, other = env.scenes(5), env.scenes(5), env.scenes(6)
    for a, b in zip(tree.leaves(first), tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.targets, other.targets)
    np.testing.assert_array_equal(before, env.snapshot(np.arange(24)))


def test_labels_are_places_from_the_tip_and_the_task_that_is_meant() -> None:
    env = make(["reach", "push"], 200, cameras=["front"], state_objects=False)
    scenes = env.scenes(0)
    tip = scenes.obs.state[:, [env.embodiment.state_names.index(f"tip.{axis}") for axis in "xyz"]]
    height = scenes.targets[:, 0, 2] + tip[:, 2]
    assert (height > 0.0159).all()  # an object's centre never sinks into the table
    pushes = scenes.targets[:, 0, 6] > 0.05
    assert pushes.sum() == 100
    goal = scenes.targets[:, 1] + np.pad(tip, ((0, 0), (0, 4)))
    assert np.allclose(goal[pushes, 2], 0, atol=1e-6) and not scenes.targets[~pushes, 1].any()
    said_mark = np.array(["mark" in prompt for prompt in scenes.obs.prompt])
    np.testing.assert_array_equal(said_mark, pushes)


def test_masks_show_the_colour_that_the_instruction_names() -> None:
    scenes = make(["reach"], 100, cameras=["front"], state_objects=False).scenes(1)
    channel = {"red": 0, "green": 1, "blue": 2}
    seen = 0
    for prompt, image, mask in zip(
        scenes.obs.prompt, scenes.obs.images["front"], scenes.masks["front"][:, 0], strict=True
    ):
        if mask.any():
            colour = next(c for c in channel if c in prompt)
            assert int(image[mask].mean(0).argmax()) == channel[colour]
            seen += 1
    assert seen > 80


def test_a_suite_without_cameras_has_no_scenes_to_show() -> None:
    with pytest.raises(RuntimeError, match="cameras"):
        make(["reach"], 2).scenes(0)
