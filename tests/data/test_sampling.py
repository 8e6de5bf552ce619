"""What a batch is made of."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.data.sampling import (
    Arcs,
    Balanced,
    Fresh,
    Lag,
    Mixture,
    Strategy,
    Uniform,
    apportion,
    shuffle,
    stream,
    window,
)
from embodied.data.sources import Memory, View

from .episodes import STATE_SPEC, make_episode


def view(lengths: list[int], *, decisions: int = 0, seed: int = 0, version: int = 0, name: str = "") -> View:
    episodes = [make_episode(n, seed=i, spec=STATE_SPEC, decisions=decisions, success=i % 2 == 0) for i, n in enumerate(lengths)]
    return View([(0, row) for row in Memory(episodes).rows], [name], seed=seed, version=version)


def draws(strategy: Strategy, of: View, batches: int, *, count: int = 16, frames: int = 10**9) -> Counter[tuple[int, int]]:
    arcs, seen = Arcs(strategy, frames=frames), Counter[tuple[int, int]]()
    for batch in range(batches):
        draw = arcs.draw(of, stream(0, batch), count)
        seen.update(zip(draw.episode.tolist(), draw.start.tolist(), strict=True))
    return seen


def test_window_repeats_the_last_row_and_marks_it() -> None:
    rows, valid = window(np.array([13, 20]), np.array([15, 21]), 4)
    np.testing.assert_array_equal(rows, [[13, 14, 14, 14], [20, 20, 20, 20]])
    np.testing.assert_array_equal(valid, [[True, True, False, False], [True, False, False, False]])


def test_streams_repeat_and_differ() -> None:
    places = [(0, b, r) for b in range(4) for r in range(4)] + [(1, 0, 0)]
    numbers = [stream(seed, *at).random(3).tolist() for seed, *at in places]
    assert numbers == [stream(seed, *at).random(3).tolist() for seed, *at in places]
    assert len({n for row in numbers for n in row}) == 3 * len(places)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=5), st.integers(1, 300), st.integers(1, 20))
def test_apportioned_counts_add_up_and_keep_their_shares(shares: list[float], count: int, batches: int) -> None:
    credit, given_ = np.zeros(len(shares)), np.zeros(len(shares))
    for _ in range(batches):
        counts = apportion(shares, count, credit)
        assert counts.sum() == count
        assert (counts >= 0).all()
        given_ += counts
    exact = batches * count * np.asarray(shares) / np.sum(shares)
    assert np.abs(given_ - exact).max() <= len(shares)


def test_halves_of_an_odd_batch_take_turns() -> None:
    credit = np.zeros(2)
    assert [apportion([0.5, 0.5], 5, credit).tolist() for _ in range(3)] == [[3, 2], [2, 3], [3, 2]]


def test_uniform_draws_every_frame_alike() -> None:
    seen = draws(Uniform(), view([1, 5, 10]), 400)
    assert sorted(seen) == [(e, f) for e, n in enumerate([1, 5, 10]) for f in range(n)]
    counts = np.array(list(seen.values()))
    assert ((counts - 400) ** 2 / 400).sum() < 38  # chi-square of 15 degrees, p = .001


def test_fresh_takes_its_share_from_the_newest_frames() -> None:
    seen = draws(Fresh(share=0.25, frames=6), view([10, 4, 4]), 100)
    per_episode = np.bincount([e for e, _ in seen.elements()])
    expected = 1600 * (0.75 * np.array([10, 4, 4]) / 18 + 0.25 * np.array([0, 2, 4]) / 6)
    np.testing.assert_allclose(per_episode, expected, atol=80)


def test_lag_excludes_what_older_policies_made_but_not_demonstrations() -> None:
    old, demonstrations = view([4, 4], decisions=1, version=9), view([4, 4], version=9)  # version 7 acted
    assert Lag(limit=2).parts(old)[0].starts.tolist() == [4, 4]
    assert Lag(limit=1).parts(old)[0].starts.tolist() == [0, 0]
    assert Lag(limit=1).parts(demonstrations)[0].starts.tolist() == [4, 4]
    with pytest.raises(ValueError, match="None of 2 episodes"):
        draws(Lag(limit=1), old, 1)


def test_balanced_draws_half_from_successes() -> None:
    seen = draws(Balanced(), view([2, 40, 2, 40]), 10)
    assert sum(n for (e, _), n in seen.items() if e % 2 == 0) == 80


def test_balanced_makes_do_with_one_kind() -> None:
    assert sum(draws(Balanced(), view([5]), 2).values()) == 32


def test_a_mixture_keeps_its_shares_exactly() -> None:
    both = [make_episode(9, seed=i, spec=STATE_SPEC, decisions=i % 2) for i in range(20)]
    of = View([(0, row) for row in Memory(both).rows], [""], seed=0, version=0)
    seen = draws(Mixture([("demo", 0.25), ("online", 0.75)]), of, 10, count=18)
    assert sum(n for (e, _), n in seen.items() if e % 2 == 0) == 45
    seen = draws(Mixture([("demo", 0.5), ("online", 0.5, Balanced())]), of, 10)
    assert sum(n for (e, _), n in seen.items() if e % 2 == 0) == 80
    with pytest.raises(ValueError, match=r"No episode is of 'dmo'\. Present: demo, intervention, online"):
        draws(Mixture([("dmo", 1.0)]), of, 1)


@pytest.mark.parametrize("lengths", [[7] * 40, list(range(1, 30))])
def test_a_full_turn_of_the_arc_draws_every_frame_alike(lengths: list[int]) -> None:
    total = sum(lengths)
    batches = 8 * total  # with 16 draws a batch the arc turns by 8 frames, 64 times round
    seen = draws(Uniform(), view(lengths), batches, frames=total // 4)
    counts = np.array([seen[e, f] for e, n in enumerate(lengths) for f in range(n)])
    expected = 16 * batches / total
    deviation = ((counts - expected) ** 2 / expected).sum()
    assert deviation < total + 3.1 * np.sqrt(2 * total)


def test_an_arc_needs_few_episodes_at_a_time_and_names_the_next() -> None:
    of, arcs = view([10] * 100), Arcs(Uniform(), frames=250)
    known: set[int] = set()
    for batch in range(60):
        known |= set(arcs.coming(of, 64))
        now = set(arcs.draw(of, stream(0, batch), 64).episode.tolist())
        assert len(now) <= 30
        if batch < 5:
            known |= now
        assert now <= known
    assert len(known) == 100


@pytest.mark.parametrize("frames", [10**6, 60, 15])
def test_every_pass_visits_every_start_once(frames: int) -> None:
    starts = np.array([3, 2, 40, 1, 30, 24])
    passes = [shuffle(starts, seed=1, number=n, frames=frames) for n in range(5)]
    if frames >= 100:
        for order in passes:
            assert sorted(order.tolist()) == list(range(100))
    counts = np.bincount(np.concatenate(passes), minlength=100)
    assert counts.min() >= 4
    assert counts.max() <= 6
    assert np.abs([len(order) - 100 for order in passes]).max() <= frames


def test_a_shuffle_beyond_memory_needs_few_episodes_at_a_time() -> None:
    starts = np.full(200, 10)
    order = shuffle(starts, seed=0, number=3, frames=400) // 10
    for at in range(0, len(order) - 100, 100):
        assert len(np.unique(order[at : at + 100])) <= 52
    assert len(np.unique(order[:100])) >= 20, "and mixes many"
