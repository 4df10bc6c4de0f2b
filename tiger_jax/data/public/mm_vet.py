"""MM-Vet: open questions that need several abilities at once.

Original: mm-vet.json, one object of questions by id, with images/ (and bard_set.json, a list of
ids). Hugging Face: lmms-lab/MMVet and whyu/mm-vet; abilities are one text, "ocr,math".

A gold keeps the authors' marks: "-1<AND>-5" needs both parts, "3/4<OR>0.75" one of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import base_of, find_file, find_folder, not_found, picture_at
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    columns_of,
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_members, read_json
from tiger_jax.errors import UserError

_NAME = "mm_vet"
_FILES = ("mm-vet.json", "mm-vet/mm-vet.json")
_OR = "<OR>"


def read(
    root: Path, split: str, images: str | os.PathLike | None = None, bard_set: bool = False
) -> Iterator[PublicRecord | Fault]:
    """Records and faults.

    Args:
        images: the folder of the pictures; None takes images/ beside the JSON file.
        bard_set: only the ids that bard_set.json lists (original layout).

    Raises:
        UserError: no file of MM-Vet at `root`, or no list of the Bard set where it is asked for.
    """
    if file := find_file(root, _FILES):
        folder = find_folder(images, base_of(file), ("images", ""))
        wanted = _bard_ids(file.parent / "bard_set.json") if bard_set else None
        return _original_records(file, split, folder, wanted)
    if bard_set:
        raise UserError(f"{root}: expected {_FILES[0]} beside bard_set.json, found none")
    shards = find_shards(root, split)
    if not shards:
        raise not_found(root, "MM-Vet", (_FILES[0], f"{split}-00000-of-*.parquet"), splits_of(root))
    return _parquet_records(shards, split)


def _original_records(
    file: Path, split: str, folder: Path, wanted: frozenset[str] | None
) -> Iterator[PublicRecord | Fault]:
    """Also a fault for each wanted id that the file lacks."""
    found = set()
    for original, row in json_members(file):
        if wanted is not None and original not in wanted:
            continue
        found.add(original)
        yield from build_records(
            [row],
            lambda row, original=original: record_uid(_NAME, split, original),
            lambda row, uid, original=original: _original_record(row, uid, split, original, folder),
        )
    for original in sorted((wanted or frozenset()) - found):
        message = f"bard_set.json: expected ids of {file.name}, got {original}"
        yield Fault(record_uid(_NAME, split, original), "missing record", message)


def _original_record(row: Row, uid: str, split: str, original: str, folder: Path) -> PublicRecord:
    picture = picture_at(folder, row.text("imagename"))
    return _record(row, uid, split, original, picture, row.texts("capability"))


def _parquet_records(shards: tuple[Path, ...], split: str) -> Iterator[PublicRecord | Fault]:
    identifier = "question_id" if "question_id" in columns_of(shards[0]) else "id"

    def build(row: Row, uid: str) -> PublicRecord:
        picture = required_picture(row)
        value = row.value("capability")
        if isinstance(value, str):
            abilities = tuple(part.strip() for part in value.split(",") if part.strip())
        else:
            abilities = row.texts("capability")
        return _record(row, uid, split, row.identifier(identifier), picture, abilities)

    return build_records(
        ParquetRows(shards, (identifier, "image", "question", "answer", "capability")),
        lambda row: record_uid(_NAME, split, row.identifier(identifier)),
        build,
    )


def _record(
    row: Row, uid: str, split: str, original: str, picture: Picture, abilities: tuple[str, ...]
) -> PublicRecord:
    gold = row.text("answer")
    return PublicRecord(
        _NAME, split, uid, row.text("question"), (picture,),
        answers=tuple(gold.split(_OR)), ground_truth=gold,
        meta={"id": original, "capabilities": abilities},
    )  # fmt: skip


def _bard_ids(file: Path) -> frozenset[str]:
    ids = read_json(file)
    if not isinstance(ids, list) or not all(isinstance(item, str) for item in ids):
        raise UserError(f"{file}: expected a list of ids")
    return frozenset(ids)


READER = Reader(_NAME, ("test",), "test", read)
