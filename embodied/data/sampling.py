"""Which frames a batch is made of.

A strategy divides a batch into parts, each with a share and the frames it may draw from; within a part every
frame is equally likely. Where a part does not fit into memory, draws come from an arc of its frames, laid on a
circle in an order that has nothing to do with time; the arc turns by `batch / REUSE` frames a batch, so that
few episodes are read per batch and over a full turn every frame is still equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .sources import View

REUSE = 4
"""How often a frame is drawn on average while its episode is in memory, where not all fit."""


def stream(seed: int, *position: int) -> np.random.Generator:
    """Open the random stream of one place: equal places give equal numbers, other places independent ones.

    Philox counts instead of remembering, so a resumed run needs the position and nothing else.
    """
    key = np.random.SeedSequence([seed, len(position)]).generate_state(2, np.uint64)
    counter = np.zeros(4, np.uint64)
    counter[1 : 1 + len(position)] = position  # the lowest word counts the draws
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def window(start: np.ndarray, end: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `horizon` actions from `start` [B] within episodes that end before row `end` [B].

    Beyond the end the last row repeats and is marked invalid. Returns rows and valid, both [B, H].
    """
    ahead = start[:, None] + np.arange(horizon)
    return np.minimum(ahead, end[:, None] - 1), ahead < end[:, None]


def shuffle(starts: np.ndarray, *, seed: int, number: int, frames: int) -> np.ndarray:
    """Order the starts of all episodes (`starts` [E] counts them) for pass `number`.

    If at most `frames` of them fit into memory, each start moves to a random place at most that far behind its
    episode, so that few episodes are needed at a time; what moves beyond the end of the pass comes at the beginning
    of the next one.
    """
    total = int(starts.sum())
    if total <= frames:
        return stream(seed, number).permutation(total)
    keys = np.concatenate([_keys(starts, seed, n, frames) for n in (number - 1, number)])
    keys[:total] -= total
    inside = np.flatnonzero((keys >= 0) & (keys < total))
    return inside[np.argsort(keys[inside], kind="stable")] % total


def _keys(starts: np.ndarray, seed: int, number: int, frames: int) -> np.ndarray:
    """Where each start would go in a pass of its own."""
    random = stream(seed, 1 + number)
    turn = random.permutation(len(starts))
    before = np.empty(len(starts), np.int64)
    before[turn] = np.cumsum(starts[turn]) - starts[turn]
    return np.repeat(before, starts) + frames * random.random(int(starts.sum()))


def apportion(shares: Sequence[float], count: int, credit: np.ndarray) -> np.ndarray:
    """Divide `count` by shares into whole numbers that add up, by largest remainder.

    `credit` [parts] carries what rounding owed, and is updated: over many batches the shares are exact.
    """
    claim = credit + count * np.asarray(shares) / np.sum(shares)
    given = np.maximum(np.floor(claim), 0).astype(np.int64)
    left = count - int(given.sum())
    order = np.argsort(given - claim, kind="stable")  # the largest remainders first
    given[order[:left]] += 1
    credit[:] = claim - given
    return given


@dataclass(frozen=True)
class Part:
    """One share of every batch."""

    share: float
    starts: np.ndarray
    """int64 [E]: how many frames of each episode of the view belong to it."""
    human: bool = False
    """Whether those are the frames of a person only."""


class Strategy(Protocol):
    """How a batch is divided."""

    def parts(self, view: View) -> list[Part]: ...


@dataclass(frozen=True)
class Uniform:
    """Every frame alike."""

    def parts(self, view: View) -> list[Part]:
        return [Part(1.0, view.starts)]


@dataclass(frozen=True)
class Fresh:
    """A share from the newest `frames`, the rest from all."""

    share: float
    frames: int

    def parts(self, view: View) -> list[Part]:
        after = np.cumsum(view.starts[::-1])[::-1] - view.starts  # frames newer than each episode
        newest = np.clip(self.frames - after, 0, view.starts)
        return [Part(self.share, newest), Part(1 - self.share, view.starts)]


@dataclass(frozen=True)
class Lag:
    """Only episodes all of whose frames come from a policy at most `limit` versions old, or from no policy."""

    limit: int

    def parts(self, view: View) -> list[Part]:
        recent = (view.oldest < 0) | (view.oldest >= view.version - self.limit)
        return [Part(1.0, view.starts * recent)]


@dataclass(frozen=True)
class Balanced:
    """Half from successful episodes, half from failed ones."""

    def parts(self, view: View) -> list[Part]:
        return [Part(0.5, view.starts * view.success), Part(0.5, view.starts * ~view.success)]


