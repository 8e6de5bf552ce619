"""Rollouts as transitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied import tree
from embodied.agent import FlowAgent
from embodied.algorithms.pi_rl import PiRL
from embodied.policies.flow_mlp import FlowMLP
from embodied.rollout.collector import Collector, transition
from embodied.types import ActionChunk, ChunkResult, Observation

from ..worlds import FramewisePointMass, PointMass


class Still:
    """Does nothing, and says which observations it saw."""

    def __init__(self, horizon: int = 3) -> None:
        self.horizon = horizon
        self.calls = 0

    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        self.calls += 1
        return ActionChunk(actions=np.zeros((len(obs.state), self.horizon, 2), np.float32), version=np.zeros(len(obs.state), int))


class Running(Still):
    """Runs to the right."""

    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        chunk = super().act(obs, explore)
        chunk.actions[..., 0] = 0.5
        return chunk


def agent(env: FramewisePointMass, seed: int = 0) -> FlowAgent:
    torch.manual_seed(seed)
    policy = FlowMLP(env.embodiment, 3, width=16, blocks=1, features=4)
    policy.fit_statistics(np.array([[-1.0, -1.0], [1.0, 1.0]]), np.zeros((2, 2)))
    return FlowAgent(policy, seed=seed)


def test_a_transition_carries_gamma_to_the_frames_that_ran_or_zero_after_a_termination() -> None:
    obs = PointMass(4)
    obs.reset(seed=0)
    seen, gamma = obs.observe(np.arange(4)), 0.9
    result = ChunkResult(
        reward=np.array([[1, 2, 4], [1, 2, 0], [1, 0, 0], [0, 0, 0]], np.float32), executed=np.array([3, 2, 1, 0]),
        terminated=np.array([False, True, False, False]), truncated=np.array([False, False, True, True]),
        success=np.array([False, True, False, False]), invalid=np.array([False, False, False, True]), observation=seen,
    )  # fmt: skip
    row = transition(seen, ActionChunk(np.zeros((4, 3, 2)), np.zeros(4, int)), result, gamma=gamma)
    assert row.reward.tolist() == pytest.approx([1 + 0.9 * 2 + 0.81 * 4, 1 + 0.9 * 2, 1, 0])
    assert row.discount.tolist() == pytest.approx([0.9**3, 0, 0.9, 1])
    assert row.done.tolist() == [False, True, True, True]
    assert row.reward.dtype == row.discount.dtype == np.float32


def test_episodes_run_on_from_batch_to_batch() -> None:
    batches = Collector(PointMass(1, time_limit=10), Still(), decisions=2)
    rows = tree.concat([next(batches) for _ in range(4)])
    assert rows.executed[:, 0].tolist() == [3, 3, 3, 1, 3, 3, 3, 1]
    assert rows.done[:, 0].tolist() == [False, False, False, True] * 2
    assert [end.length for end in batches.take_finished()] == [10, 10] and batches.frames == 20


@pytest.mark.parametrize("world", [PointMass, FramewisePointMass])
def test_b14_the_next_observation_of_an_ended_episode_is_its_own(world: type[FramewisePointMass]) -> None:
    rows = next(Collector(world(1, time_limit=6), Running(), decisions=4))
    # 6 frames of .5: the episode ends 3 to the right of its start, and the next one starts on the unit circle
    ended = int(np.flatnonzero(rows.done[:, 0])[0])
    travelled = rows.next_obs.state[ended, 0] - rows.obs.state[0, 0]
    assert travelled.tolist() == pytest.approx([3.0, 0.0], abs=1e-5)
    assert rows.next_obs.privileged is not None and rows.next_obs.privileged[ended, 0, 1] == 0  # frames left
    assert np.linalg.norm(rows.obs.state[ended + 1, 0]) == pytest.approx(1, abs=1e-6)
    for d in set(range(3)) - {ended}:
        assert rows.next_obs.state[d].tolist() == rows.obs.state[d + 1].tolist()


def test_b13_a_truncation_bootstraps_from_the_true_final_observation() -> None:
    # lambda 0: A = reward + gamma^k V(next) - V(obs); nothing is rewarded, so all of it is bootstrap
    env = PointMass(3, time_limit=6, radius=0.0, limit=1e3)
    acting = agent(env)
    algorithm = PiRL(acting, lam=0.0, critic="privileged")
    rollout = next(Collector(env, acting, decisions=5, gamma=0.9))
    assert rollout.done[1].all() and not rollout.done[[0, 2, 4]].any()
    rows, _ = algorithm.prepare(tree.to(rollout, "cpu"))
    assert algorithm.critic is not None and rows.ret is not None
    assert rollout.next_obs.privileged is not None
    with torch.no_grad():
        bootstrap = algorithm.critic(torch.as_tensor(rollout.next_obs.privileged).flatten(0, 1)).reshape(5, 3)
    expected = torch.as_tensor(rollout.discount) * bootstrap
    torch.testing.assert_close(rows.ret.reshape(5, 3), expected, rtol=1e-4, atol=1e-5)
    assert float(expected.abs().min()) > 0


def test_b14_a_termination_bootstraps_from_nothing() -> None:
    env = PointMass(3, radius=9.0)  # every frame is a success
    acting = agent(env)
    algorithm = PiRL(acting, critic="privileged")
    rows, _ = algorithm.prepare(tree.to(next(Collector(env, acting, decisions=2)), "cpu"))
    assert rows.ret is not None and rows.ret.tolist() == pytest.approx([1.0] * 6, abs=1e-6)


def test_a_diverged_decision_carries_no_weight() -> None:
    env = PointMass(16, limit=1.0, radius=0.0)  # starts on the edge of the world: many fall off at once
    acting = agent(env)
    rollout = next(Collector(env, acting, decisions=3))
    ran = rollout.executed > 0
    assert ran.any() and not ran.all()
    rows, _ = PiRL(acting, critic="privileged").prepare(tree.to(rollout, "cpu"))
    assert rows.executed.tolist() == rollout.executed[ran].tolist()


def test_traces_and_contexts_stay_with_their_decisions() -> None:
    env = PointMass(2)
    rows = next(Collector(env, agent(env), decisions=4))
    assert rows.chunk.trace is not None and rows.chunk.trace.x.shape == (4, 2, 1, 3, 2)
    assert rows.chunk.context.shape == (4, 2, 2) and rows.chunk.version.shape == (4, 2)


# ------------------------------------------------------------------------------------------------------- groups


def test_a_group_shares_its_start_and_groups_differ() -> None:
    rows = next(Collector(PointMass(6), Still(), decisions=2, group=3))
    starts = rows.obs.state[0]
    assert (starts[:3] == starts[0]).all() and (starts[3:] == starts[3]).all() and (starts[0] != starts[3]).any()


def test_every_batch_of_groups_starts_anew_and_plays_one_episode_a_lane() -> None:
    batches = Collector(PointMass(2, time_limit=5), Still(), decisions=4, group=2)
    first, second = next(batches), next(batches)
    for rows in (first, second):
        assert rows.executed.sum(0).tolist() == [5, 5] and rows.done.sum(0).tolist() == [1, 1]
    assert (first.obs.state[0] != second.obs.state[0]).any()
    assert len(batches.take_finished()) == 4


def test_a_batch_of_groups_is_over_when_every_episode_is() -> None:
    policy = Still()
    rows = next(Collector(PointMass(2, time_limit=5), policy, decisions=9, group=2))
    assert policy.calls == len(rows.executed) == 2


class OneArrives(Still):
    """The first lane goes to the origin at once, the others stay."""

    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        chunk = super().act(obs, explore)
        chunk.actions[0, 0] = -obs.state[0]
        return chunk


def test_a_lane_that_ended_waits_with_nothing_executed() -> None:
    rows = next(Collector(PointMass(2, time_limit=9), OneArrives(), decisions=3, group=2))
    assert rows.executed.tolist() == [[1, 3], [0, 3], [0, 3]]
    assert rows.reward.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert rows.done.tolist() == [[True, False], [False, False], [False, True]]


@pytest.mark.parametrize(
    ("world", "lanes", "wrong", "message"),
    [
        (PointMass, 2, {"decisions": 0}, "at least 1 decision"),
        (PointMass, 2, {"decisions": 1, "gamma": 0.0}, "gamma"),
        (PointMass, 2, {"decisions": 1, "execute": 0}, "At least 1 action"),
        (PointMass, 5, {"decisions": 1, "group": 2}, "that 2 divides"),
        (FramewisePointMass, 4, {"decisions": 1, "group": 2}, "snapshot"),
    ],
)
def test_impossible_collections_are_refused(
    world: type[FramewisePointMass], lanes: int, wrong: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Collector(world(lanes), Still(), **wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize("ends_on_success", [True, False])
def test_a_restored_collector_goes_on_exactly(ends_on_success: bool) -> None:
    def fresh() -> tuple[Collector, FlowAgent]:
        env = PointMass(8, time_limit=12, radius=0.9, ends_on_success=ends_on_success)
        acting = agent(env)
        return Collector(env, acting, decisions=3, seed=4), acting

    (one, acting), (other, same) = fresh(), fresh()
    next(one)
    earned = one.lanes.succeeded.any()
    other.load_state_dict(one.state_dict())
    same.generator.set_state(acting.generator.get_state())
    one.take_finished()
    for _ in range(3):
        for a, b in zip(tree.leaves(next(one)), tree.leaves(next(other)), strict=True):
            assert torch.equal(a, b) if torch.is_tensor(a) else bool((a == b).all())
    assert one.take_finished() == other.take_finished() and one.frames == other.frames
    assert earned != ends_on_success  # what was solved before the stop is not paid a second time


def test_a_saved_state_does_not_move_with_the_collector() -> None:
    collector = Collector(PointMass(2), Running(), decisions=2)
    state = collector.state_dict()
    lengths = state["length"].tolist()
    next(collector)
    assert state["length"].tolist() == lengths
