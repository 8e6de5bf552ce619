"""Every configuration file composes, and what is impossible is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.cli import train
from embodied.cli.compose import compose, dump_yaml, load_yaml, resolve
from embodied.cli.errors import UsageError
from embodied.cli.schema import read

CONFIGS = Path(__file__).parents[2] / "configs"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


def settings(*words: str) -> train.TrainSettings:
    return compose(train.TrainSettings, "train", words, rules=train.RULES)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_its_frozen_file_reads_back(experiment: str, tmp_path: Path) -> None:
    chosen = settings(f"experiment={experiment}")
    (tmp_path / "config.yaml").write_text(dump_yaml(chosen))
    assert read(train.TrainSettings, resolve(load_yaml(tmp_path / "config.yaml"))) == chosen


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("rollout.lanes=0", "rollout.lanes is 0; at least 1 is needed."),
        ("eval.lanes=0", "eval.lanes is 0; at least 1 is needed."),
        ("policy.horizon=1000", "policy.horizon is 1000, longer than an episode"),
        ("sampler.steps=0", "sampler: steps"),
        ("sampler.level=0", "no density to learn from"),
        ("algorithm.minibatch=1000000", "algorithm.minibatch is 1000000, but a batch has"),
        ("sim.tasks=[reahc]", "No task named 'reahc'. Did you mean 'reach'?"),
        ("sim=tabeltop", "No sim named 'tabeltop'. Did you mean 'tabletop'?"),
        ("policy=flow_mpl", "No policy named 'flow_mpl'. Did you mean 'flow_mlp'?"),
        ("experiment=reach_stat", "No experiment named 'reach_stat'. Did you mean 'reach_state'?"),
        ("rollout.group=3", "rollout.group is 3; it must divide rollout.lanes, 128."),
        ("eval.also={harder: {randomize: 1}}", "Unknown setting 'sim.randomize'. Did you mean 'randomise'?"),
        ("eval.also={final: {misname: true}}", "eval.also.final has the name of a phase; give it another."),
        ("rollout.lane=1", "Unknown setting 'rollout.lane'. Did you mean 'lanes'?"),
    ],
)
def test_the_impossible_and_the_unknown_are_refused_in_words(word: str, sentence: str) -> None:
    with pytest.raises((UsageError, ValueError)) as caught:
        settings("experiment=reach_state", word) if not word.startswith("experiment") else settings(word)
    assert sentence in str(caught.value)


def test_configuration_stays_small() -> None:
    files = list(CONFIGS.rglob("*.yaml"))
    assert len(files) <= 25 and sum(len(f.read_text().splitlines()) for f in files) <= 500
