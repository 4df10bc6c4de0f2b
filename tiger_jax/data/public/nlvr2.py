"""NLVR2: is a sentence true of two pictures.

Original: JSON Lines in files named .json, {split}.json or data/{split}.json; the pictures of
"dev-850-2-0" (split-set-pair-sentence) are dev-850-2-img0.png and -img1.png, many of them JPEG.
Hugging Face: lmms-lab/NLVR2, columns left_image and right_image.

The pairs of one sentence are a group; consistency counts a group only if all its pairs are right.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.golds import known_golds
from tiger_jax.data.public.layout import base_of, find_file, find_folder, not_found, picture_at
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_lines
from tiger_jax.errors import UserError

_NAME = "nlvr2"
_PLAIN = ("train", "dev", "test1", "test2")
_HALVES = tuple(f"{half}_{name}" for half in ("balanced", "unbalanced") for name in _PLAIN[1:])
SPLITS = _PLAIN + _HALVES
_IDENTIFIER = re.compile(r"(?P<split>[a-z]+\d*)-(?P<set>\d+)-(?P<pair>\d+)-(?P<sentence>\d+)")
_HUB_NAMES = {"test1": "test_public", "test2": "test_unseen"}


def read(
    root: Path, split: str, images: str | os.PathLike | None = None
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Records and faults of one split, left picture first.

    Args:
        images: the folder of the pictures (for train: of its numbered folders). None looks for
            images/{split}, {split} and images beside the JSON file or its folder.

    Raises:
        UserError: no file of NLVR2 at `root`.
    """
    names = tuple(f"{place}{split}.json" for place in ("", "data/", "data/balanced/",
                                                       "data/unbalanced/"))  # fmt: skip
    if file := find_file(root, names):
        _check_name(file, split)
        folder = find_folder(images, base_of(root), _picture_folders(split))
        return build_records(
            json_lines(file),
            lambda row: record_uid(_NAME, split, row.identifier("identifier")),
            partial(_original_record, split=split, folder=folder),
        )
    shards = find_shards(root, split, _hub_name(split))
    if not shards:
        looked_for = (names[0], f"{_hub_name(split)}-00000-of-*.parquet")
        raise not_found(root, "NLVR2", looked_for, splits_of(root))
    columns = ("question_id", "question", "answer", "left_image", "right_image")
    return build_records(
        ParquetRows(shards, columns),
        lambda row: record_uid(_NAME, split, row.identifier("question_id")),
        partial(_parquet_record, split=split),
    )


def _check_name(file: Path, split: str) -> None:
    named = file.name.split(".")[0]
    if named in SPLITS and named != split:
        raise UserError(f"{file}: expected a file of split {split}, its name says {named}")


def _picture_folders(split: str) -> tuple[str, ...]:
    plain = split.rpartition("_")[2]
    return (f"images/{plain}", plain, "images", "")


def _hub_name(split: str) -> str:
    """ "balanced_test1" is "balanced_test_public" there."""
    half, between, plain = split.rpartition("_")
    return half + between + _HUB_NAMES.get(plain, plain)


def _original_record(row: Row, uid: str, split: str, folder: Path) -> PublicRecord:
    identifier = row.text("identifier")
    match = _IDENTIFIER.fullmatch(identifier)
    if match is None:
        message = f"{row.place}: identifier: expected split-set-pair-sentence, got {identifier!r}"
        raise BadRecord("wrong value", message)
    directory = row.value("directory", None)
    place = folder if directory is None else folder / str(directory)
    stem = identifier.rpartition("-")[0]
    pictures = tuple(picture_at(place, f"{stem}-img{side}.png") for side in (0, 1))
    return _record(row, uid, split, row.text("sentence"), pictures, identifier, "label")


def _parquet_record(row: Row, uid: str, split: str) -> PublicRecord:
    pictures = tuple(required_picture(row, f"{side}_image") for side in ("left", "right"))
    identifier = row.identifier("question_id")
    return _record(row, uid, split, row.text("question"), pictures, identifier, "answer")


def _record(
    row: Row, uid: str, split: str, sentence: str, pictures: tuple[Picture, ...],
    identifier: str, label: str,
) -> PublicRecord:  # fmt: skip
    truth = _truth(row, label)
    match = _IDENTIFIER.fullmatch(identifier)
    group = f"{match['split']}-{match['set']}-{match['sentence']}" if match else None
    return PublicRecord(
        _NAME, split, uid, sentence, pictures, answers=known_golds(truth), ground_truth=truth,
        meta={"identifier": identifier, "group": group},
    )  # fmt: skip


def _truth(row: Row, name: str) -> str | None:
    """ "True" or "False", also of a JSON boolean; None where the label is hidden."""
    value = row.value(name, None)
    if value is None:
        return None
    text = str(value).strip().capitalize()
    if not isinstance(value, str | bool) or text not in ("True", "False"):
        message = f"{row.place}: {name}: expected True or False, got {value!r}"
        raise BadRecord("wrong value", message)
    return text


READER = Reader(_NAME, SPLITS, "test1", read)
