"""Every way of drawing actions, as a parameter of tests."""

from __future__ import annotations

import pytest

from embodied.flow import Sampler

SAMPLERS = [
    Sampler(),
    Sampler(level=0.7, level_end=0.3, anneal_versions=10),
    Sampler(index_law=(0.1, 0.2, 0.3, 0.4)),
    Sampler(form="two_layer"),
    Sampler(form="joint"),
    Sampler(noise="cps"),
    Sampler(noise="learned"),
    Sampler(noise="learned", form="joint"),
]
NAMES = ["sde", "sde-annealed", "sde-law", "sde-two-layer", "sde-joint", "cps", "learned", "learned-joint"]
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
