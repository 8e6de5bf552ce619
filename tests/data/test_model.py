"""Whatever is done to a store in whatever order, it holds what a dict would hold."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from embodied.data.experience import Demonstrations, Replay
from embodied.data.retention import Quota
from embodied.data.store import Store

from .episodes import SPEC, make_episode
from .test_recording import begin, step
from .test_store import assert_equal


class Model(RuleBasedStateMachine):
    """A store beside a dict of the seed, length and label of every episode."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.create(self.folder / "s", SPEC)
        self.known: dict[str, tuple[int, int, bool]] = {}
        self.seed = 0
        self.replay: Replay | None = None

    @rule(length=st.integers(1, 5), policy=st.booleans(), wait=st.booleans())
    def append(self, length: int, policy: bool, wait: bool) -> None:
        self.seed += 1
        id = self.store.append(make_episode(length, seed=self.seed, decisions=int(policy)), wait=wait)
        self.store.flush()
        self.known[id] = (self.seed, length, True)

    @rule(length=st.integers(1, 5), end=st.sampled_from(["finish", "discard", "crash"]))
    def record(self, length: int, end: str) -> None:
        self.seed += 1
        episode = make_episode(length, seed=self.seed)
        recorder = begin(self.store, episode)
        for frame in range(length):
            step(recorder, episode, frame)
        if end == "finish":
            recorder.finish(terminated=True, truncated=False, success=True, reason="success")
            self.store.flush()
        elif end == "discard":
            recorder.discard()
            return
        else:
            self.reopen()
        self.known[recorder.id] = (self.seed, length, end == "finish")

    @precondition(lambda self: self.known)
    @rule(data=st.data(), success=st.booleans())
    def label(self, data: st.DataObject, success: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.known)))
        self.store.label(id, success)
        self.known[id] = (*self.known[id][:2], success)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder / "s", write=True)
        self.replay = None

    @rule()
    def lose_the_index(self) -> None:
        self.store.close()
        for path in (self.folder / "s").glob("index.sqlite*"):
            path.unlink()
        self.store = Store.open(self.folder / "s", write=True)
        self.replay = None

    @precondition(lambda self: any(row.stratum == "online" for row in self.store.rows))
    @rule()
    def evict(self) -> None:
        victim = next(row for row in self.store.rows if row.stratum == "online")
        total = sum(row.bytes for row in self.store.rows)
        self.store.close()
        self.store = Store.open(self.folder / "s", write=True, quota=Quota(total=total - 1))
        assert self.store.evict() == [victim.id]
        self.store.close()
        self.store = Store.open(self.folder / "s", write=True)
        self.replay = None
        del self.known[victim.id]

    @precondition(lambda self: self.known)
    @rule(replay=st.booleans())
    def sample(self, replay: bool) -> None:
        if replay and self.replay is None:
            self.replay = Replay(self.store, horizon=3, batch_size=16, seed=0)
        batch = next(self.replay if replay and self.replay else Demonstrations(self.store, horizon=3, batch_size=16, seed=0))
        lengths = {seed: length for seed, length, _ in self.known.values()}
        frame, seed = batch.obs.state[:, 0].astype(int), batch.obs.state[:, 1].astype(int)
        for i in range(16):
            assert batch.executed[i] == min(3, lengths[seed[i]] - frame[i])
            np.testing.assert_array_equal(batch.chunk.actions[i, 0], [frame[i], seed[i]])

    @invariant()
    def holds_what_it_should(self) -> None:
        rows = self.store.rows
        assert {row.id: (row.seed, row.length, row.success) for row in rows} == self.known
        assert [row.sequence for row in rows] == sorted({row.sequence for row in rows})
        if rows:
            row = rows[self.seed % len(rows)]
            read = self.store.read(row.id)
            assert read.success == row.success
            np.testing.assert_array_equal(read.action[:, 1], row.seed)
            if read.reason == "success" and row.success and not row.decisions:
                assert_equal(read, make_episode(row.length, seed=row.seed))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


QUICK = settings(max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))


def test_any_order_of_operations_gives_a_consistent_store() -> None:
    run_state_machine_as_test(Model, settings=QUICK)


@pytest.mark.slow
def test_many_orders_of_operations_give_a_consistent_store() -> None:
    run_state_machine_as_test(Model, settings=settings(QUICK, max_examples=400, stateful_step_count=30))
