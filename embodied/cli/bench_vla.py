"""The benchmark of large policies: what reusing their prefix saves, and what acting and learning cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from .. import plugins, tree
from ..agent import FlowAgent
from ..algorithms.pi_rl import PiRL
from ..flow import Sampler, mean_shift
from ..interfaces import Precision
from ..types import ActionChunk, Observation, Spec, Transition
from .errors import UsageError
from .load import pick_device

POLICIES = "embodied.policies"
Size = Literal["toy", "mid", "full"]


@runtime_checkable
class Measurable(Protocol):
    """A policy that can be built without a checkpoint, around an implementation that also acts by itself."""

    reference: str
    """Whose implementation it is."""
    reference_steps: int
    """Denoising steps of that implementation's sampler."""

    def write_random(self, folder: Path, spec: Spec, *, size: Size) -> None:
        """Write a checkpoint folder with random weights (a class method)."""
        ...

    def reference_act(self, obs: Observation) -> np.ndarray:
        """Raw actions of that implementation, its own processing before and after included."""
        ...


Make = Callable[[Spec, dict[str, str] | None, Precision], Any]
"""(spec, cameras, precision) -> policy, on a checkpoint with the three cameras of `SPEC`."""

SPEC = Spec(
    robot="bench", tasks=("bench",), state_names=tuple(f"s{i}" for i in range(8)), action_names=tuple(f"a{i}" for i in range(7)),
    action_low=(-1.0,) * 7, action_high=(1.0,) * 7, control_hz=10.0,
    cameras=(("base", 224, 224), ("left", 224, 224), ("right", 224, 224)), privileged_names=("distance",), prompts=True,
)  # fmt: skip


def run(
    policy: str = "", path: str = "", size: str = "toy", device: str = "auto", batch: int = 8, learner_batch: int = 64,
    decisions: int = 64, minibatch: int = 32, microbatch: int = 0, acting_batch: int = 64, pairs: int = 5,
) -> dict[str, float]:  # fmt: skip
    """Measure an installed policy, the first that can be built at random where none is named; `path` is a checkpoint
    with the cameras base, left, right, 8 state and 7 action numbers. For a GPU of 80 GB and more:
    size=full decisions=2048 minibatch=512 microbatch=64.
    """
    name = _choose(policy)
    network = plugins.load(POLICIES, name)
    if size not in get_args(Size):
        raise UsageError(f"size is one of {', '.join(get_args(Size))}, got '{size}'.")
    counts = {"batch": batch, "learner_batch": learner_batch, "decisions": decisions, "minibatch": minibatch, "acting_batch": acting_batch, "pairs": pairs}
    if low := [f"{key} is {count}" for key, count in counts.items() if count < 1]:
        raise UsageError(f"{' and '.join(low)}; at least 1 is needed.")
    if decisions % min(acting_batch, decisions):
        raise UsageError(f"decisions is {decisions}; it must be a multiple of acting_batch, {acting_batch}, or smaller.")
    chosen = pick_device(device)
    with tempfile.TemporaryDirectory() as temporary:
        folder = path or temporary
        if not path:
            network.write_random(Path(folder), SPEC, size=size)

        def make(spec: Spec, cameras: dict[str, str] | None, precision: Precision) -> Any:
            torch.manual_seed(0)
            return network(spec, path=folder, cameras=cameras, precision=precision).to(chosen)

        return measure(
            make, name=name, batch=batch, learner_batch=learner_batch, decisions=decisions, minibatch=minibatch,
            microbatch=microbatch or None, acting_batch=acting_batch, pairs=pairs,
            precision="bfloat16" if chosen == "cuda" else "float32",
        )  # fmt: skip


