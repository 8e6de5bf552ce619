"""Which starts are worth playing."""

from __future__ import annotations

import numpy as np
import pytest

from embodied.rollout.collector import Collector
from embodied.rollout.focus import MEMORY, Focus
from embodied.rollout.lanes import EpisodeEnd

from ..worlds import PointMass
from .test_collector import Running


def ended(task: str, success: bool) -> EpisodeEnd:
    return EpisodeEnd(lane=0, task=task, success=success, ret=0.0, length=1, invalid=False)


def test_failure_is_a_running_mean_that_starts_at_one() -> None:
    focus = Focus(0.5, seed=0)
    focus.learn([ended("a", True), ended("a", False), ended("b", False)])
    once = 1 - MEMORY
    assert focus.failure == {"a": pytest.approx(once + MEMORY * (1 - once)), "b": 1.0}


def test_starts_are_kept_in_proportion_to_failure() -> None:
    focus = Focus(0.8, seed=0)
    focus.failure = {"solved": 0.0, "half": 0.2, "hard": 0.4}
    for task, kept in (("solved", 0.2), ("half", 1 - 0.8 * 0.5), ("hard", 1.0), ("new", 1.0)):
        skipped = focus.skip([task] * 4000)
        # four standard errors; a task nobody has played yet counts as failing always, hence as the worst
        assert (1 - skipped.mean()) == pytest.approx(kept, abs=4 * (kept * (1 - kept) / 4000) ** 0.5 + 1e-9), task


def test_without_a_failure_anywhere_every_start_is_played() -> None:
    focus = Focus(0.8, seed=0)
    focus.failure = {"a": 0.0, "b": 0.0}
    assert not focus.skip(["a", "b"] * 100).any()


def test_without_focus_nothing_is_skipped() -> None:
    focus = Focus(0.0, seed=0)
    focus.failure = {"a": 0.0, "b": 1.0}
    assert not focus.skip(["a", "b"] * 100).any()


@pytest.mark.parametrize("strength", [-0.1, 1.0])
def test_a_strength_that_would_forget_a_task_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        Focus(strength, seed=0)


def test_a_restored_focus_draws_on_as_it_would_have() -> None:
    one, other = Focus(0.5, seed=3), Focus(0.5, seed=3)
    one.learn([ended("a", True)] * 50)
    one.skip(["a", "b"])
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.skip(["a", "b"] * 20), other.skip(["a", "b"] * 20))


class TwoTasks(PointMass):
    """Lanes play `right`, which running to the right solves, and `left` in turn."""

    def task_names(self, lanes: np.ndarray) -> list[str]:
        return [("right", "left")[int(self.episode[lane]) % 2] for lane in lanes]

    def next_tasks(self, lanes: np.ndarray) -> list[str]:
        return [("right", "left")[int(self.episode[lane] + 1) % 2] for lane in lanes]

    def leave_out(self, lanes: np.ndarray) -> None:
        self.episode[lanes] += 1


def test_focus_needs_a_world_that_knows_what_comes_next() -> None:
    with pytest.raises(ValueError, match="cannot tell which task comes next"):
        Collector(PointMass(4), Running(), decisions=1, focus=0.5)


def test_a_collector_with_focus_plays_the_failing_task_more() -> None:
    shares = []
    for focus in (0.0, 0.8):
        collector = Collector(TwoTasks(16, time_limit=6), Running(), decisions=40, focus=focus)
        collector._focus.failure = {"right": 0.0, "left": 1.0}
        collector._focus.learn = lambda ends: None  # type: ignore[method-assign]
        next(collector)
        played = [end.task for end in collector.take_finished()]
        shares.append(played.count("left") / len(played))
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[1] == pytest.approx(1 / 1.2, abs=0.05)
