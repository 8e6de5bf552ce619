"""Which frames a batch is made of, and the batch made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import ActionChunk, Episode, Observation, Transition


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


class Frames:
    """Episodes laid end to end, one row per observation, so that a batch is a few gathers."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        lengths = np.array([episode.length for episode in episodes])
        base = np.concatenate([[0], np.cumsum(lengths + 1)])
        self._end = np.repeat(base[:-1] + lengths, lengths + 1)  # row of the last observation
        self._episode = np.repeat(np.arange(len(episodes)), lengths + 1)
        self._action = np.concatenate([np.concatenate([e.action, e.action[-1:]]) for e in episodes])
        self._reward = np.concatenate([np.append(e.reward, np.float32(0)) for e in episodes])
        self._version = np.concatenate([np.append(e.version, -1) for e in episodes])
        self._state = np.concatenate([e.state for e in episodes])
        self._time = np.concatenate([e.time for e in episodes])
        self._images = {name: np.concatenate([e.images[name] for e in episodes]) for name in episodes[0].images}
        pictured = np.zeros(base[-1], bool)
        for start, episode in zip(base, episodes, strict=False):
            pictured[start + episode.image_rows] = True
        self._picture = np.cumsum(pictured) - 1
        self._prompt = np.array([episode.prompt for episode in episodes])
        self._success = np.array([episode.success for episode in episodes])
        self._terminated = np.array([episode.terminated for episode in episodes])
        starts = np.arange(base[-1]) < self._end
        self.anchors = np.flatnonzero(starts & pictured if self._images else starts)
        """Rows that a decision can start from: any frame, or any with pictures where there are cameras."""

    def batch(self, rows: np.ndarray, *, horizon: int, gamma: float) -> Transition:
        """Windows of `horizon` executed actions from `rows` [B]. `next_obs` has no pictures."""
        end, episode = self._end[rows], self._episode[rows]
        ahead, valid = window(rows, end, horizon)
        executed = valid.sum(1)
        done = rows + executed == end
        discount = np.where(done & self._terminated[episode], 0, gamma**executed)
        return Transition(
            obs=self._observe(rows, {name: images[self._picture[rows]] for name, images in self._images.items()}),
            chunk=ActionChunk(actions=self._action[ahead], version=self._version[rows]),
            executed=executed,
            reward=np.float32(self._reward[ahead] * valid @ gamma ** np.arange(horizon)),
            discount=discount.astype(np.float32),
            next_obs=self._observe(rows + executed, {}),
            done=done,
            success=done & self._success[episode],
        )

    def _observe(self, rows: np.ndarray, images: dict[str, np.ndarray]) -> Observation:
        return Observation(
            images=images, state=self._state[rows], prompt=self._prompt[self._episode[rows]], time=self._time[rows]
        )
