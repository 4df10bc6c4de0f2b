"""TallyQA: "how many" questions, answered by a whole number.

Original: train.json and test.json, one array each, over COCO and Visual Genome pictures.
Hugging Face: the_cauldron's configuration "tallyqa" (train only): a row is a picture and several
questions with answers such as "4."; its ids, sources and simple/complex marks are lost.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import (
    base_of,
    check_file_split,
    find_file,
    find_folder,
    not_found,
    picture_at,
)
from tiger_jax.data.public.parquet_layout import ParquetRows, find_shards, pictures_of, splits_of
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array

_NAME = "tallyqa"
SPLITS = ("train", "test")


def read(
    root: Path, split: str, images: str | os.PathLike | None = None
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Records and faults of one split.

    Args:
        images: the folder that holds train2014/, VG_100K/, ...; None looks beside the JSON file.

    Raises:
        UserError: no file of TallyQA at `root`.
    """
    names = (f"{split}.json", f"{_NAME}/{split}.json")
    if file := find_file(root, names):
        check_file_split(file, split, SPLITS)
        folder = find_folder(images, base_of(root), ("images", ""))
        return build_records(
            json_array(file),
            lambda row: record_uid(_NAME, split, row.identifier("question_id")),
            partial(_original_record, split=split, folder=folder),
        )
    shards = find_shards(root, split)
    if not shards:
        raise not_found(root, "TallyQA", (*names, f"{split}-00000-of-*.parquet"), splits_of(root))
    return build_records(
        ParquetRows(shards, ("images", "texts")),
        lambda row: record_uid(_NAME, split, row.place),
        partial(_cauldron_records, split=split),
    )


def _original_record(row: Row, uid: str, split: str, folder: Path) -> PublicRecord:
    image = row.text("image")
    count = _count(row, row.integer("answer"))
    meta = {
        "simple": row.boolean("issimple", None),
        "data_source": row.text("data_source", None),
        "image_id": row.integer("image_id", None),
        "image": image,
    }
    return PublicRecord(
        _NAME, split, uid, row.text("question"), (picture_at(folder, image),),
        answers=(count,), ground_truth=count, meta=meta,
    )  # fmt: skip


def _cauldron_records(row: Row, uid: str, split: str) -> Iterator[PublicRecord | Fault]:
    pictures = pictures_of(row, "images")
    for turn, fields in enumerate(row.items("texts")):
        turn_uid = record_uid(_NAME, split, row.place, turn)
        try:
            if not isinstance(fields, dict):
                raise BadRecord("wrong type", f"{row.place}: texts: expected objects")
            text = Row(f"{row.place}, turn {turn}", fields)
            yield _cauldron_record(text, turn_uid, split, pictures)
        except BadRecord as error:
            yield error.fault(turn_uid)


def _cauldron_record(
    text: Row, uid: str, split: str, pictures: tuple[Picture, ...]
) -> PublicRecord:
    # The first line is the question, what follows a request such as "Give a very brief answer.".
    question = text.text("user").strip().split("\n")[0].strip()
    answer = text.text("assistant").strip().removesuffix(".")
    if not answer.isdecimal():
        message = f"{text.place}: assistant: expected a whole number, got {answer!r}"
        raise BadRecord("wrong type", message)
    count = _count(text, int(answer))
    meta = {
        "simple": None,
        "data_source": text.text("source", None),
        "image_id": None,
        "image": None,
    }
    return PublicRecord(
        _NAME, split, uid, question, pictures, answers=(count,), ground_truth=count, meta=meta
    )


def _count(row: Row, answer: int) -> str:
    """0 is a count like any other: questions about absent things are intended."""
    if answer < 0:
        raise BadRecord("wrong value", f"{row.place}: answer: expected 0 or more, got {answer}")
    return str(answer)


READER = Reader(_NAME, SPLITS, "test", read)