class Mixture:
    """Shares of named strata: `Mixture([("demo", 0.5), ("online", 0.5)])`.

    A name is a stratum of the store or, where several sources are given, a source; 'intervention' names the
    frames of a person in any episode. A third entry is the strategy within the stratum.
    """

    def __init__(self, shares: Sequence[tuple[str, float] | tuple[str, float, Strategy]]) -> None:
        self._shares: list[tuple[str, float, Strategy]] = [(*s, Uniform()) if len(s) == 2 else s for s in shares]
        if not self._shares or any(share <= 0 for _, share, _ in self._shares):
            raise ValueError(f"A mixture needs shares above 0, got {self._shares}.")

    def parts(self, view: View) -> list[Part]:
        return [part for name, share, strategy in self._shares for part in self._stratum(view, name, share, strategy)]

    def _stratum(self, view: View, name: str, share: float, strategy: Strategy) -> list[Part]:
        if name == "intervention":
            return [Part(share, view.human, human=True)]
        member = (view.stratum == name) | (view.source == name)
        if not member.any():
            known = sorted({*view.stratum.tolist(), *view.source.tolist(), "intervention"} - {""})
            raise ValueError(f"No episode is of '{name}'. Present: {', '.join(known)}. Collect some, or leave it out.")
        parts = [Part(part.share, part.starts * member, part.human) for part in strategy.parts(view)]
        whole = sum(part.share for part in parts if part.starts.any()) or 1.0  # an empty part's share stays in the stratum
        return [Part(share * part.share / whole, part.starts, part.human) for part in parts]


@dataclass(frozen=True)
class Draw:
    """Where a batch begins: the n-th start of an episode of the view."""

    episode: np.ndarray
    """int64 [B]."""
    start: np.ndarray
    """int64 [B]."""
    human: np.ndarray
    """bool [B]: whether `start` counts the frames of a person only."""


class Arcs:
    """Draws batches by a strategy, from arcs of at most `frames` frames in all. Its state is two short arrays."""

    def __init__(self, strategy: Strategy, *, frames: int) -> None:
        self._strategy, self._frames = strategy, frames
        self.credit = np.zeros(0)
        self.turned = np.zeros(0)
        """Frames by which the arc of each part has turned."""

    def draw(self, view: View, random: np.random.Generator, count: int) -> Draw:
        """Draw `count` starts, and turn the arcs."""
        parts = self._strategy.parts(view)
        if len(self.credit) != len(parts):
            self.credit, self.turned = np.zeros(len(parts)), np.zeros(len(parts))
        filled = np.array([part.starts.sum() > 0 for part in parts])
        if not filled.any():
            raise ValueError(f"None of {len(view)} episodes fits the sampling strategy. Collect more, or loosen it.")
        counts = np.zeros(len(parts), np.int64)
        credit = self.credit[filled]
        counts[filled] = apportion([p.share for p in parts if p.starts.any()], count, credit)
        self.credit[filled] = credit
        drawn = [self._one(view, part, i, int(counts[i]), random) for i, part in enumerate(parts) if counts[i]]
        return Draw(*(np.concatenate([getattr(one, name) for one in drawn]) for name in ("episode", "start", "human")))

    def _one(self, view: View, part: Part, number: int, count: int, random: np.random.Generator) -> Draw:
        total, width = self._width(view, part)
        step = count / REUSE if width < total else 0.0
        offset = self.turned[number] + step * random.random()  # or the steps would favour some frames in every turn
        place = (offset + width * random.random(count)) % total
        self.turned[number] = (self.turned[number] + step) % total
        episode, start = _locate(view, part, place)
        return Draw(episode, start, np.full(count, part.human))

    def _width(self, view: View, part: Part) -> tuple[int, float]:
        total = int(part.starts.sum())
        return total, total if view.starts.sum() <= self._frames else min(total, part.share * self._frames)

    def coming(self, view: View, count: int) -> list[int]:
        """Episodes that the arcs reach within the next `count` draws of each part."""
        found: list[int] = []
        for number, part in enumerate(self._strategy.parts(view)):
            total, width = self._width(view, part)
            if number < len(self.turned) and width < total:
                ahead = np.linspace(0, count / REUSE, 2 + count // REUSE // 4)
                episode, _ = _locate(view, part, (self.turned[number] + width + ahead) % total)
                found += dict.fromkeys(episode.tolist())
        return found


def _locate(view: View, part: Part, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find which start of which episode lies at places of the circle."""
    ends = np.cumsum(part.starts[view.circle])
    at = np.searchsorted(ends, place, side="right")
    episode = view.circle[at]
    return episode, (place - (ends[at] - part.starts[episode])).astype(np.int64)
