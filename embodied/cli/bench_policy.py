"""The benchmark of policy updates: what the forms of the likelihood and the prefix cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from .. import plugins, tree
from ..agent import FlowAgent
from ..algorithms.pi_rl import PiRL
from ..flow import Form, Sampler
from ..interfaces import Perceives
from ..types import Observation, Spec, Transition
from .errors import UsageError

GROUP = "embodied.policies"
LANES = 128


def run(decisions: int = 1280, minibatch: int = 640, epochs: int = 4, pairs: int = 3) -> dict[str, float]:
    """Time updates on the same decisions, paired and interleaved.

    hybrid_vs_two_layer_update: K = 4, one likelihood-bearing step against four, prefix cached on both sides.
    cached_prefix_overhead: an update on a rollout as it comes, pictures and the contexts of acting in it, over one that
    is handed nothing but contexts computed beforehand.
    cached_prefix_speedup: an update that encodes in every minibatch over the cached one; its theory, 1 / (1 - p + p / U)
    with p the share of encoding in the former and U epochs (encoding once instead of U times), stands beside it.
    """
    if decisions < LANES or decisions % LANES:
        raise UsageError(f"decisions is {decisions}; give a multiple of {LANES}, the lanes that act at once.")
    if low := [f"{name} is {value}" for name, value in (("minibatch", minibatch), ("epochs", epochs), ("pairs", pairs)) if value < 1]:
        raise UsageError(f"{' and '.join(low)}; at least 1 is needed.")
    state_policy, seeing = _policies()
    bench = _Bench(decisions, minibatch, epochs)
    hybrid, two_layer = (bench.update(state_policy, form, cameras=0) for form in ("hybrid", "two_layer"))
    figures = {"hybrid_vs_two_layer_update": paired_ratio(hybrid, two_layer, pairs)}
    cached, blind = bench.update(seeing, "hybrid", cameras=2), bench.update(seeing, "hybrid", cameras=2, blind=True)
    again = bench.update(seeing, "hybrid", cameras=2, encode_again=True)
    speedup = paired_ratio(again, cached, pairs)
    share = epochs * bench.encoding_s(seeing) / _seconds(again)
    return figures | {
        "cached_prefix_overhead": paired_ratio(cached, blind, pairs),
        "cached_prefix_speedup": speedup,
        "cached_prefix_speedup_theory": 1 / (1 - share + share / epochs),
    }


def paired_ratio(ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int) -> float:
    """Median over pairs of time(ours) / time(theirs), the two timed in turn after one warm-up each."""
    ours(), theirs()
    ratios = []
    for _ in range(pairs):
        first = _seconds(ours)
        ratios.append(first / _seconds(theirs))
    return median(ratios)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _policies() -> tuple[Any, Any]:
    """The first installed policy that acts on state, and the first that learns to see."""
    found: dict[bool, Any] = {}
    for name in plugins.names(GROUP):  # no further than needed: some take long to import
        network = plugins.load(GROUP, name)
        if isinstance(network, type):
            found.setdefault(issubclass(network, Perceives), network)
        if len(found) == 2:
            break
    return found[False], found[True]


class _Bench:
    """Updates on fixed random decisions, without the early stop that would let one side do less."""

    def __init__(self, decisions: int, minibatch: int, epochs: int) -> None:
        self.decisions, self.minibatch, self.epochs = decisions, minibatch, epochs

    def update(
        self, network: Any, form: Form, *, cameras: int, blind: bool = False, encode_again: bool = False
    ) -> Callable[[], Any]:
        agent = self._agent(network, form, cameras)
        rng = np.random.default_rng(0)
        rows = [self._row(agent, rng) for _ in range(self.decisions // LANES)]
        batch = tree.stack(rows)
        if blind:
            batch = replace(batch, obs=replace(batch.obs, images={}), next_obs=replace(batch.next_obs, images={}))
        agent.policy.frozen_prefix = not encode_again
        algorithm = PiRL(
            agent, learning_rate=1e-6, minibatch=self.minibatch, epochs=self.epochs, target_kl=None, critic_warmup=0,
            critic="privileged", max_mean_shift=1e9,
        )  # fmt: skip
        return lambda: algorithm.update(_Same(batch))

    def encoding_s(self, network: Any) -> float:
        """Seconds to encode all decisions once."""
        agent = self._agent(network, "hybrid", 2)
        obs = _look(np.random.default_rng(0), agent.policy.spec, self.minibatch)
        agent.encode(obs)
        return self.decisions / self.minibatch * median(_seconds(lambda: agent.encode(obs)) for _ in range(5))

    def _agent(self, network: Any, form: Form, cameras: int) -> FlowAgent:
        torch.manual_seed(0)
        spec = Spec(
            robot="bench", tasks=("bench",), state_names=tuple(f"s{i}" for i in range(32)),
            action_names=tuple(f"a{i}" for i in range(6)), action_low=(-1.0,) * 6, action_high=(1.0,) * 6, control_hz=10.0,
            cameras=tuple((f"camera_{i}", 64, 64) for i in range(cameras)),
            privileged_names=tuple(f"p{i}" for i in range(32)), prompts=cameras > 0,
        )  # fmt: skip
        policy = network(spec, 4)
        policy.fit_statistics(np.random.default_rng(0).normal(size=(256, 32)).astype(np.float32), np.zeros((256, 6), np.float32))
        return FlowAgent(policy, Sampler(steps=4, form=form))

    def _row(self, agent: FlowAgent, rng: np.random.Generator) -> Transition:
        obs = _look(rng, agent.policy.spec)
        return Transition(
            obs=obs, chunk=agent.act(obs, explore=True), executed=np.full(LANES, 4),
            reward=rng.normal(size=LANES).astype(np.float32), discount=np.full(LANES, 0.9, np.float32), next_obs=obs,
            done=np.zeros(LANES, bool), success=np.zeros(LANES, bool),
        )  # fmt: skip


class _Same:
    """An experience that always gives the same batch."""

    def __init__(self, batch: Transition) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Transition]:
        return self

    def __next__(self) -> Transition:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _look(rng: np.random.Generator, spec: Spec, count: int = LANES) -> Observation:
    return Observation(
        images={name: rng.integers(0, 256, (count, h, w, 3), dtype=np.uint8) for name, h, w in spec.cameras},
        state=rng.normal(size=(count, spec.state_dim)).astype(np.float32),
        prompt=np.full(count, "push the red cube" if spec.prompts else ""), time=np.zeros(count),
        privileged=rng.normal(size=(count, len(spec.privileged_names))).astype(np.float32),
    )  # fmt: skip