def measure(
    make: Make, *, name: str, batch: int, learner_batch: int, decisions: int, minibatch: int, microbatch: int | None,
    acting_batch: int, pairs: int, precision: Precision,
) -> dict[str, float]:  # fmt: skip
    """All figures.

    mean_shift_fp32, mean_shift_bf16: rms |mean shift| / std of the worst sample, contexts and means from acting at `batch`
    against the learner at `learner_batch`; ..._recomputed: against itself.
    sample_vs_..._policy: time of the reference's way from raw observations to raw actions over ours; ..._masked: where
    the robot lacks one of the checkpoint's three cameras.
    vla_prefix_reuse_vs_theory: speed-up of an update of four epochs that encodes once over one that encodes in every
    epoch, over its theory 1 / (1 - p + p / 4), p the share of encoding in the latter.
    <name>_update_samples_s: decisions a second of an update of one epoch that encodes them; ..._cached: passes a second
    of one of four epochs on contexts kept from acting.
    <name>_chunks_s: chunks a second at K = 4; ..._of_peak: its share of this device's own rate of large matrix products.
    """
    exact, rounded = make(SPEC, None, "float32"), make(SPEC, None, "bfloat16")
    figures = {f"mean_shift_{tag}": shift(FlowAgent(p), batch, learner_batch) for tag, p in (("fp32", exact), ("bf16", rounded))}
    figures["mean_shift_recomputed"] = shift(FlowAgent(rounded), learner_batch, learner_batch, itself=True)
    two = replace(SPEC, cameras=SPEC.cameras[:2])
    part = make(two, {camera: camera for camera, _, _ in two.cameras}, "float32")
    figures |= {
        f"sample_vs_{exact.reference}_policy": sampling(exact, batch, pairs),
        f"sample_vs_{exact.reference}_policy_masked": sampling(part, batch, pairs),
    }
    chosen = exact if precision == "float32" else rounded
    bench = Updates(FlowAgent(chosen, Sampler(steps=4)), decisions, minibatch, microbatch, acting_batch)
    figures["vla_prefix_reuse_vs_theory"] = bench.reuse_vs_theory(pairs)
    figures[f"{name}_update_samples_s"] = decisions / bench.seconds(epochs=1, pairs=pairs, encode="once")
    figures[f"{name}_update_samples_s_cached"] = 4 * decisions / bench.seconds(epochs=4, pairs=pairs, encode="never")
    return figures | acting(bench.agent, acting_batch, pairs, name)


def shift(agent: FlowAgent, batch: int, learner_batch: int, *, itself: bool = False) -> float:
    """The worst sample's `flow.mean_shift` between acting at one batch size and learning at another."""
    obs = look(agent.policy.spec, learner_batch)
    chunks = [agent.act(tree.index(obs, slice(i, i + batch)), explore=True) for i in range(0, learner_batch, batch)]
    whole: ActionChunk = tree.to(tree.concat(chunks), agent.device)
    trace = whole.trace
    assert trace is not None
    mean, std = agent.replay(trace, whole.version, whole.context)
    if itself:
        with torch.no_grad():
            old_mean, old_std = agent.replay(trace, whole.version, whole.context)
    else:
        old_mean, old_std = trace.mean, trace.std
    mask = agent.element_mask(torch.full((learner_batch,), agent.policy.horizon, device=agent.device))[:, None]
    return float(mean_shift(mean.detach(), std.detach(), old_mean, old_std, mask).max())


def sampling(policy: Any, batch: int, pairs: int) -> float:
    """Time of the reference's sampler over that of ours, raw observations in and raw actions out."""
    agent, obs = FlowAgent(policy, Sampler(steps=policy.reference_steps)), look(policy.spec, batch)
    return median(_ratios(lambda: policy.reference_act(obs), lambda: agent.act(obs, explore=False), pairs))


def acting(agent: FlowAgent, batch: int, pairs: int, name: str) -> dict[str, float]:
    """Chunks a second, and the share of the device's own matrix rate that this takes."""
    obs = look(agent.policy.spec, batch)
    with FlopCounterMode(display=False) as counter:
        agent.act(obs, explore=True)
    taken = median(_seconds(lambda: agent.act(obs, explore=True)) for _ in range(pairs))
    rate = counter.get_total_flops() / taken
    return {f"{name}_chunks_s": batch / taken, f"{name}_chunks_of_peak": rate / _matrix_rate(agent)}


