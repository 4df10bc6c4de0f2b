"""Rows of JSON, JSON Lines and TSV files, one in memory at a time, and their fields checked.

A JSON array may be a gigabyte (mix665k): `json_array` decodes one element after the other out of
chunks, so that memory holds one element and one chunk. A file that ends too early, or is no JSON,
ends the run with one line that names it; a bad line of JSON Lines or TSV is a fault of its own,
because the next line can still be read.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiger_jax.data.public.json_stream import JsonStream
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord
from tiger_jax.errors import UserError

LONGEST_CELL = 256 * 2**20
"""Characters of one TSV cell: pictures stand there as base64."""
_WHOLE = re.compile(r"-?\d{1,18}")
_REQUIRED = object()


@dataclass(frozen=True)
class Row:
    """The fields of one record as its file holds them.

    Getters take null as absent, and raise BadRecord: "missing field" or "wrong type".
    """

    place: str
    """FILE:N of its element or line, from 1."""
    fields: Mapping[str, Any]

    def value(self, name: str, default: Any = _REQUIRED) -> Any:
        """The field as it is."""
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise BadRecord("missing field", f"{self.place}: expected field {name!r}, found none")
        return default

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A text; an empty one only where there is a default."""
        value = self.value(name, default)
        if value is default:
            return value
        self._check(isinstance(value, str), name, "a text", value)
        if default is _REQUIRED and not value.strip():
            raise BadRecord("missing field", f"{self.place}: {name}: expected a text, got none")
        return value

    def identifier(self, name: str) -> str:
        """A text that is not empty, or a whole number as one."""
        value = self.value(name)
        return str(value) if _is_whole(value) else self.text(name)

    def integer(self, name: str, default: Any = _REQUIRED, from_text: bool = False) -> Any:
        """A whole number; `from_text` where the file has nothing but texts (TSV)."""
        value = self.value(name, default)
        if value is default:
            return value
        if from_text and isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            return int(value)
        self._check(_is_whole(value), name, "a whole number", value)
        return value

    def boolean(self, name: str, default: Any = _REQUIRED) -> Any:
        """True or false."""
        value = self.value(name, default)
        if value is not default:
            self._check(isinstance(value, bool), name, "true or false", value)
        return value

    def items(self, name: str, default: Any = _REQUIRED) -> Any:
        """A list of anything."""
        value = self.value(name, default)
        if value is not default:
            self._check(isinstance(value, list), name, "a list", value)
        return value

    def texts(self, name: str, default: Any = _REQUIRED) -> Any:
        """A list of texts, as a tuple."""
        value = self.items(name, default)
        if value is default:
            return value
        self._check(all(isinstance(item, str) for item in value), name, "a list of texts", value)
        return tuple(value)

    def _check(self, fits: bool, name: str, expected: str, value: Any) -> None:
        if not fits:
            message = f"{self.place}: {name}: expected {expected}, got {_short(value)}"
            raise BadRecord("wrong type", message)


def build_records(
    rows: Iterable[Row | Fault],
    name: Callable[[Row], str],
    build: Callable[[Row, str], PublicRecord | Iterable[PublicRecord | Fault]],
) -> Iterator[PublicRecord | Fault]:
    """The records of rows; a row that raises BadRecord gives a fault, and the next one goes on.

    Args:
        name: row -> uid. Where it fails, the fault is known by the row's place.
        build: (row, uid) -> record, or several of one row.
    """
    for row in rows:
        if isinstance(row, Fault):
            yield row
            continue
        uid = row.place
        try:
            uid = name(row)
            built = build(row, uid)
            if isinstance(built, PublicRecord):
                yield built
            else:
                yield from built
        except BadRecord as error:
            yield error.fault(uid)


def json_array(path: Path, key: str | None = None) -> Iterator[Row | Fault]:
    """The objects of the array that a JSON file is, or that stands at `key` of its object.

    An element that is no object is a fault.

    Raises:
        UserError: no file, not UTF-8, not such a JSON file, or one that ends too early.
    """
    with _opened(path) as file:
        for number, value in enumerate(JsonStream(file, path).array(key), start=1):
            yield _row(f"{path.name}:{number}", value)


def json_members(path: Path) -> Iterator[tuple[str, Row | Fault]]:
    """(key, object) of a JSON file that is one object of objects, as ScienceQA's and MM-Vet's.

    Raises:
        UserError: as `json_array`.
    """
    with _opened(path) as file:
        for key, value in JsonStream(file, path).members():
            yield key, _row(f"{path.name}:{key}", value)


def read_json(path: Path) -> Any:
    """All of a small JSON file. Raises UserError as `json_array`."""
    with _opened(path) as file:
        try:
            return json.load(file)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: expected UTF-8, got byte {error.object[error.start]:#x}"
            ) from None
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: expected JSON, {error.msg} at line {error.lineno}") from None
        except (RecursionError, ValueError) as error:  # or a number with thousands of digits
            raise UserError(f"{path}: expected JSON, {_one_line(error)}") from None


def json_lines(path: Path) -> Iterator[Row | Fault]:
    """The objects of a JSON Lines file; a bad line is a fault, an empty one nothing.

    Raises:
        UserError: the file cannot be read.
    """
    with _opened(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                value = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                yield Fault(place, "not JSON", f"{place}: expected JSON, {_one_line(error)}")
                continue
            yield _row(place, value)


def tsv_rows(path: Path, required: Iterable[str] = ()) -> Iterator[Row | Fault]:
    """The rows of a TSV file with a header; every cell is a text, "None" and "NA" too.

    Args:
        required: columns that the header must have.

    Raises:
        UserError: no file, no such header, or quotes that do not close.
    """
    with _opened(path, newline="") as file:
        lines = csv.reader(file, delimiter="\t", strict=True)
        header = _cells(lines, path) or []
        missing = [name for name in required if name not in header]
        if missing:
            raise UserError(f"{path}: expected column {missing[0]!r}, found {header[:12]}")
        while (cells := _cells(lines, path)) is not None:
            place = f"{path.name}:{lines.line_num}"
            if not cells:  # an empty line
                continue
            if len(cells) != len(header):
                message = f"{place}: expected {len(header)} cells, got {len(cells)}"
                yield Fault(place, "wrong number of cells", message)
            else:
                yield Row(place, dict(zip(header, cells, strict=True)))


def _cells(lines: Iterator[list[str]], path: Path) -> list[str] | None:
    """The next row of a csv reader; None at the end."""
    # The limit belongs to the whole process, so it is ours for this row only.
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        return next(lines, None)
    except csv.Error as error:
        raise UserError(f"{path}: line {lines.line_num}: expected TSV, {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: expected UTF-8, got byte {error.object[error.start]:#x}"
        ) from None
    finally:
        csv.field_size_limit(before)


@contextmanager
def _opened(path: Path, mode: str = "r", newline: str | None = None) -> Iterator:
    """The open file. Raises UserError if that fails."""
    try:
        encoding = None if "b" in mode else "utf-8-sig"
        file = path.open(mode, encoding=encoding, newline=newline)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    with file:
        yield file


def _row(place: str, value: Any) -> Row | Fault:
    if isinstance(value, dict):
        return Row(place, value)
    return Fault(place, "wrong type", f"{place}: expected an object, got {_short(value)}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
