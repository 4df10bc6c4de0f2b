"""JSON Lines read so that a bad line spoils no neighbour: one record or one clear fault a line."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tiger_jax.errors import UserError


@dataclass(frozen=True)
class RecordError:
    """Why line `line` (from 1) gives no record; `id` where it could be read."""

    line: int
    message: str
    id: str | None = None


class HasId(Protocol):
    """A record that its file knows by a name of its own."""

    @property
    def id(self) -> str: ...


Record = TypeVar("Record", bound=HasId)
Check = Callable[[str, Any], Any]
"""(field name, JSON value) -> the value to keep. Raises ValueError in one line."""


def read_json_lines(
    path: str | os.PathLike, what: str, build: Callable[[dict, str], Record]
) -> Iterator[Record | RecordError]:
    """`parse_json_lines` of a file. Raises UserError only if the file cannot be read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a JSON Lines file of {what}, found none there")
    with path.open("rb") as file:
        yield from parse_json_lines(file, build)


def parse_json_lines(
    lines: Iterable[bytes | str], build: Callable[[dict, str], Record]
) -> Iterator[Record | RecordError]:
    """One record or RecordError for each line that is not blank; ids must differ.

    Args:
        build: (JSON object, "line-N" as the id of a record that has none) -> record. Raises
            ValueError with what is wrong.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields: dict = {}
        try:
            fields = _parse_object(line, first=number == 1)
            record = build(fields, f"line-{number}")
            if record.id in seen:
                raise ValueError(f"id {record.id!r} was already used on line {seen[record.id]}")
            seen[record.id] = number
            yield record
        except ValueError as error:
            name = fields.get("id")
            known = isinstance(name, str) and _is_unicode(name)
            yield RecordError(number, str(error), name if known else None)


def check_fields(
    fields: dict, checks: Mapping[str, Check], required: tuple[str, ...]
) -> dict[str, Any]:
    """The checked values of the fields that are there; null is as good as absent.

    Raises:
        ValueError: all faults of the record at once: unknown, missing or wrong fields.
    """
    faults = [
        f"unknown field {name!r} (expected {', '.join(checks)})"
        for name in fields
        if name not in checks
    ]
    values = {}
    for name, check in checks.items():
        value = fields.get(name)
        if value is None:
            if name in required:
                faults.append(f"missing field {name!r}")
            continue
        try:
            values[name] = check(name, value)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("; ".join(faults))
    return values


def text(name: str, value: Any) -> str:
    """A text that is not empty, and that can be encoded."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: expected a non-empty text, got {value!r}")
    if not _is_unicode(value):
        raise ValueError(f"{name}: expected valid Unicode text, got {value!r}")
    return value


def identifier(name: str, value: Any) -> str:
    """A text that is not empty, or a whole number as one."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else text(name, value)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of texts that are not empty; a text alone is a list of one."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ValueError(f"{name}: expected a list of non-empty texts, got {value!r}")
    return tuple(text(name, item) for item in items)


def number(whole: bool, low: int | float, high: int | float | None = None) -> Check:
    """A check for numbers in low..high; `whole` ones stay int, others become float."""
    limit = f"{low}.." if high is None else f"{low}..{high}"
    what = "a whole number" if whole else "a number"
    high_bound = 1e300 if high is None else high  # leaves infinity out

    def check(name: str, value: Any) -> int | float:
        fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not fits or not low <= value <= high_bound:
            raise ValueError(f"{name}: expected {what} in {limit}, got {value!r}")
        return value if whole else float(value)

    return check


def _is_unicode(value: str) -> bool:
    """JSON may hold half of a surrogate pair, which no tokenizer, file or screen takes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parse_object(line: bytes | str, first: bool) -> dict:
    try:
        content = (
            line.decode("utf-8-sig" if first else "utf-8") if isinstance(line, bytes) else line
        )
        fields = json.loads(content)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not valid JSON: nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    return fields
