"""Plain values become typed settings; nothing is guessed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.cli import schema
from embodied.cli.errors import UsageError

from .parts import Noise, ToySettings, Trainer

POLICY = {"policy": {"name": "flow_mlp"}}


def algorithm(**settings: Any) -> Trainer:
    return schema.read(ToySettings, POLICY | {"algorithm": settings}).algorithm(agent=None)


def test_a_section_builds_its_callable_with_its_own_defaults() -> None:
    assert algorithm(lr=0.1) == Trainer(None, lr=0.1)
    assert algorithm() == Trainer(None)


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("lr", 1e-4, 1e-4),
        ("lr", 1, 1.0),
        ("clip", None, None),
        ("clip", 2, 2.0),
        ("label", "1E234", "1E234"),
        ("law", [1, 0.0], (1.0, 0.0)),
        ("form", "two", "two"),
        ("flag", True, True),
        ("noise", {"level": 1}, Noise(1.0)),
        ("folder", "a/b", Path("a/b")),
    ],
)
def test_a_value_of_the_right_type_is_kept(key: str, given: Any, kept: Any) -> None:
    value = getattr(algorithm(**{key: given}), key)
    assert value == kept and type(value) is type(kept)


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("lr", "1e-4", 'algorithm.lr wants a number, got "1e-4".'),
        ("lr", True, "algorithm.lr wants a number, got true."),
        ("lr", math.nan, "algorithm.lr wants a number, got nan."),
        ("lr", None, "algorithm.lr wants a number, got null."),
        ("minibatch", 64.0, "algorithm.minibatch wants a whole number, got 64.0."),
        ("minibatch", False, "algorithm.minibatch wants a whole number, got false."),
        ("clip", "none", 'algorithm.clip wants a number or null, got "none".'),
        ("label", 1e234, "algorithm.label wants text, got 1e+234. Put text in quotes: 'algorithm.label=\"1e+234\"'."),
        ("law", 0.5, "algorithm.law wants a list, each a number, got 0.5. Write algorithm.law=[0.5]."),
        ("law", [0.5, "x"], 'algorithm.law[1] wants a number, got "x".'),
        ("form", "tow", "algorithm.form wants one of one, two, got \"tow\". Did you mean 'two'?"),
        ("flag", 1, "algorithm.flag wants true or false, got 1."),
        ("flag", "yes", 'algorithm.flag wants true or false, got "yes".'),
        ("noise", 3, "algorithm.noise wants settings (algorithm.noise.<setting>=…), got 3."),
        ("noise", {"bounds": [1]}, "algorithm.noise.bounds wants a list of 2 (a number, a number), got 1: [1]."),
        ("noise", {"level": 0}, "algorithm.noise: level must be above 0, got 0.0."),
        ("noise", {"levle": 1}, "Unknown setting 'algorithm.noise.levle'. Did you mean 'level'?"),
        ("rl", 1, "Unknown setting 'algorithm.rl'. Did you mean 'lr'? algorithm (tests.cli.parts.Trainer) takes: lr, "),
        ("agent", 1, "Unknown setting 'algorithm.agent'."),
    ],
)
def test_a_wrong_value_is_refused_in_words(key: str, given: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        algorithm(**{key: given})
    assert str(caught.value).startswith(sentence)


def test_another_callable_takes_its_own_settings() -> None:
    assert algorithm(_target_="tests.cli.parts.other_trainer", beta=2) == (None, 2.0)
    assert algorithm(_target_="tests.cli.parts.open_trainer", any=2) == (None, {"any": 2})
    with pytest.raises(UsageError, match=r"algorithm.beta is missing: tests.cli.parts.other_trainer wants a number."):
        algorithm(_target_="tests.cli.parts.other_trainer")
    with pytest.raises(UsageError, match=r"_target_ 'tests.cli.nothing' cannot be imported"):
        algorithm(_target_="tests.cli.nothing")


def test_a_plugin_is_found_by_name_and_an_unknown_one_suggested() -> None:
    with pytest.raises(UsageError, match=r"No policy named 'flow_mpl'\. Did you mean 'flow_mlp'\?"):
        schema.read(ToySettings, {"policy": {"name": "flow_mpl"}})
    with pytest.raises(UsageError, match=r"policy.name is missing: it says what to build. Installed: .*flow_mlp"):
        schema.read(ToySettings, {})


def test_an_unknown_section_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Unknown setting 'polcy'\. Did you mean 'policy'\? The command takes: "):
        schema.read(ToySettings, POLICY | {"polcy": {}})


texts = st.text(max_size=12) | st.sampled_from(
    ["1E234", "010", "12:30:45", "none", "null", "nan", "1e-4", "off", "~", ""]
)


@given(
    label=texts.filter(lambda t: "${" not in t and "\x00" not in t),
    lr=st.floats(allow_nan=False, allow_infinity=False),
    law=st.lists(st.floats(0, 1), max_size=3),
    clip=st.none() | st.floats(0, 10),
)
def test_settings_survive_their_file(label: str, lr: float, law: list[float], clip: float | None) -> None:
    import tempfile

    from embodied.cli.compose import dump_yaml, load_yaml, resolve

    data = {"label": label, "lr": lr, "law": law, "clip": clip}
    settings = schema.read(ToySettings, POLICY | {"algorithm": data, "prompt": label, "extra": {"a": 1}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_yaml(settings), encoding="utf-8")
        again = schema.read(ToySettings, resolve(load_yaml(path)))
    assert again == settings
