"""From files and words of the command line to checked settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.cli import compose
from embodied.cli.errors import UsageError

from .parts import ToySettings

FILES = {
    "toy.yaml": "defaults:\n  - policy: flow_mlp\n  - experiment: null\n  - _self_\n",
    "policy/flow_mlp.yaml": "name: flow_mlp\nwidth: 32\n",
    "experiment/big.yaml": "# @package _global_\nseed: 5\npolicy:\n  blocks: 3\nalgorithm:\n  lr: 0.5\n",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def toy(files: Path, *words: str, **more: object) -> ToySettings:
    return compose.compose(ToySettings, "toy", words, folder=files, **more)  # type: ignore[arg-type]


def test_files_hold_deviations_and_the_code_the_defaults(files: Path) -> None:
    policy = toy(files).policy
    assert policy.origin == {"name": "flow_mlp"}
    assert (policy.settings["width"], policy.settings["blocks"]) == (32, 2)


def test_an_experiment_sets_several_sections_and_words_win_over_it(files: Path) -> None:
    settings = toy(files, "experiment=big", "algorithm.lr=0.25")
    assert (settings.seed, settings.policy.settings["blocks"], settings.policy.settings["width"]) == (5, 3, 32)
    assert settings.algorithm.settings["lr"] == 0.25


@pytest.mark.parametrize(
    ("word", "read", "value"),
    [
        ("algorithm.lr=1e-4", lambda s: s.algorithm.settings["lr"], 0.0001),
        ("run_id=1E234", lambda s: s.run_id, "1E234"),
        ("run_id=010", lambda s: s.run_id, "010"),
        ("run_id=12:30:45", lambda s: s.run_id, "12:30:45"),
        ("run_id=null", lambda s: s.run_id, None),
        ("prompt=null", lambda s: s.prompt, "null"),
        ("prompt=none", lambda s: s.prompt, "none"),
        ("steps=null", lambda s: s.steps, None),
        ("prompt=取杯子", lambda s: s.prompt, "取杯子"),
        ('prompt="取杯子"', lambda s: s.prompt, "取杯子"),
        ("prompt=a=b, then {c}", lambda s: s.prompt, "a=b, then {c}"),
        ("tasks=[reach, push]", lambda s: s.tasks, ("reach", "push")),
        ("algorithm.law=[1, 0]", lambda s: s.algorithm.settings["law"], (1.0, 0.0)),
        ("noise={level: 2}", lambda s: s.noise.level, 2.0),
        ("++lanes=3", lambda s: s.lanes, 3),
        ("+lanes=3", lambda s: s.lanes, 3),
        ("lanes=${seed}", lambda s: s.lanes, 0),
        ("run.wandb=off", lambda s: s.run.wandb, "off"),
        ("~policy.width", lambda s: s.policy.settings["width"], 256),
    ],
)
def test_a_word_is_read_by_the_type_of_its_setting(files: Path, word: str, read: object, value: object) -> None:
    found = read(toy(files, word))  # type: ignore[operator]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("steps=none", 'steps wants a whole number or null, got "none".'),
        ("steps=1.5", "steps wants a whole number or null, got 1.5."),
        ("lanse=3", "Unknown setting 'lanse'. Did you mean 'lanes'?"),
        (
            "policy.widht=3",
            "Unknown setting 'policy.widht'. Did you mean 'width'? policy (flow_mlp) takes: horizon, width",
        ),
        ("policy=flow_mpl", "No policy named 'flow_mpl'. Did you mean 'flow_mlp'?"),
        ("experiment=bigg", "No experiment named 'bigg'. Did you mean 'big'?"),
        ("lanes=(", "Cannot read the value of 'lanes=('. Put text in quotes inside the shell's: 'lanes=\"(\"'."),
        ("lanes=1,2", "'lanes=1,2' lists several values. Add -m to run one job each, or write [1,2]."),
        ("lanes", "Cannot read 'lanes'. Settings are written key=value, for example seed=1."),
        ("=3", "Cannot read '=3'."),
        ("lanes=${nothing}", "A reference cannot be filled in:"),
        ("~nothing", "'nothing' is not set, so ~nothing removes nothing."),
        ("seed.deep=1", "seed wants a whole number, got"),
        ("device=gpu", 'device wants one of auto, cpu, cuda, got "gpu".'),
    ],
)
def test_a_wrong_word_is_refused_in_words(files: Path, word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        toy(files, word)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_choosing_another_callable_drops_the_settings_of_the_old_one(files: Path) -> None:
    settings = toy(files, "experiment=big", "algorithm.beta=2", "algorithm._target_=tests.cli.parts.other_trainer")
    assert settings.algorithm.settings == {"beta": 2.0}


def test_every_broken_rule_is_named(files: Path) -> None:
    rules = [
        lambda s: f"lanes is {s.lanes}." if s.lanes < 1 else None,
        lambda s: f"seed is {s.seed}." if s.seed < 0 else None,
    ]
    toy(files, rules=rules)
    with pytest.raises(UsageError, match=r"lanes is 0\. seed is -1\."):
        toy(files, "lanes=0", "seed=-1", rules=rules)


def test_a_sweep_makes_one_job_per_combination() -> None:
    words = ["seed=0,1,2", "lanes=${seed}", "policy=flow_mlp", "run_id=1E2,abc"]
    jobs = compose.jobs(words, sweep=True)
    assert len(jobs) == 6
    assert jobs[0] == ["seed=0", "lanes=${seed}", "policy=flow_mlp", "run_id=1E2"]
    assert jobs[-1] == ["seed=2", "lanes=${seed}", "policy=flow_mlp", "run_id=abc"]
    assert compose.jobs(["seed=range(0,3)"], sweep=True) == [["seed=0"], ["seed=1"], ["seed=2"]]
    assert compose.jobs(["tasks=[a,b]"], sweep=True) == [["tasks=[a,b]"]]
    assert compose.jobs(words, sweep=False) == [words]


def test_a_saved_file_is_the_start_where_no_group_is_chosen(files: Path, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    before = toy(files, "experiment=big", "lanes=3", "run_id=1E234")
    saved.write_text(compose.dump_yaml(before))
    assert toy(files, saved=saved) == before
    assert toy(files, "lanes=4", saved=saved).lanes == 4
    assert toy(files, "experiment=null", saved=saved).lanes == 8


def test_composing_leaves_another_hydra_of_the_process_alone(files: Path) -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(files), version_base="1.3"):
        toy(files)
        assert GlobalHydra.instance().is_initialized()
