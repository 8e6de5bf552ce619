"""Figures: Wilson's interval, explained variance, and every sink's files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied import metrics

RECORD = {"step": 3, "phase": "rl", "wall_s": 1.5, "env_steps": 40, "policy_version": 3, "episode/success": 0.25}


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_the_rates_at_which_the_observation_is_z_deviations_off(trial: tuple[int, int]) -> None:
    """By definition both bounds solve (p - q)² = z² q (1 - q) / n for q."""
    successes, n = trial
    low, high = metrics.wilson(successes, n)
    p, z = successes / n, 1.959963984540054
    assert 0 <= low <= p <= high <= 1
    for q in (low, high):
        assert math.isclose((p - q) ** 2, z * z * q * (1 - q) / n, abs_tol=1e-12)


def test_wilson_knows_nothing_without_trials_and_refuses_nonsense() -> None:
    assert metrics.wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 3 of 2"):
        metrics.wilson(3, 2)


def test_wilson_has_width_at_a_perfect_score() -> None:
    low, high = metrics.wilson(512, 512)
    # p = 1: low = (1 + z²/2n - z²/2n) / (1 + z²/n) = 1 / (1 + z²/n)
    assert high == 1.0 and math.isclose(low, 1 / (1 + 1.959963984540054**2 / 512))


def test_explained_variance_of_perfect_constant_and_inverted_predictions() -> None:
    target = np.array([1.0, 2.0, 3.0])
    assert metrics.explained_variance(target, target) == 1.0
    assert metrics.explained_variance(np.full(3, 7.0), target) == 0.0
    assert metrics.explained_variance(-target, target) == -3.0
    assert math.isnan(metrics.explained_variance(target, np.ones(3)))


def test_json_lines_are_whole_after_each_record_and_hold_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = metrics.JsonLines(path)
    sink.write({**RECORD, "value/explained_variance": math.nan, "loss/policy": np.float32(0.5)})
    [record] = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    sink.close()
    assert record == {**RECORD, "value/explained_variance": None, "loss/policy": 0.5}


def test_tensorboard_files_hold_the_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = metrics.TensorBoard(tmp_path)
    sink.write(RECORD)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    [event] = events.Scalars("rl/episode/success")
    assert (event.step, event.value) == (3, 0.25)
