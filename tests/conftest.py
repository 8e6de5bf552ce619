"""Settings of every test run."""

from __future__ import annotations

from hypothesis import settings

# examples are the same in every run, and a busy machine is no failure
settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")
