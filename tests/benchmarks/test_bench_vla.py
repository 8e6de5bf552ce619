"""The figures that the CPU can give, on a mid-size random pi0; printed with -s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied import plugins
from embodied.cli import bench, bench_vla
from embodied.types import Spec

from ..policies.substitute import Widths, widths

MID = Widths(
    language=512, expert=256, depth=8, inner=2048, expert_inner=1024, head=64, vision=384, vision_depth=6, vision_heads=6
)


def test_every_figure_is_printed_at_toy_size(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vla", "--json", "policy=smolvla", "device=cpu", "learner_batch=16", "decisions=8", "minibatch=4", "acting_batch=4", "pairs=1"]
    assert bench.main(words) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() == {
        "mean_shift_fp32", "mean_shift_bf16", "mean_shift_recomputed", "sample_vs_lerobot_policy",
        "sample_vs_lerobot_policy_masked", "vla_prefix_reuse_vs_theory", "smolvla_update_samples_s",
        "smolvla_update_samples_s_cached", "smolvla_chunks_s", "smolvla_chunks_of_peak",
    }  # fmt: skip
    assert all(figure >= 0 for figure in figures.values()) and figures["smolvla_chunks_s"] > 0


@pytest.mark.slow
def test_a_mid_size_pi0_reaches_its_bounds(tmp_path: Path) -> None:
    network = plugins.load("embodied.policies", "pi0")
    network.write_random(tmp_path, bench_vla.SPEC, size="mid")

    def make(spec: Spec, cameras: dict[str, str] | None, precision: Any) -> Any:
        torch.manual_seed(0)
        with widths(MID):
            return network(spec, path=str(tmp_path), cameras=cameras, precision=precision)

    figures = bench_vla.measure(
        make, name="pi0", batch=8, learner_batch=64, decisions=32, minibatch=16, microbatch=None, acting_batch=16, pairs=5,
        precision="float32",
    )  # fmt: skip
    print(json.dumps(figures, indent=1))
    assert figures["mean_shift_fp32"] <= 1e-5
    assert figures["mean_shift_bf16"] <= 3e-2
    assert figures["mean_shift_recomputed"] == 0
    assert figures["sample_vs_lerobot_policy"] >= 0.97
    assert figures["sample_vs_lerobot_policy_masked"] >= 1.2
    assert figures["vla_prefix_reuse_vs_theory"] >= 0.9
