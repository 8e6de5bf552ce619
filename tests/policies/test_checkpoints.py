"""A checkpoint of ours holds all that rebuilds a VLA, wherever its weights first came from."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from embodied import checkpoint, plugins
from embodied.agent import FlowAgent
from embodied.cli.load import load
from embodied.cli.schema import plain
from embodied.flow import Sampler

from . import checkpoints
from .conftest import SPEC, seen, stir
from .substitute import widths


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_it_runs_after_the_folder_it_was_trained_from_is_gone(family: str, tmp_path: Path) -> None:
    first, sampler = tmp_path / "first", Sampler(steps=2)
    checkpoints.build(family, SPEC).save(first)
    arguments = {"path": str(first), "precision": "float32", "tokenizer": str(first / "tokenizer")}
    with widths():
        agent = FlowAgent(plugins.load("embodied.policies", family)(SPEC, **arguments), sampler)
    stir(agent)
    agent.policy.fit_statistics(np.random.default_rng(0).normal(size=(50, 5)), np.random.default_rng(1).normal(size=(50, 3)))
    record = checkpoint.describe(SPEC, family, arguments, sampler=plain(sampler))
    checkpoint.save(
        tmp_path / "checkpoints", 3, agent.state_dict(), {}, record, assets=partial(agent.policy.save, weights=False)
    )
    shutil.rmtree(first)
    with widths():
        again = load(tmp_path, device="cpu")
    obs = seen()
    assert again.version == 3
    assert np.array_equal(again.act(obs, explore=False).actions, agent.copy(seed=0).act(obs, explore=False).actions)
