"""Reads decoding requests, one JSON object a line; a bad line spoils no neighbour."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tiger_jax.errors import UserError


@dataclass(frozen=True)
class Request:
    """One prompt with its pictures (paths as written); None leaves a setting to the run."""

    id: str
    prompt: str
    images: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordError:
    """Why line `line` (from 1) gives no request; `id` where it could be read."""

    line: int
    message: str
    id: str | None = None


_NUMBERS = {  # field -> (whole number, lowest allowed, highest allowed)
    "max_new_tokens": (True, 1, None),
    "temperature": (False, 0, None),
    "top_p": (False, 0, 1),
    "top_k": (True, 0, None),
    "seed": (True, 0, 2**32 - 1),
}
_FIELDS = tuple(field.name for field in fields(Request))


def read_requests(path: str | os.PathLike) -> Iterator[Request | RecordError]:
    """Requests of a JSONL file in order. Raises UserError only if the file cannot be read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a JSON Lines file of requests, found none there")
    with path.open("rb") as file:
        yield from parse_requests(file)


def parse_requests(lines: Iterable[bytes | str]) -> Iterator[Request | RecordError]:
    """One Request or RecordError for each line that is not blank. A missing id becomes "line-N"."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record: dict = {}
        try:
            record = _parse_object(line, first=number == 1)
            request = _request(record, default_id=f"line-{number}")
            if request.id in seen:
                raise ValueError(f"id {request.id!r} was already used on line {seen[request.id]}")
            seen[request.id] = number
            yield request
        except ValueError as error:
            name = record.get("id")
            yield RecordError(number, str(error), name if isinstance(name, str) else None)


def _parse_object(line: bytes | str, first: bool) -> dict:
    try:
        text = line.decode("utf-8-sig" if first else "utf-8") if isinstance(line, bytes) else line
        record = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not valid JSON: nested too deep") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {type(record).__name__}")
    return record


def _request(record: dict, default_id: str) -> Request:
    """Checks every field and reports all faults of the record at once."""
    faults = [
        f"unknown field {name!r} (expected {', '.join(_FIELDS)})"
        for name in record
        if name not in _FIELDS
    ]
    values = {"id": default_id}
    for name in _FIELDS:
        value = record.get(name)
        if value is None:
            if name == "prompt":
                faults.append("missing field 'prompt'")
            continue
        try:
            values[name] = _field(name, value)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("; ".join(faults))
    return Request(**values)


def _field(name: str, value):
    if name in _NUMBERS:
        return _number(name, value, *_NUMBERS[name])
    if name in ("images", "stop"):
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{name}: expected a list of non-empty texts, got {value!r}")
        return tuple(texts)
    if name == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: expected a non-empty text, got {value!r}")
    return value


def _number(name: str, value, whole: bool, low: int, high: int | None) -> int | float:
    kind = int if whole else (int, float)
    limit = f"{low}.." if high is None else f"{low}..{high}"
    fits = isinstance(value, kind) and not isinstance(value, bool)
    high_bound = 1e300 if high is None else high
    if not fits or not low <= value <= high_bound:
        what = "a whole number" if whole else "a number"
        raise ValueError(f"{name}: expected {what} in {limit}, got {value!r}")
    return value if whole else float(value)
