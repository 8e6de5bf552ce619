"""The simulator's figures can be measured; their size is the benchmark's business."""

from __future__ import annotations

import numpy as np
import pytest

from embodied.sims import bench, gl


@pytest.mark.slow
def test_every_figure_is_measured_under_its_name() -> None:
    figures = bench.run(pairs=1)
    names = {"physics_vs_native", "chunk_step_vs_gym_state", "chunk_step_vs_gym_state_25"}
    try:
        gl.backend()
        names |= {"chunk_step_vs_gym_camera", "ray_vs_gl_pictures"}
    except RuntimeError:
        pass
    assert names <= set(figures)
    assert all(np.isfinite(value) and value > 0 for value in figures.values())


def test_the_first_round_warms_up_and_is_left_out() -> None:
    rounds: list[str] = []
    times = bench.paired([lambda: rounds.append("a"), lambda: rounds.append("b")], 3, before=lambda: rounds.append("-"))
    assert times.shape == (2, 3)
    assert "".join(rounds) == "-ab" * 4
