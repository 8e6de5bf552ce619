"""A benchmark that cannot be run as told says so in one line."""

from __future__ import annotations

import pytest

from embodied.cli.main import USAGE, main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("policy decisions=64", "decisions is 64; give a multiple of 128"),
        ("policy decisions=200", "decisions is 200; give a multiple of 128"),
        ("policy pairs=0", "pairs is 0; at least 1 is needed"),
        ("vla policy=smolvla size=huge", "size is one of toy, mid, full, got 'huge'"),
        ("vla policy=smolvla pairs=0 batch=0", "batch is 0 and pairs is 0; at least 1 is needed"),
        ("vla policy=smolvla decisions=100", "decisions is 100; it must be a multiple of acting_batch, 64"),
        ("vla policy=flow_mlp", "flow_mlp lacks what this benchmark compares"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_in_a_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("embodied: ") and said in error and error.count("\n") == 1
