"""The one exception of the command line."""

from __future__ import annotations


class UsageError(ValueError):
    """The command line or configuration is wrong: exit code 2, before anything ran."""
