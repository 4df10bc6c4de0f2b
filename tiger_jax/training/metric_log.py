"""Scalars and texts of a run: TensorBoard event files, and the same as JSON Lines for the rest.

The only file that imports tensorboardX.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tensorboardX import SummaryWriter

METRICS_FILE = "metrics.jsonl"
"""One line a report: {"step": 10, "of": "train", "loss": 0.7, ...}; a resumed run goes on in it.
Texts are lines too: {"step": 10, "of": "text", "NAME": "..."}."""


class MetricLog:
    """Writes on the process that was told to, does nothing on the others."""

    def __init__(self, folder: str | Path, *, active: bool = True):
        self._writer = SummaryWriter(str(folder), flush_secs=10) if active else None
        self._lines = _open_lines(Path(folder) / METRICS_FILE) if active else None

    def write(self, step: int, scalars: Mapping[str, float], prefix: str = "train") -> None:
        """One point per scalar, named prefix/name, at a step."""
        if self._writer is None:
            return
        for name, value in scalars.items():
            self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._append(step, prefix, {name: float(value) for name, value in scalars.items()})

    def write_text(self, step: int, texts: Mapping[str, str]) -> None:
        """One Markdown text per name at a step; `show_sample` makes one of a draft."""
        if self._writer is None:
            return
        for name, text in texts.items():
            self._writer.add_text(name, text, step)
        self._append(step, "text", dict(texts))

    def _append(self, step: int, of: str, values: Mapping[str, float | str]) -> None:
        self._lines.write(json.dumps({"step": step, "of": of} | values) + "\n")
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
    for line in (Path(folder) / METRICS_FILE).read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # a run is writing it
        row = json.loads(line)
        if row["of"] == prefix and name in row:
            points[row["step"]] = row[name]
    return sorted(points), [points[step] for step in sorted(points)]


def show_sample(prompt: str, blocks: Sequence[tuple[str, str]]) -> str:
    """Markdown of a prompt and the blocks drafted after it, the accepted part in brackets.

        USER: How many stars are there? ASSISTANT: There
            [are two] stars

    Args:
        blocks: (accepted text, rejected text) of each block.
    """
    lines = [prompt, *(f"    [{accepted}]{rejected}" for accepted, rejected in blocks)]
    # Four spaces make it code: nothing that a model writes is read as Markdown then.
    return "\n".join("    " + line.replace("\n", "\\n") for line in lines)


def _open_lines(path: Path) -> TextIO:
    """Open for appending, without what a killed run wrote of its last line."""
    if path.exists():
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    return path.open("a")
