"""From random weights through demonstrations and reinforcement on `reach`, handed over as LeRobot's folders in between."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lerobot.policies.factory import get_policy_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from embodied import plugins
from embodied.cli.load import load
from embodied.cli.main import main

from .substitute import Widths, widths

WIDTHS = Widths(expert=64, expert_inner=128)


@dataclass(frozen=True)
class Plan:
    """What a family needs to learn from random weights."""

    imitate: str = "all"
    """What is trained on demonstrations; reinforcement trains the expert alone."""
    episodes: int = 48
    steps: int = 1000
    updates: int = 60
    learning_rate: float = 1e-4
    prompt_tokens: int = 40
    cameras: tuple[str, ...] = ()


PLANS = {
    "smolvla": Plan(),
    "pi0": Plan(imitate="expert", updates=80, cameras=("front",)),
    "pi05": Plan(episodes=600, steps=1500, updates=80, learning_rate=3e-4, prompt_tokens=60),  # it reads its state as text, from few examples not at all
}


def number_tokenizer() -> PreTrainedTokenizerFast:
    """One token per number, as pi0.5's state needs to be learnt in minutes; other words are all one."""
    words = ["<pad>", "<unk>", ";", "-1", *map(str, range(256))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(";", "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


def rates(run: str) -> dict[str, dict[str, Any]]:
    return {row["phase"]: row for row in json.loads(Path(f"runs/{run}/summary.json").read_text())["eval"] if row["task"] == "all"}


@pytest.mark.slow
@pytest.mark.parametrize("family", PLANS)
def test_imitation_and_reinforcement_improve_a_random_instance(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan, network = PLANS[family], plugins.load("embodied.policies", family)
    sim = plugins.load("embodied.sims", "tabletop")(("reach",), lanes=1, cameras=plan.cameras, image_size=32)
    torch.manual_seed(0)
    network.write_random(Path("random"), sim.embodiment)
    if family == "pi05":
        number_tokenizer().save_pretrained("random/tokenizer")
    common = [
        "train", "experiment=reach_state", f"policy={family}", "policy.horizon=4", f"policy.prompt_tokens={plan.prompt_tokens}",
        f"sim.cameras=[{','.join(plan.cameras)}]", "sim.image_size=32", "eval.episodes=256", "eval.final_episodes=256",
    ]  # fmt: skip
    imitation = [
        *common, "run.name=imitated", "phases=[collect,sft,final]", "policy.path=random", f"policy.trainable={plan.imitate}",
        f"collect.episodes={plan.episodes}", f"supervise.steps={plan.steps}", f"supervise.max_steps={plan.steps}",
        f"sft.cycle_steps={plan.steps}",
    ]  # fmt: skip
    reinforcement = [
        *common, "run.name=reinforced", "phases=[rl,final]", "policy.path=runs/imitated/exported",
        f"rollout.updates={plan.updates}", f"eval.every={plan.updates}", f"algorithm.learning_rate={plan.learning_rate}",
    ]  # fmt: skip
    with widths(WIDTHS):
        assert main(imitation) == 0 and main(reinforcement) == 0
        start, end = rates("imitated")["final"], rates("reinforced")
        print(family, start, end)
        assert start["success_rate"] > 0.3  # random weights: none or next to none
        assert end["sft"]["success_rate"] == pytest.approx(start["success_rate"], abs=0.1)  # the folder carried it over
        assert end["final"]["wilson_low"] > end["sft"]["success_rate"]
        ours = load("runs/reinforced", device="cpu").policy
        theirs = get_policy_class(family).from_pretrained("runs/reinforced/exported")
    state = ours.network.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())
