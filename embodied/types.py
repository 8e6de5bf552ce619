"""The values that flow between the parts: observations, action chunks, transitions, episodes.

Everything here is NumPy in raw units: SI, radians, gripper 0 closed - 1 open, images uint8 RGB, capture
times in monotonic seconds. The same dataclasses carry torch tensors once `tree.to` moved them to a device.
Axes: B batch, N lanes, T frames, D decisions, H horizon, A action dims, S state dims, L likelihood-bearing
denoising steps. `*B` stands for any leading axes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

Array = Any
"""A NumPy array outside the learner, a torch tensor inside it."""

Source = Literal["policy", "human", "script"]
SOURCES: tuple[Source, ...] = ("policy", "human", "script")


@dataclass(frozen=True)
class Spec:
    """What a simulator or robot offers a policy, readable before anything is connected.

    It travels in every checkpoint; `difference` names what does not fit.
    """

    robot: str
    """Name of the embodiment whose joints these numbers belong to."""
    tasks: tuple[str, ...]
    state_names: tuple[str, ...]
    """One name per entry of `Observation.state`, in order."""
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    """Smallest admissible action per dim, raw units."""
    action_high: tuple[float, ...]
    control_hz: float
    """Frames per second."""
    cameras: tuple[tuple[str, int, int], ...] = ()
    """(name, height, width) of every picture, pixels."""
    privileged_names: tuple[str, ...] = ()
    """Entries of `Observation.privileged`: known in simulation only, for critics."""
    prompts: bool = False
    """Whether observations carry an instruction."""

    def __post_init__(self) -> None:
        sizes = {len(self.action_names), len(self.action_low), len(self.action_high)}
        if len(sizes) != 1:
            raise ValueError(
                f"action_names, action_low and action_high have {len(self.action_names)}, {len(self.action_low)} "
                f"and {len(self.action_high)} entries; give one of each per action dim."
            )
        if not all(low < high for low, high in zip(self.action_low, self.action_high, strict=True)):
            raise ValueError(f"Every action_low must lie below its action_high, got {self.action_low} and {self.action_high}.")

    @property
    def state_dim(self) -> int:
        return len(self.state_names)

    @property
    def action_dim(self) -> int:
        return len(self.action_names)

    @property
    def schema(self) -> str:
        """Hash of what gives the columns of an episode their meaning: everything but tasks and privileged truth."""
        unrelated = ("tasks", "privileged_names", "prompts")
        meaning = {key: value for key, value in self.to_dict().items() if key not in unrelated}
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Spell it in plain values, for JSON."""
        low, high = ([float(bound) for bound in bounds] for bounds in (self.action_low, self.action_high))
        return {**asdict(self), "action_low": low, "action_high": high, "control_hz": float(self.control_hz)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Spec:
        """Read back what `to_dict` spelled, from JSON too: lists become tuples again."""

        def tuples(value: Any) -> Any:
            return tuple(tuples(v) for v in value) if isinstance(value, (list, tuple)) else value

        return Spec(**{key: tuples(value) for key, value in values.items()})

    def difference(self, other: Spec, ignore: tuple[str, ...] = ()) -> list[str]:
        """Say in words where `other` differs, one line per field; empty when they agree."""
        lines = []
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name not in ignore and mine != theirs:
                lines.append(f"{field.name}: {_brief(mine)} here, {_brief(theirs)} there")
        return lines


def _brief(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} ({', '.join(str(v) for v in value)})"
    return repr(value)


@dataclass(frozen=True)
class Observation:
    """What a policy sees before one decision."""

    images: dict[str, Array]
    """Camera name to uint8 RGB [*B, h, w, 3]."""
    state: Array
    """float32 [*B, S]: proprioception, and object poses in state experiments."""
    prompt: Array
    """str [*B]: the instruction, empty where there is none."""
    time: Array
    """float64 [*B]: capture time in seconds."""
    privileged: Array | None = None
    """float32 [*B, P]: simulator-only truth for critics; policies never read it."""


@dataclass(frozen=True)
class Scenes:
    """Random scenes with labels, for perception: no actions, and no demonstrations, are in them."""

    obs: Observation
    """[B, ...]."""
    targets: Array
    """float32 [B, P, G]: what is to be known of each of P referents of the instruction (the object it names, the goal it
    names): first its place from the tool, m, then whatever the simulator adds, unit scale."""
    weight: Array
    """float32 [B, P, G]: 0 where a number means nothing, as for the goal of an instruction without one."""
    masks: dict[str, Array]
    """Camera to bool [B, P, h, w]: the pixels of each referent."""


@dataclass(frozen=True)
class Trace:
    """The L stochastic denoising steps of a chunk: all that its likelihood needs.

    Kept in float32 from sampler to loss: rounding `x_next` to bfloat16 turns a probability ratio of 1 into
    0.03 (public fault B02). `x, x_next, mean, std` are normalised actions [*B, L, H, A] (`std` broadcastable).
    """

    x: Array
    x_next: Array
    mean: Array
    std: Array
    step: Array
    """int64 [*B, L]: denoising step index k, at flow time t = 1 - k/K."""


@dataclass(frozen=True)
class ActionChunk:
    """H actions proposed at once."""

    actions: Array
    """float32 [*B, H, A], raw units."""
    version: Array
    """int64 [*B]: the one policy version that made the whole chunk."""
    trace: Trace | None = None
    """Absent for deterministic sampling, demonstrations and policies without a likelihood."""
    context: Any = None
    """The policy's encoding of the observation where encoding is frozen, kept for the learner of the same
    process; never sent or stored."""


@dataclass(frozen=True)
class Transition:
    """One decision and where it led. Leading axes are [D, N] on-policy and [B] in replay."""

    obs: Observation
    chunk: ActionChunk
    executed: Array
    """int64: k <= H frames that ran; 0 marks a decision whose world became invalid and carries no weight."""
    reward: Array
    """float32: sum over the k executed frames of gamma^i r_i; 0 after the first success."""
    discount: Array
    """float32: gamma^k, or 0 if the task terminated; a truncation keeps gamma^k."""
    next_obs: Observation
    """The true next observation, never the one after a reset."""
    done: Array
    """bool: the episode ended here, by termination or truncation; ends the lambda-sum."""
    success: Array
    """bool: the task was solved within this decision."""
    advantage: Array | None = None
    """float32: a frame-level advantage column, where the data has one."""


@dataclass(frozen=True)
class ChunkResult:
    """What happened to a chunk in N lanes."""

    reward: np.ndarray
    """float32 [N, H]: per frame, 0 for frames that did not run."""
    executed: np.ndarray
    """int64 [N]."""
    terminated: np.ndarray
    """bool [N]."""
    truncated: np.ndarray
    """bool [N]: the time limit or a diverged world ended it."""
    success: np.ndarray
    """bool [N]."""
    invalid: np.ndarray
    """bool [N]: the world diverged; the decision did not happen (`executed` 0, observation of its start)."""
    observation: Observation
    """[N, ...] after the last executed frame."""


@dataclass(frozen=True)
class Episode:
    """Frames from reset to end, as recorded: the one thing a sim, a robot or a data set produces.

    Three tables. Frames: T rows. Observations: T + 1 rows. Decisions: D rows, absent in demonstrations.
    """

    # frame table, T rows
    requested: np.ndarray
    """float32 [T, A]: what the policy, person or script asked for."""
    action: np.ndarray
    """float32 [T, A]: what was executed, after limits."""
    reward: np.ndarray
    """float32 [T]."""
    source: np.ndarray
    """uint8 [T]: index into SOURCES."""
    version: np.ndarray
    """int64 [T]: policy version, -1 where no policy acted."""
    governed: np.ndarray
    """uint8 [T]: bit mask of the safety limits that changed the action."""
    # observation table, T + 1 rows
    state: np.ndarray
    """float32 [T + 1, S]."""
    time: np.ndarray
    """float64 [T + 1], seconds."""
    images: dict[str, np.ndarray]
    """Camera to uint8 [I, h, w, 3] at the rows named by `image_rows`."""
    image_rows: np.ndarray
    """int64 [I], ascending rows of the observation table that have pictures."""
    # decision table, D rows
    frame: np.ndarray
    """int64 [D]: first frame of each decision."""
    executed: np.ndarray
    """int64 [D]: frames run of each decision."""
    chunk: np.ndarray
    """float32 [D, H, A]: proposed actions."""
    trace: Trace | None
    """[D, L, H, A] arrays."""
    # the whole
    terminated: bool
    truncated: bool
    success: bool
    reason: str
    """Why it ended, for a person: 'success', 'time limit', 'diverged', 'crash', ..."""
    task: str
    prompt: str
    seed: int
    schema: str
    """Hash of the Spec that gives the columns their meaning."""
    snapshot: np.ndarray | None = None
    """float64 [T + 1, P]: full simulation state, in simulation only."""
    scene: np.ndarray | None = None
    """float64 [G]: everything a reset randomised."""

    @property
    def length(self) -> int:
        """Number of frames T."""
        return len(self.action)