class Updates:
    """Updates of pi_RL on the same random decisions, without the early stop that would let one do less."""

    def __init__(self, agent: FlowAgent, decisions: int, minibatch: int, microbatch: int | None, lanes: int) -> None:
        self.agent, self.minibatch, self.microbatch = agent, minibatch, microbatch
        rng, rows = np.random.default_rng(0), []
        lanes = min(lanes, decisions)
        for _ in range(decisions // lanes):
            obs = look(agent.policy.spec, lanes)
            rows.append(
                Transition(
                    obs=obs, chunk=agent.act(obs, explore=True), executed=np.full(lanes, agent.policy.horizon),
                    reward=rng.normal(size=lanes).astype(np.float32), discount=np.full(lanes, 0.9, np.float32), next_obs=obs,
                    done=np.zeros(lanes, bool), success=np.zeros(lanes, bool),
                )
            )
        self.rollout = tree.stack(rows)

    def update(self, epochs: int, encode: Literal["never", "once", "always"]) -> Callable[[], Any]:
        """An update that takes the contexts of acting, encodes everything once, or encodes in every epoch."""
        rollout = self.rollout
        if encode != "never":
            rollout = replace(rollout, chunk=replace(rollout.chunk, context=None))
        algorithm = PiRL(
            self.agent, learning_rate=1e-6, epochs=epochs, minibatch=self.minibatch, microbatch=self.microbatch, target_kl=None,
            critic_warmup=0, critic="privileged", max_mean_shift=1e9,
        )  # fmt: skip

        def work() -> None:
            self.agent.policy.frozen_prefix = encode != "always"  # as where the prefix trains; it does not
            algorithm.update(_Same(rollout))
            self.agent.policy.frozen_prefix = True

        return work

    def seconds(self, *, epochs: int, pairs: int, encode: Literal["never", "once", "always"]) -> float:
        """Median time of an update, after one to warm up."""
        work = self.update(epochs, encode)
        work()
        return median(_seconds(work) for _ in range(pairs))

    def reuse_vs_theory(self, pairs: int) -> float:
        """Measured speed-up of encoding once over encoding in every epoch, over what the share of encoding promises."""
        epochs = 4
        once, always = self.update(epochs, "once"), self.update(epochs, "always")
        speedup = median(_ratios(always, once, pairs))
        flat = tree.flatten(self.rollout.obs)
        parts = range(0, len(flat.state), self.microbatch or self.minibatch)

        def encode() -> None:
            for start in parts:
                self.agent.encode(tree.index(flat, slice(start, start + (self.microbatch or self.minibatch))))

        share = epochs * median(_seconds(encode) for _ in range(pairs)) / median(_seconds(always) for _ in range(pairs))
        return speedup * (1 - share + share / epochs)


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

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def look(spec: Spec, count: int) -> Observation:
    """Random pictures and states with one instruction."""
    rng = np.random.default_rng(0)
    return Observation(
        images={name: rng.integers(0, 256, (count, h, w, 3), dtype=np.uint8) for name, h, w in spec.cameras},
        state=rng.normal(size=(count, spec.state_dim)).astype(np.float32), prompt=np.full(count, "push the red cube"),
        time=np.zeros(count), privileged=rng.normal(size=(count, len(spec.privileged_names))).astype(np.float32),
    )  # fmt: skip


def _choose(given: str) -> str:
    """The policy to measure: what was named, else the first that can be built at random."""
    names = [given] if given else plugins.names(POLICIES)
    found = next((name for name in names if isinstance(plugins.load(POLICIES, name), Measurable)), None)
    if found is None:
        raise UsageError(
            f"{given or 'Every installed policy'} lacks what this benchmark compares: random weights, and an implementation beside ours. "
            f"Installed: {', '.join(plugins.names(POLICIES))}."
        )
    return found


def _ratios(theirs: Callable[[], Any], ours: Callable[[], Any], pairs: int) -> list[float]:
    """time(theirs) / time(ours), the two timed in turn after one warm-up each."""
    theirs(), ours()
    return [_seconds(theirs) / _seconds(ours) for _ in range(pairs)]


def _seconds(work: Callable[[], Any]) -> float:
    _settle()
    start = time.perf_counter()
    work()
    _settle()
    return time.perf_counter() - start


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _matrix_rate(agent: FlowAgent, side: int = 2048) -> float:
    """Operations a second of large matrix products, in the precision that the policy computes in."""
    dtype = torch.bfloat16 if agent.policy.precision == "bfloat16" else torch.float32
    side = side * 4 if agent.device.type == "cuda" else side
    a, b = (torch.randn(side, side, device=agent.device, dtype=dtype) for _ in range(2))
    a @ b
    return 2 * side**3 / min(_seconds(lambda: a @ b) for _ in range(5))
