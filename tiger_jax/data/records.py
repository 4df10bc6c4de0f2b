"""Reads decoding requests, one JSON object a line; a bad line spoils no neighbour."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tiger_jax.data.json_lines import (
    RecordError,
    check_fields,
    identifier,
    number,
    parse_json_lines,
    read_json_lines,
    text,
    texts,
)
from tiger_jax.data.videos import SAMPLING_CHECKS


@dataclass(frozen=True)
class Request:
    """One prompt with its pictures (paths as written); None leaves a setting to the run."""

    id: str
    prompt: str
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    fps: float | None = None
    """Pictures of a second of its videos that are read."""
    max_frames: int | None = None
    """Most pictures of one of its videos that are read."""


_CHECKS = {
    "id": identifier,
    "prompt": text,
    "images": texts,
    "videos": texts,
    "max_new_tokens": number(whole=True, low=1),
    "temperature": number(whole=False, low=0),
    "top_p": number(whole=False, low=0, high=1),
    "top_k": number(whole=True, low=0),
    "seed": number(whole=True, low=0, high=2**32 - 1),
    "stop": texts,
    "fps": SAMPLING_CHECKS["fps"],
    "max_frames": SAMPLING_CHECKS["max_frames"],
}


def read_requests(path: str | os.PathLike) -> Iterator[Request | RecordError]:
    """Requests of a JSONL file in order. Raises UserError only if the file cannot be read."""
    return read_json_lines(path, "requests", _request)


def parse_requests(lines: Iterable[bytes | str]) -> Iterator[Request | RecordError]:
    """One Request or RecordError for each line that is not blank. A missing id becomes "line-N"."""
    return parse_json_lines(lines, _request)


def _request(fields: dict, default_id: str) -> Request:
    return Request(**{"id": default_id} | check_fields(fields, _CHECKS, required=("prompt",)))
