"""Video-MME: multiple choice over short, medium and long videos.

Hugging Face, which is the original: videomme/test-00000-of-00001.parquet, data/VIDEOID.mp4,
subtitle/VIDEOID.srt. Also the authors' results template: JSON that nests questions by video and has
trailing commas, so that no JSON reader takes it; it names a video by its video_id alone.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.golds import gold_letter, known_golds
from tiger_jax.data.public.layout import base_of, find_file, find_folder, not_found
from tiger_jax.data.public.parquet_layout import ParquetRows, find_shards, splits_of
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records
from tiger_jax.errors import UserError

_NAME = "video_mme"
_SPLIT = "test"
DURATIONS = ("short", "medium", "long")
SPLITS = (_SPLIT, *DURATIONS)
_VIDEO_ENDINGS = (".mp4", ".MP4", ".mkv", ".webm", ".mov")
_COLUMNS = ("video_id", "question_id", "duration", "question", "options", "answer")
_OPTIONAL = ("videoID", "domain", "sub_category", "task_type")
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[\]}])')
_LETTERED = re.compile(r"([A-Z])\. ?(.*)", re.DOTALL)


class _Media(NamedTuple):
    """Where videos lie, and subtitles (None where none are wanted)."""

    videos: Path
    subtitles: Path | None


def read(
    root: Path, split: str, videos: str | os.PathLike | None = None, subtitles: bool = False,
    subtitle_folder: str | os.PathLike | None = None,
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Records and faults of all questions, or of one duration ("short", "medium", "long").

    uids are those of split "test". A video that is not there is a fault, and so are subtitles that
    are wanted and not there: else a model would be scored on less than it was asked about.

    Args:
        videos: the folder of the videos; None takes data/ or videos/ beside the questions.
        subtitles: the records carry the path of their subtitles.
        subtitle_folder: None takes subtitle/ or subtitles/ beside the questions.

    Raises:
        UserError: no file of Video-MME at `root`.
    """
    template = find_file(root, ("output_test_template.json",))
    shards = () if template else find_shards(root, _SPLIT)
    if not template and not shards:
        names = (f"videomme/{_SPLIT}-00000-of-*.parquet", "output_test_template.json")
        raise not_found(root, "Video-MME", names, splits_of(root))
    base = base_of(root)
    base = base.parent if base.name == "videomme" else base
    media = _Media(
        find_folder(videos, base, ("data", "videos", "")),
        find_folder(subtitle_folder, base, ("subtitle", "subtitles", "")) if subtitles else None,
    )
    rows = _template_rows(template) if template else ParquetRows(shards, _COLUMNS, _OPTIONAL)
    return build_records(
        rows,
        lambda row: record_uid(_NAME, _SPLIT, row.identifier("question_id")),
        partial(_records, wanted=None if split == _SPLIT else split, media=media),
    )


def parse_with_trailing_commas(text: str) -> Any:
    """JSON in which a comma may stand before a closing bracket. Raises json.JSONDecodeError."""
    return json.loads(_COMMA.sub(lambda match: match.group(1) or "", text))


def _template_rows(file: Path) -> Iterator[Row | Fault]:
    """One row a question, with its video's fields; the file is small and read at once."""
    try:
        found = parse_with_trailing_commas(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: expected JSON, {' '.join(str(error).split())[:120]}") from None
    if not isinstance(found, list):
        raise UserError(f"{file}: expected an array of videos, got {type(found).__name__}")
    for number, video in enumerate(found, start=1):
        place = f"{file.name}:{number}"
        questions = video.get("questions") if isinstance(video, dict) else None
        if not isinstance(questions, list):
            yield Fault(place, "wrong type", f"{place}: expected a video with a list of questions")
            continue
        shared = {name: value for name, value in video.items() if name != "questions"}
        for question in questions:
            if isinstance(question, dict):
                yield Row(place, {**shared, **question})
            else:
                yield Fault(place, "wrong type", f"{place}: questions: expected objects")


def _records(
    row: Row, uid: str, wanted: str | None, media: _Media
) -> Iterator[PublicRecord]:  # fmt: skip
    duration = row.text("duration")
    if duration not in DURATIONS:
        message = f"{row.place}: duration: expected {', '.join(DURATIONS)}, got {duration!r}"
        raise BadRecord("wrong value", message)
    if wanted in (None, duration):
        yield _record(row, uid, duration, media)


def _record(row: Row, uid: str, duration: str, media: _Media) -> PublicRecord:
    choices = _choices(row)
    gold = gold_letter(row, "answer", len(choices))
    video_id = row.identifier("video_id")
    stem = row.text("videoID", None) or video_id
    video = _find(row, stem, media.videos, _VIDEO_ENDINGS, "video")
    subtitles = media.subtitles and _find(row, stem, media.subtitles, (".srt",), "subtitles")
    meta = {
        "video_id": video_id,
        "question_id": row.identifier("question_id"),
        "duration": duration,
        "domain": row.text("domain", None),
        "sub_category": row.text("sub_category", None),
        "task_type": row.text("task_type", None),
        "subtitles": subtitles,
    }
    return PublicRecord(
        _NAME, _SPLIT, uid, row.text("question"), video=video,
        choices=choices, answers=known_golds(gold), ground_truth=gold, meta=meta,
    )  # fmt: skip


def _choices(row: Row) -> tuple[str, ...]:
    """The options without the letters that the file writes before them ("A. A cat.")."""
    options = row.texts("options")
    matches = [_LETTERED.fullmatch(option) for option in options]
    letters = [match and match.group(1) for match in matches]
    if len(options) < 2 or letters != [chr(ord("A") + i) for i in range(len(options))]:
        message = f"{row.place}: options: expected 'A. ...', 'B. ...' and so on, got {options}"
        raise BadRecord("wrong value", message[:200])
    return tuple(match.group(2) for match in matches)


def _find(row: Row, stem: str, folder: Path, endings: tuple[str, ...], what: str) -> str:
    for ending in endings:
        path = os.path.join(folder, f"{stem}{ending}")
        if os.path.isfile(path):  # Path.is_file raises for a name that is too long
            return path
    message = f"{row.place}: expected {folder / stem}{endings[0]}, found none"
    raise BadRecord(f"missing {what}", message)


READER = Reader(_NAME, SPLITS, _SPLIT, read)
