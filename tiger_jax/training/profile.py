"""Traces of chosen steps of a run, for TensorBoard's profiler and for Perfetto."""

from pathlib import Path
from typing import Any

import jax

from tiger_jax.errors import UserError

PROFILE = "profile"


class StepProfile:
    """Writes one trace of the steps `first`..`last` into a folder; a run that starts behind
    `first` traces what is left of them. The first two steps of a start are mostly compilation."""

    def __init__(self, folder: str | Path, first: int, last: int):
        self.folder, self.first, self.last = Path(folder), first, last
        self._running = False

    @classmethod
    def parse(cls, text: str, run_dir: str | Path) -> "StepProfile | None":
        """The profile that "n:m" asks for, both steps included; None for "".

        Raises:
            UserError: anything else, or m < n, or n < 1.
        """
        if not text:
            return None
        first, _, last = text.partition(":")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise UserError(f"profile: expected first:last step such as 10:12, got {text!r}")
        return cls(Path(run_dir) / PROFILE, int(first), int(last))

    def before(self, step: int, state: Any) -> None:
        """Called before step number `step` (the first is 1) starts from `state`."""
        if not self._running and self.first <= step <= self.last:
            jax.block_until_ready(state)  # or the end of the step before would be in the trace
            jax.profiler.start_trace(str(self.folder))
            self._running = True

    def after(self, step: int, state: Any) -> None:
        """Called with what that step gives."""
        if self._running and step >= self.last:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Write what has been traced, if a run ends between `first` and `last`."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
