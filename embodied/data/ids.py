"""Names of episodes: ULIDs, 26 characters that sort by time of creation."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id() -> str:
    """Draw an id: 48 bits of wall-clock milliseconds, then 80 random bits."""
    number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
