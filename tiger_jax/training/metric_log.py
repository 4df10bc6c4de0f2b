"""Scalars of a run: TensorBoard event files, and the same as JSON Lines for everything else.

The only file that imports tensorboardX.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

METRICS_FILE = "metrics.jsonl"
"""One line a report: {"step": 10, "of": "train", "loss": 0.7, ...}; a resumed run goes on in it."""


class MetricLog:
    """Writes on the process that was told to, does nothing on the others."""

    def __init__(self, folder: str | Path, *, active: bool = True):
        self._writer = SummaryWriter(str(folder), flush_secs=10) if active else None
        self._lines = (Path(folder) / METRICS_FILE).open("a") if active else None

    def write(self, step: int, scalars: Mapping[str, float], prefix: str = "train") -> None:
        """One point per scalar, named prefix/name, at a step."""
        if self._writer is None:
            return
        for name, value in scalars.items():
            self._writer.add_scalar(f"{prefix}/{name}", value, step)
        values = {name: float(value) for name, value in scalars.items()}
        self._lines.write(json.dumps({"step": step, "of": prefix} | values) + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()
            self._lines.close()


def read_curve(folder: str | Path, metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of "train/loss" or "held_out/kl" of a run's log folder.

    A step that was reported twice, before and after a resume, counts as it was reported last.
    """
    prefix, _, name = metric.partition("/")
    points = {}
    for line in (Path(folder) / METRICS_FILE).read_text().splitlines():
        row = json.loads(line)
        if row["of"] == prefix and name in row:
            points[row["step"]] = row[name]
    return sorted(points), [points[step] for step in sorted(points)]
