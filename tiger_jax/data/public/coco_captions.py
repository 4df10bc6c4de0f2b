"""COCO captions. A record is a picture with all its captions, and no question.

Official:  annotations/captions_{train,val}{2014,2017}.json, pictures in {split}{year}/
Karpathy:  dataset_coco.json; its test split lies inside val2014
Hugging Face: lmms-lab/COCO-Caption2017 (a row is a picture), HuggingFaceM4/COCO (a row is a
sentence, so that each picture comes about five times; Karpathy's splits)

The year stands in every uid, because the pictures of 2014 and 2017 have the same ids:
"coco_captions/val/2017-397133/0".
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tiger_jax.data.public.coco_records import caption_record, karpathy_captions
from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import (
    base_of,
    check_file_split,
    find_file,
    find_folder,
    not_found,
    picture_at,
)
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    columns_of,
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array
from tiger_jax.errors import UserError

_NAME = "coco_captions"
SPLITS = ("train", "val", "test")
_YEARS = ("2017", "2014")
_KARPATHY = "dataset_coco.json"


def read(
    root: Path, split: str, year: str | None = None, karpathy: bool | None = None,
    images: str | os.PathLike | None = None,
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Records and faults of one split.

    Args:
        year: of the captions; None takes 2017's where both are there. Karpathy's are of 2014.
        karpathy: Karpathy's splits (train includes restval). None takes them for "test", which
            has no public captions else, and for the others only where nothing else is there.
        images: the folder of the pictures, or of the folders train2014/, val2017/, ...

    Raises:
        UserError: no captions at `root`.
    """
    if year not in (None, *_YEARS):
        raise UserError(f"{_NAME}: year: expected {' or '.join(_YEARS)}, got {year!r}")
    if karpathy and year == "2017":
        raise UserError(f"{_NAME}: year: expected 2014 for Karpathy's splits, got 2017")
    official = _official_file(root, split, year)
    listed = _karpathy_file(root) if year != "2017" else None
    if listed and (karpathy or (karpathy is None and (split == "test" or official is None))):
        return _karpathy_records(listed, split, images)
    if official and not karpathy:
        return _official_records(official, split, year, images)
    shards = find_shards(root, split)
    if not shards:
        names = (f"annotations/captions_{split}{year or _YEARS[0]}.json", _KARPATHY,
                 f"{split}-00000-of-*.parquet")  # fmt: skip
        raise not_found(root, "COCO captions", names, splits_of(root))
    by_sentence = "sentences" in columns_of(shards[0])
    if karpathy not in (None, by_sentence) or (by_sentence and year == "2017"):
        wanted = "Karpathy's" if karpathy else f"the official {year or ''}".strip()
        there = "Karpathy's" if by_sentence else "official ones"
        raise UserError(f"{root}: expected {wanted} captions, {shards[0].name} holds {there}")
    return (
        _sentence_records(shards, split) if by_sentence else _parquet_records(shards, split, year)
    )


def _official_file(root: Path, split: str, year: str | None) -> Path | None:
    if root.is_file():
        if root.suffix != ".json" or root.name == _KARPATHY:
            return None
        check_file_split(root, split, SPLITS)
        return root
    years = _YEARS if year is None else (year,)
    names = [f"captions_{split}{y}.json" for y in years]
    return find_file(root, [f"{place}{name}" for name in names for place in ("annotations/", "")])


def _karpathy_file(root: Path) -> Path | None:
    if root.is_file():
        return root if root.name == _KARPATHY else None
    return find_file(root, [f"{place}{_KARPATHY}" for place in ("", "annotations/", "karpathy/")])


def _official_records(
    file: Path, split: str, year: str | None, images: str | os.PathLike | None
) -> Iterator[PublicRecord | Fault]:
    """Captions are gathered first (text only: about 100 MB for train2017), then pictures stream."""
    named = re.search(r"20(14|17)", file.name)
    year = year or (named.group() if named else None)
    if year is None or (named and named.group() != year):
        raise UserError(f"{file}: expected a file named after {year or 'its year: 2014 or 2017'}")
    base = base_of(file)
    base = base.parent if base.name == "annotations" else base
    folder = find_folder(images, base, ("images", ""))
    folder = find_folder(None, folder, (f"{split}{year}", ""))
    return _official_stream(file, split, year, folder)


