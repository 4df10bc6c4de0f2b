"""What an evaluation has done so far, as JSON lines on disk: a killed run goes on where it was.

A line is whole or it does not count. Each is written at once, with its end, and forced to disk
before the next batch begins, so that kill -9 loses the batch in progress and nothing else:

    {"cell": "3f0c...", "about": {"dataset": "textvqa", "variant": "tiger", ...}}
    {"cell": "3f0c...", "rows": [{"uid": ..., "text": ..., "tokens": [...], ...}], "seconds": {...}}
    {"cell": "3f0c...", "failed": {"textvqa/val/34602/0": "damaged image"}}
    {"cell": "3f0c...", "costs": {"c": 0.2, ...}}
    {"cell": "run", "run": {"answers": 120, "seconds": 88.1, ...}}

`cell` is a fingerprint of everything that an answer and its times depend on: other settings are
other cells, and never meet in one row of a report. "run" is the profile of the last run that gave
answers.
"""

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from tiger_jax.errors import UserError

DIGITS = 16
"""Of a fingerprint, hexadecimal."""
RUN = "run"
"""The name under which a run's profile is kept."""


def cell_fingerprint(about: Mapping[str, Any]) -> str:
    """The name of a cell: it changes with any value of what the cell is about."""
    text = json.dumps(about, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@dataclasses.dataclass
class CellLog:
    """All that a journal holds of one cell."""

    about: dict | None = None
    rows: dict[str, dict] = dataclasses.field(default_factory=dict)
    """uid -> what was answered."""
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    """uid -> why there is no answer."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Sums over all batches."""
    peak_bytes: int = 0
    """The most memory that a batch took; 0: unknown."""
    batches: int = 0
    """That gave the rows."""
    costs: dict | None = None
    depth: int | None = None
    """Most drafts that a round could accept."""
    run: dict | None = None
    """Where a run's time and memory went."""

    def has(self, uids: Sequence[str]) -> bool:
        """Whether all of them are answered, or known to have no answer."""
        return all(uid in self.rows or uid in self.failed for uid in uids)

    def take(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        self.about = line.get("about", self.about)
        self.costs = line.get("costs", self.costs)
        self.depth = line.get("depth", self.depth)
        self.run = line.get("run", self.run)
        self.batches += "rows" in line
        self.failed.update(line.get("failed", {}))
        self.rows.update((row["uid"], row) for row in line.get("rows", ()))
        for name, value in line.get("seconds", {}).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        self.peak_bytes = max(self.peak_bytes, line.get("peak_bytes", 0))


class Journal:
    """A journal file, open for appending, and what it held; use it as a context."""

    def __init__(self, file: FileIO, cells: dict[str, CellLog]) -> None:
        self._file = file
        self._cells = cells

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Journal":
        """Read a journal, or begin one; a torn last line is cut off.

        Raises:
            UserError: another run is writing it, or a line before the last cannot be read.
        """
        path = Path(path)
        try:
            file = path.open("a+b", buffering=0)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cells, whole = _read(path)
        except BlockingIOError:
            file.close()
            raise UserError(f"{path}: expected no other run to write it, one does") from None
        except OSError as error:
            file.close()
            raise UserError(f"{path}: cannot be read or locked ({error.strerror})") from None
        except UserError:
            file.close()
            raise
        file.truncate(whole)
        return cls(file, cells)

    def cell(self, fingerprint: str) -> CellLog:
        """What is known of a cell; empty for a new one."""
        return self._cells.setdefault(fingerprint, CellLog())

    def append(self, fingerprint: str, line: Mapping[str, Any]) -> None:
        """Write one line of a cell; it is on disk when this returns.

        Raises:
            UserError: the disk is full, or gone.
        """
        whole = (json.dumps({"cell": fingerprint, **line}, ensure_ascii=True) + "\n").encode()
        try:
            if self._file.write(whole) != len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"{self._file.name}: cannot be written ({error.strerror})") from None
        self.cell(fingerprint).take(line)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._file.close()


def _read(path: Path) -> tuple[dict[str, CellLog], int]:
    """(cells, bytes up to the end of the last whole line)."""
    cells: dict[str, CellLog] = {}
    whole = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("no end")
                fields = json.loads(line)
                cells.setdefault(fields["cell"], CellLog()).take(fields)
            except (ValueError, KeyError, TypeError, AttributeError):
                if file.read(1):
                    raise UserError(
                        f"{path}: line {number}: expected a line of a journal, got "
                        f"{line[:40]!r}; move the file away to begin anew"
                    ) from None
                break
            whole += len(line)
    return cells, whole
