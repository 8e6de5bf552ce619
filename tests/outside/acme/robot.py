"""The cart's driver; here it moves a number."""

from __future__ import annotations

import time

import numpy as np

from embodied.types import Observation

from .sim import spec


class Cart:
    """One cart behind an imaginary serial port."""

    def __init__(self, port: str = "/dev/null", *, start: float = 0.4) -> None:
        self.spec = spec()
        self.port, self._position, self._connected = port, start, False

    def connect(self) -> None:
        self._connected = True

    def observe(self) -> Observation:
        return Observation(
            images={},
            state=np.array([self._position], np.float32),
            prompt=np.array(""),
            time=np.array(time.monotonic()),
        )

    def act(self, action: np.ndarray) -> np.ndarray:
        """Move, and return what was executed."""
        if not self._connected:
            raise RuntimeError("The cart is not connected; call connect() first.")
        executed = np.clip(action, self.spec.action_low, self.spec.action_high)
        self._position += float(executed[0]) / self.spec.control_hz
        return executed

    def stop(self) -> None: ...

    def disconnect(self) -> None:
        self._connected = False
