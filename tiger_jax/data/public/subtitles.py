"""SubRip (.srt) subtitles: what is said when."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tiger_jax.data.images import check_file
from tiger_jax.errors import UserError

_TIME = r"(\d+):(\d\d):(\d\d)[,.](\d{3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?$")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


class Cue(NamedTuple):
    """One caption, on screen from `start` up to `end` (seconds); `text` is without mark-up."""

    start: float
    end: float
    text: str


def read_subtitles(path: str | Path) -> tuple[Cue, ...]:
    """The captions of a file in its order; captions without text are left out.

    Raises:
        UserError: nothing there, not UTF-8, or a block that is no caption (named by its number).
    """
    path = Path(path)
    check_file(path, "a subtitle file")
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected subtitles in UTF-8, got {error}") from None
    blocks = [block for block in re.split(r"\n\s*\n", content) if block.strip()]
    cues = (_parse_block(block, f"{path}: block {n}") for n, block in enumerate(blocks, start=1))
    return tuple(cue for cue in cues if cue.text)


def subtitle_text(cues: Sequence[Cue], times: Sequence[float] | None = None) -> str:
    """One line a caption.

    Args:
        times: seconds; only captions on screen at one of them, each once. None takes all.
    """
    shown = [
        cue.text
        for cue in cues
        if times is None or any(cue.start <= time < cue.end for time in times)
    ]
    return "\n".join(shown)


def _parse_block(block: str, place: str) -> Cue:
    lines = block.strip("\n").split("\n")
    if lines[0].strip().isdigit():
        lines = lines[1:]
    match = _TIMES.match(lines[0]) if lines else None
    if match is None:
        found = lines[0][:60] if lines else ""
        raise UserError(f"{place}: expected HH:MM:SS,mmm --> HH:MM:SS,mmm, got {found!r}")
    start, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
    if end < start:
        raise UserError(f"{place}: expected an end after the start, got {lines[0].strip()!r}")
    text = " ".join(_TAG.sub("", line).strip() for line in lines[1:])
    return Cue(start, end, " ".join(text.split()))


def _seconds(parts: Sequence[str]) -> float:
    hours, minutes, seconds, thousandths = map(int, parts)
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000
