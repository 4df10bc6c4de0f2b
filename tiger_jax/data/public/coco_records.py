"""The record of one COCO picture with its captions, and the checks that keep the years apart."""

import re
from collections.abc import Sequence
from typing import Any

from tiger_jax.data.public.record import BadRecord, Picture, PublicRecord
from tiger_jax.data.public.rows import Row

_FILE_NAME = re.compile(r"(?:COCO_(?:train|val|test)(?P<year>2014)_)?(?P<id>\d{12})\.jpg")


def caption_record(
    row: Row, uid: str, split: str, year: str, image_id: int, file_name: str,
    picture: Picture, captions: tuple[str, ...], hidden: bool = False,
) -> PublicRecord:  # fmt: skip
    """The record of a picture. Its question is empty: a prompt asks for the caption.

    Args:
        hidden: the split has no public captions, so that none is no fault.

    Raises:
        BadRecord: no captions, or a file name of another year or another id.
    """
    _check_file_name(row, year, image_id, file_name)
    if not captions and not hidden:
        message = f"{row.place}: expected captions of image {image_id}, found none"
        raise BadRecord("missing captions", message)
    return PublicRecord(
        "coco_captions", split, uid, "", (picture,), answers=captions,
        ground_truth=captions[0] if captions else None,
        meta={"image_id": image_id, "file_name": file_name},
    )  # fmt: skip


def karpathy_captions(row: Row, sentences: Sequence[Any]) -> tuple[str, ...]:
    """The texts of Karpathy's sentences {raw, tokens, imgid, sentid}, or of plain texts.

    Raises:
        BadRecord: neither.
    """
    texts = [s.get("raw") if isinstance(s, dict) else s for s in sentences]
    if not all(isinstance(text, str) for text in texts):
        raise BadRecord("wrong type", f"{row.place}: sentences: expected texts at 'raw'")
    return tuple(texts)


def _check_file_name(row: Row, year: str, image_id: int, file_name: str) -> None:
    """2014: COCO_val2014_000000391895.jpg; 2017: 000000391895.jpg; the number is the id."""
    match = _FILE_NAME.fullmatch(file_name)
    if match is None or int(match["id"]) != image_id or (match["year"] or "2017") != year:
        message = f"{row.place}: expected the {year} file of image {image_id}, got {file_name!r}"
        raise BadRecord("wrong file name", message)
