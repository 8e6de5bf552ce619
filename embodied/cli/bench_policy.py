"""The benchmark of policy updates: what the forms of the likelihood cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch

from .. import plugins, tree
from ..agent import FlowAgent
from ..algorithms.pi_rl import PiRL
from ..flow import Form, Sampler
from ..types import Observation, Spec, Transition


def run(policy: str = "", decisions: int = 1280, minibatch: int = 640, epochs: int = 4, pairs: int = 5) -> dict[str, float]:
    """Time updates on the same decisions. `policy` names an installed policy; the first one by default.

    hybrid_vs_two_layer_update: K = 4, one likelihood-bearing step against four, prefix cached on both sides.
    """
    name = policy or plugins.names("embodied.policies")[0]
    updates = {form: _update(name, form, decisions, minibatch, epochs) for form in ("hybrid", "two_layer")}
    return {"hybrid_vs_two_layer_update": paired_ratio(updates["hybrid"], updates["two_layer"], pairs)}


def paired_ratio(ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int) -> float:
    """Median over pairs of time(ours) / time(theirs), the two timed in turn after one warm-up each."""
    ours(), theirs()
    ratios = []
    for _ in range(pairs):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        ratios.append((middle - start) / (time.perf_counter() - middle))
    return median(ratios)


def _update(name: str, form: Form, decisions: int, minibatch: int, epochs: int) -> Callable[[], Any]:
    """One update on fixed random decisions, without the early stop that would let one side do less."""
    torch.manual_seed(0)
    spec = Spec(
        robot="bench", tasks=("bench",), state_names=tuple(f"s{i}" for i in range(32)),
        action_names=tuple(f"a{i}" for i in range(6)), action_low=(-1.0,) * 6, action_high=(1.0,) * 6, control_hz=10.0,
    )  # fmt: skip
    network = plugins.load("embodied.policies", name)(spec, 4)
    rng = np.random.default_rng(0)
    network.fit_statistics(rng.normal(size=(256, 32)).astype(np.float32), np.zeros((256, 6), np.float32))
    agent = FlowAgent(network, Sampler(steps=4, form=form))
    rows = []
    lanes = 128
    for _ in range(decisions // lanes):
        obs = Observation(
            images={}, state=rng.normal(size=(lanes, 32)).astype(np.float32), prompt=np.full(lanes, ""), time=np.zeros(lanes)
        )
        chunk = agent.act(obs, explore=True)
        rows.append(
            Transition(
                obs=obs, chunk=chunk, executed=np.full(lanes, 4), reward=rng.normal(size=lanes).astype(np.float32),
                discount=np.full(lanes, 0.9, np.float32), next_obs=obs, done=np.zeros(lanes, bool), success=np.zeros(lanes, bool),
            )  # fmt: skip
        )
    batch = tree.stack(rows)
    algorithm = PiRL(
        agent, learning_rate=1e-6, minibatch=minibatch, epochs=epochs, target_kl=None, critic_warmup=0, max_mean_shift=1e9
    )

    class Same:
        def __iter__(self) -> Iterator[Transition]:
            return self

        def __next__(self) -> Transition:
            return batch

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    return lambda: algorithm.update(Same())
