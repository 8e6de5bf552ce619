"""The protocols between the parts. Implement one of these to plug something in; inherit from nothing.

Axes and units are those of `types`; policies work on torch tensors, everything else on NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .types import ActionChunk, ChunkResult, Episode, Observation, Scenes, Spec, Transition

if TYPE_CHECKING:
    from torch import Tensor, nn

Context = Any
"""A tree of tensors, batch axis first: what a policy needs to know of its observations. Cacheable, indexable,
repeatable; detached where the encoder is frozen."""

Precision = Literal["float32", "bfloat16"]


class Velocity(NamedTuple):
    """What a flow policy returns at one flow time."""

    v: Tensor
    """[B, H, A]: predicted noise - action, normalised units."""
    features: Tensor
    """[B, H, F]: the last hidden layer per action, for value and noise heads."""


class Policy(Protocol):
    """Anything that acts."""

    def act(self, obs: Observation, explore: bool) -> ActionChunk:
        """Choose one chunk per row of `obs`; `explore` asks for the stochastic, likelihood-bearing sampler."""
        ...


@runtime_checkable
class FlowPolicy(Protocol):
    """A conditional velocity field. A `torch.nn.Module` that knows no algorithm, sampler or simulator."""

    spec: Spec
    horizon: int
    """H, actions per chunk."""
    action_dim: int
    """A, including padding dims if the network has any; the first `spec.action_dim` are real."""
    prefix_dim: int
    """Width of `prefix_features`."""
    feature_dim: int
    """Width of `Velocity.features`."""
    frozen_prefix: bool
    """Whether `encode` is independent of every trainable parameter, so that its result may be kept."""
    precision: Precision
    """What the network computes in; weights, velocities and likelihoods are float32 in any case."""

    def encode(self, obs: Observation) -> Context:
        """Encode observations, on the policy's device, once per decision."""
        ...

    def prefix_features(self, context: Context) -> Tensor:
        """Summarise a context for value heads: [B, prefix_dim]."""
        ...

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> Velocity:
        """Predict the velocity at x [B, H, A] and flow time t [B] (1 noise, 0 action)."""
        ...

    def normalise(self, actions: Tensor) -> Tensor:
        """Raw [..., spec.action_dim] to normalised, padded [..., action_dim]."""
        ...

    def unnormalise(self, actions: Tensor) -> Tensor:
        """The inverse: normalised, padded [..., action_dim] to raw [..., spec.action_dim]."""
        ...

    def fit_statistics(self, states: np.ndarray, actions: np.ndarray) -> None:
        """Take normalisation from data: states [T, S] and actions [T, A], raw. They travel in the checkpoint."""
        ...


@runtime_checkable
class Exports(Protocol):
    """A policy that came in a format of its field and can be written in it again, for tools that know no other."""

    def save(self, folder: Path, *, weights: bool = True) -> None:
        """Write what `policy.path=folder` rebuilds; without weights where they are kept elsewhere."""
        ...


class VectorEnv(Protocol):
    """Gymnasium's VectorEnv with autoreset DISABLED, as far as this project uses it.

    Observations are dicts with `state` and, where present, `images/<camera>`, `prompt`, `privileged`.
    """

    num_envs: int
    embodiment: Spec
    time_limit: int
    """Frames after which an episode is truncated."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the lanes of `options["reset_mask"]` (all without one). Lane i draws from seed + i."""
        ...

    def step(self, actions: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Run one frame in every lane; a lane that has ended is an error. `infos["success"]`, `infos["invalid"]`: bool [N]."""
        ...

    def task_names(self, lanes: np.ndarray) -> list[str]:
        """Name of the task that each of these lanes plays now."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Chunked(Protocol):
    """A vector env that runs a whole chunk in one native call."""

    def step_chunk(self, actions: np.ndarray, lanes: np.ndarray) -> ChunkResult:
        """Run actions [n, H, A] in the n lanes given by index; each stops at its own end."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """A vector env whose lanes can be saved and put back exactly."""

    def snapshot(self, lanes: np.ndarray) -> np.ndarray:
        """float64 [n, P]: everything that decides the future of these lanes, their scene and counters included."""
        ...

    def restore(self, lanes: np.ndarray, snapshot: np.ndarray) -> Observation:
        """Put lanes into a saved state and return what they observe there."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """A vector env that knows what its lanes play next, so that a start can be left out before it costs anything."""

    def next_tasks(self, lanes: np.ndarray) -> list[str]:
        """Name of the task that each of these lanes plays after its next reset."""
        ...

    def leave_out(self, lanes: np.ndarray) -> None:
        """Let the next reset of these lanes begin the episode after the one it would have begun."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """A vector env that knows how to solve its tasks."""

    def expert(self, lanes: np.ndarray) -> np.ndarray:
        """float32 [n, H, A]: the scripted expert's next actions; only the first is sure to fit if others are noisy."""
        ...


@runtime_checkable
class HasScenes(Protocol):
    """A vector env that can show labelled random scenes of its tasks."""

    def scenes(self, seed: int) -> Scenes:
        """One random scene per lane, a function of `seed` alone; the lanes' own episodes are not touched."""
        ...


@runtime_checkable
class Perceives(Protocol):
    """A policy that can be taught to see before it is taught to act."""

    def prefix_modules(self) -> tuple[nn.Module, ...]:
        """The parts that `perception_loss` trains."""
        ...

    def perception_loss(self, scenes: Scenes) -> tuple[Tensor, dict[str, float]]:
        """How well the prefix knows what the instruction names, and figures to log."""
        ...


@runtime_checkable
class Renders(Protocol):
    """A vector env that can show itself to a person (Gymnasium's `render` takes no lane)."""

    def picture(self, lane: int) -> np.ndarray:
        """uint8 [h, w, 3]: one lane now, larger than a policy's pictures; even height and width."""
        ...


class Experience(Protocol):
    """Where batches come from: rollouts, replay, logs."""

    def __iter__(self) -> Iterator[Transition]: ...

    def __next__(self) -> Transition: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Algorithm[Batches](Protocol):
    """Turns batches into better weights; `Batches` is an `Experience`, or what else it learns from."""

    @property
    def policy(self) -> Policy: ...

    def update(self, batches: Batches) -> dict[str, float]:
        """Take what it needs from `batches`, improve, and report named figures."""
        ...

    @property
    def policy_state(self) -> dict[str, Tensor]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class AdvantageModel(Protocol):
    """Scores every frame of an episode."""

    def advantages(self, episode: Episode) -> np.ndarray:
        """float32 [T]."""
        ...
