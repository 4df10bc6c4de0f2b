"""Scalars of a run to TensorBoard event files; the only file that imports tensorboardX."""

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class MetricLog:
    """Writes on the process that was told to, does nothing on the others."""

    def __init__(self, folder: str | Path, *, active: bool = True):
        self._writer = SummaryWriter(str(folder), flush_secs=10) if active else None

    def write(self, step: int, scalars: Mapping[str, float], prefix: str = "train") -> None:
        """One point per scalar, named prefix/name, at a step."""
        if self._writer is not None:
            for name, value in scalars.items():
                self._writer.add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()
