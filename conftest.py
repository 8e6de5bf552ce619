"""Settings of the whole test run."""

from __future__ import annotations

import os

# Before torch is imported: rollout threads and torch threads share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MPLBACKEND", "agg")
