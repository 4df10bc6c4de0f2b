"""Markdown tables, and the JSON file beside them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiger_jax.errors import UserError

MISSING = "-"
"""What was not measured, or has no meaning, in a cell."""


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; first column to the left, the others to the right."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"row {row!r}: expected {len(header)} cells, got {len(row)}")
    lines = [list(header), *map(list, rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    rule = [f"{'-' * (w - 1)}:" if i else "-" * w for i, w in enumerate(widths)]
    lines.insert(1, rule)
    return "\n".join(_line(line, widths) for line in lines)


def number(value: float | int | None, form: str) -> str:
    """The value in a format, or the mark for a missing one."""
    return MISSING if value is None else format(value, form)


def with_error(value: float | None, error: float | None, form: str) -> str:
    """'value ± standard error'; without the error where there is none."""
    if value is None or error is None:
        return number(value, form)
    return f"{value:{form}} ± {error:{form}}"


def yes_no(value: bool | None) -> str:
    """yes, NO, or the mark for a missing value."""
    return MISSING if value is None else "yes" if value else "NO"


def check_report(path: str, name: str = "report") -> None:
    """UserError where the file of the field `name` could not be written later."""
    if not path:
        return
    folder = Path(path).resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise UserError(f"{name}: expected a file in a writable folder, got {path}")


def write_report(path: str, report: Mapping[str, Any]) -> None:
    """The report as JSON; nothing if no path is given."""
    if path:
        Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        f"{cell:>{width}}" if i else f"{cell:<{width}}"
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