def _official_stream(
    file: Path, split: str, year: str, folder: Path
) -> Iterator[PublicRecord | Fault]:
    captions: dict[int, list[str]] = {}
    for row in json_array(file, "annotations"):
        try:
            if isinstance(row, Fault):
                yield row
            else:
                captions.setdefault(row.integer("image_id"), []).append(row.text("caption"))
        except BadRecord as error:
            yield error.fault(row.place)

    def name(row: Row) -> str:
        return record_uid(_NAME, split, f"{year}-{row.integer('id')}")

    def build(row: Row, uid: str) -> PublicRecord:
        image_id, file_name = row.integer("id"), row.text("file_name")
        found = tuple(captions.pop(image_id, ()))
        return caption_record(
            row, uid, split, year, image_id, file_name, picture_at(folder, file_name), found
        )

    yield from build_records(json_array(file, "images"), name, build)
    for image_id, texts in captions.items():
        uid = record_uid(_NAME, split, f"{year}-{image_id}")
        message = f"{file.name}: expected an image {image_id}, which {len(texts)} captions name"
        yield Fault(uid, "dangling annotation", message)


def _karpathy_records(
    file: Path, split: str, images: str | os.PathLike | None
) -> Iterator[PublicRecord | Fault]:
    base = base_of(file)
    base = base.parent if base.name in ("annotations", "karpathy") else base
    folder = find_folder(images, base, ("images", ""))
    parts = ("train", "restval") if split == "train" else (split,)

    def name(row: Row) -> str:
        return record_uid(_NAME, split, f"2014-{row.integer('cocoid')}")

    def build(row: Row, uid: str) -> Iterator[PublicRecord]:
        if row.text("split") in parts:
            file_name = row.text("filename")
            place = folder / row.text("filepath")
            picture = picture_at(place if os.path.isdir(place) else folder, file_name)
            captions = karpathy_captions(row, row.items("sentences"))
            yield caption_record(
                row, uid, split, "2014", row.integer("cocoid"), file_name, picture, captions
            )

    return build_records(json_array(file, "images"), name, build)


def _parquet_records(
    shards: tuple[Path, ...], split: str, wanted: str | None
) -> Iterator[PublicRecord | Fault]:
    """A picture of another year than the one that is asked for is a fault."""

    def year(row: Row) -> str:
        return wanted or ("2014" if row.text("file_name").startswith("COCO_") else "2017")

    def name(row: Row) -> str:
        return record_uid(_NAME, split, f"{year(row)}-{row.integer('id')}")

    def build(row: Row, uid: str) -> PublicRecord:
        return caption_record(
            row, uid, split, year(row), row.integer("id"), row.text("file_name"),
            required_picture(row), row.texts("answer", ()), hidden=split == "test",
        )  # fmt: skip

    return build_records(ParquetRows(shards, ("id", "file_name", "image", "answer")), name, build)


def _sentence_records(shards: tuple[Path, ...], split: str) -> Iterator[PublicRecord | Fault]:
    """One record for all rows of a picture, at its first row; a first pass gathers the texts."""
    captions: dict[int, list[str]] = {}
    for row in ParquetRows(shards, ("imgid", "sentences")):
        try:
            texts = karpathy_captions(row, [row.value("sentences")])
            captions.setdefault(row.integer("imgid"), []).extend(texts)
        except BadRecord as error:
            yield error.fault(row.place)

    def name(row: Row) -> str:
        return record_uid(_NAME, split, f"2014-{row.integer('cocoid')}")

    def build(row: Row, uid: str) -> Iterator[PublicRecord]:
        found = captions.pop(row.integer("imgid", -1), None)
        if found is not None:
            yield caption_record(
                row, uid, split, "2014", row.integer("cocoid"), row.text("filename"),
                required_picture(row), tuple(found),
            )  # fmt: skip

    yield from build_records(
        ParquetRows(shards, ("image", "filename", "imgid", "cocoid")), name, build
    )


READER = Reader(_NAME, SPLITS, "val", read)
