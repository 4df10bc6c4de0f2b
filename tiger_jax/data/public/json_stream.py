"""A JSON file too large for memory, one element at a time.

    chunk        [ {"id": 1, ...}, {"id": 2, ...}, {"id
    decoded        `-----1------'  `-----2------'  `-- incomplete: wait for the next chunk

`json.JSONDecoder.raw_decode` decodes the element at a position and says where it ends, at the speed
of `json.load`. It fails in the same way for an element that is wrong and for one that the chunk
cuts. The place of the failure tells them apart: a cut element fails at the end of what was read, or
in a text that has no end yet.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tiger_jax.errors import UserError

CHUNK = 2**20
"""Characters read at once."""
LONGEST = 64 * 2**20
"""Characters of one element; beyond it the file is taken for damaged."""
_TAIL = 16
"""Longer than any word of JSON that a chunk can cut ("-Infinity", an escape)."""
_SPACE = " \t\n\r"


class JsonStream:
    """Reads one value of an open file. Every fault is a UserError that names the file."""

    def __init__(self, file: TextIO, path: Path):
        self._file, self._path = file, path
        self._text, self._at, self._ended = "", 0, False
        self._count = 0
        self._decode = json.JSONDecoder().raw_decode

    def array(self, key: str | None = None) -> Iterator[Any]:
        """The elements of the array that the file is, or that its object holds at `key`."""
        if key is None:
            self._expect("[", "an array")
            yield from self._elements()
        else:
            found = False
            for name in self._keys():
                if name == key and self._peek() == "[":
                    found = True
                    self._at += 1
                    yield from self._elements()
                else:
                    self._skip()
            if not found:
                raise UserError(f"{self._path}: expected an array at {key!r}, found none")
        self._finish()

    def members(self) -> Iterator[tuple[str, Any]]:
        """(key, value) of the object that the file is."""
        for name in self._keys():
            yield name, self._value()
        self._finish()

    def _elements(self) -> Iterator[Any]:
        """Elements up to the "]" that closes their array."""
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            self._count += 1
            yield self._value()
            if self._comma_or("]"):
                return

    def _skip(self) -> None:
        """Steps over a value; an array, which may be most of the file, one element at a time."""
        if self._peek() == "[":
            self._at += 1
            for _ in self._elements():
                pass
        else:
            self._value()

    def _keys(self) -> Iterator[str]:
        """Keys of an object; whoever takes one reads its value before the next."""
        self._expect("{", "an object")
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            self._count += 1
            name = self._value()
            if not isinstance(name, str):
                raise self._wrong("a key in quotes")
            self._expect(":", "':'")
            yield name
            if self._comma_or("}"):
                return

    def _value(self) -> Any:
        """The value at the position, when all of it is there."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._is_cut(error):
                    raise self._not_json(error) from None
            except RecursionError:
                raise self._wrong("JSON", "nested too deep") from None
            except ValueError as error:  # a number with thousands of digits
                raise self._wrong("JSON", str(error)[:80]) from None
            else:
                # A number at the end of the chunk may go on in the next one.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._read()

    def _is_cut(self, error: json.JSONDecodeError) -> bool:
        unfinished = error.msg.startswith("Unterminated string")
        return unfinished or error.pos >= len(self._text) - _TAIL

    def _comma_or(self, end: str) -> bool:
        """Steps over the next sign; whether it was `end`."""
        sign = self._peek()
        if sign not in (",", end):
            raise self._wrong(f"',' or {end!r}")
        self._at += 1
        return sign == end

    def _expect(self, sign: str, what: str) -> None:
        if self._peek() != sign:
            raise self._wrong(what)
        self._at += 1

    def _peek(self) -> str:
        """The next sign that is no space; "" at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._read()

    def _finish(self) -> None:
        if self._peek():
            raise self._wrong("nothing more")

    def _read(self) -> None:
        """Adds a chunk, and at least as much as waits: a long element is not decoded too often."""
        waiting = self._text[self._at :]
        if len(waiting) > LONGEST:
            raise self._wrong(f"at most {LONGEST} characters")
        try:
            more = self._file.read(max(CHUNK, len(waiting)))
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise UserError(f"{self._path}: expected UTF-8, got byte {byte:#x}") from None
        except OSError as error:
            raise UserError(f"{self._path}: cannot be read ({error.strerror})") from None
        self._text, self._at, self._ended = waiting + more, 0, not more

    def _not_json(self, error: json.JSONDecodeError) -> UserError:
        at_end = error.pos >= len(self._text.rstrip()) or error.msg.startswith("Unterminated")
        return self._wrong("JSON", "the file ends too early" if at_end else error.msg)

    def _wrong(self, expected: str, reason: str = "") -> UserError:
        rest = self._text[self._at : self._at + 20]
        got = reason or (f"got {rest!r}" if rest else "the file ends too early")
        return UserError(f"{self._path}: element {self._count}: expected {expected}, {got}")
