"""Settings and things to build for the tests of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from embodied.cli.run import CommandSettings
from embodied.cli.schema import Factory, Part


@dataclass(frozen=True)
class Noise:
    """A section that is a dataclass and checks itself."""

    level: float = 0.5
    bounds: tuple[float, float] = (0.1, 0.2)

    def __post_init__(self) -> None:
        if self.level <= 0:
            raise ValueError(f"level must be above 0, got {self.level}.")


@dataclass
class Trainer:
    """What a factory section builds."""

    agent: object
    lr: float = 1e-3
    minibatch: int = 64
    clip: float | None = None
    label: str = "a"
    law: tuple[float, ...] = (0.5, 0.5)
    form: Literal["one", "two"] = "one"
    flag: bool = False
    noise: Noise = Noise()
    folder: Path | None = None


def other_trainer(agent: object, *, beta: float) -> Any:
    """Another callable for the same section, with a setting that has no default."""
    return agent, beta


def open_trainer(agent: object, **more: Any) -> Any:
    """A callable that takes any setting."""
    return agent, more


@dataclass(frozen=True, kw_only=True)
class ToySettings(CommandSettings):
    """The settings of a toy command."""

    policy: Annotated[Factory, Part(group="embodied.policies", supplied=("spec",))]
    algorithm: Annotated[Factory, Part(target="tests.cli.parts.Trainer", supplied=("agent",))]
    noise: Noise = Noise()
    lanes: int = 8
    prompt: str = ""
    run_id: str | None = None
    steps: int | None = None
    tasks: tuple[str, ...] = ("reach",)
    extra: dict[str, int] | None = None
