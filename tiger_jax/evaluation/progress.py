"""How far a long evaluation is."""

import time
from typing import TextIO

from tiger_jax.training.progress import Progress, format_seconds

EVERY = 2.0
"""Seconds between two lines."""


class Counter:
    """Counts what is done; now and then shows it with the rate and the time that is left."""

    def __init__(self, total: int, unit: str, stream: TextIO | None = None) -> None:
        self._total = total
        self._unit = unit
        self._line = Progress(total, stream=stream)
        self._done = 0
        self._began = self._shown = time.perf_counter()

    def add(self, count: int) -> None:
        """Count some more."""
        self._done += count
        now = time.perf_counter()
        final = self._done >= self._total
        if now - self._shown < EVERY and not final:
            return
        self._shown = now
        rate = self._done / max(now - self._began, 1e-9)
        left = format_seconds((self._total - self._done) / rate) if rate else "?"
        self._line.line(
            f"{self._done}/{self._total} {self._unit}  {rate:.1f} a second  ETA {left}", final=final
        )
