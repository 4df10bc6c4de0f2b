"""MMBench: multiple choice, asked once for each rotation of its options.

Original: MMBench_{DEV,TEST}_{EN,CN}[_V11].tsv, pictures as base64 in column `image`.
Hugging Face: lmms-lab/MMBench, folders en/ and cn/.

The index of a rotated row is base + k * 1,000,000: options rotated left by k, the same picture.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.golds import gold_letter, known_golds
from tiger_jax.data.public.layout import check_file_split, not_found
from tiger_jax.data.public.mmbench_pictures import TSV_COLUMNS, PictureCells
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, tsv_rows
from tiger_jax.errors import UserError

_NAME = "mmbench"
SPLITS = ("dev", "test")
ROTATION = 1_000_000
"""Distance of the indices of a question's rotations."""
_LETTERS = "ABCDE"
_NO_TEXT = "nan"
"""How the Hugging Face copy, and pandas, write an empty cell."""
_PARQUET_COLUMNS = ("index", "question", "A", "B", "image")
_PARQUET_OPTIONAL = ("C", "D", "E", "answer", "hint", "category", "L2-category", "l2-category")


def read(
    root: Path, split: str, circular: bool = False, language: str = "en"
) -> Iterator[PublicRecord | Fault]:
    """Records and faults of one split, in the file's order.

    Args:
        circular: also the rotations that the file lacks, each right after its base question.
        language: "en" or "cn"; a file's own path overrides it.

    Raises:
        UserError: no file of MMBench at `root`, or several that could be meant.
    """
    if language not in ("en", "cn"):
        raise UserError(f"{_NAME} language: expected en or cn, got {language!r}")
    if file := _tsv_file(root, split, language):
        check_file_split(file, split, SPLITS)
        return _tsv_records(file, split, circular)
    shards = _shards(root, split, language)
    if not shards:
        names = (f"MMBench_{split}_{language}".upper() + ".tsv", f"{language}/{split}-*.parquet")
        raise not_found(root, "MMBench", names, splits_of(root))
    return _parquet_records(shards, split, circular)


def _tsv_file(root: Path, split: str, language: str) -> Path | None:
    """The official file, else its second edition, else the only one that is named like them."""
    if root.is_file():
        return root if root.suffix == ".tsv" else None
    stem = f"MMBench_{split}_{language}".lower()
    found = {
        path.name.lower(): path
        for path in sorted(root.glob("*.tsv"))
        if path.name.lower().startswith(stem)
    }
    for name in (f"{stem}.tsv", f"{stem}_v11.tsv"):
        if name in found:
            return found[name]
    if len(found) > 1:
        names = ", ".join(path.name for path in found.values())
        raise UserError(f"{root}: expected one file {stem}*.tsv, found {names}: name one")
    return next(iter(found.values()), None)


def _shards(root: Path, split: str, language: str) -> tuple[Path, ...]:
    folder = root / language
    return find_shards(folder if folder.is_dir() else root, split)


def _tsv_records(file: Path, split: str, circular: bool) -> Iterator[PublicRecord | Fault]:
    pictures = PictureCells(file)
    made = partial(_missing_rotations, known=pictures.indices) if circular else None

    def picture(row: Row, index: int) -> Picture:
        cell = pictures.cell(row, index)
        try:
            return Picture(data=base64.b64decode(cell, validate=True))
        except ValueError as error:  # binascii.Error, or signs that are no ASCII
            message = f"{row.place}: image: expected base64, got {error}"
            raise BadRecord("damaged image", message) from None

    yield from _records(tsv_rows(file, TSV_COLUMNS), split, picture, made, absent=("",))


def _parquet_records(
    shards: tuple[Path, ...], split: str, circular: bool
) -> Iterator[PublicRecord | Fault]:
    made = None
    if circular:
        known = {row.fields["index"] for row in ParquetRows(shards, ("index",))}
        made = partial(_missing_rotations, known=known)

    def picture(row: Row, index: int) -> Picture:
        return required_picture(row)

    rows = ParquetRows(shards, _PARQUET_COLUMNS, _PARQUET_OPTIONAL)
    yield from _records(rows, split, picture, made, absent=("", _NO_TEXT))


def _records(
    rows: Iterable[Row | Fault], split: str, picture: Callable[[Row, int], Picture],
    made: Callable[[PublicRecord], Iterator[PublicRecord]] | None, absent: tuple[str, ...],
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """
    Args:
        made: base record -> further rotations of it; None makes none.
        absent: texts that stand for no option.
    """

    def build(row: Row, uid: str) -> Iterator[PublicRecord]:
        index = _index(row)
        image = picture(row, index)
        record = _record(row, uid, split, index, image, absent)
        yield record
        if made is not None and index < ROTATION:
            yield from made(record)

    def name(row: Row) -> str:
        return record_uid(_NAME, split, str(_index(row)))

    return build_records(rows, name, build)


def _index(row: Row) -> int:
    index = row.integer("index", from_text=True)
    if index < 0:
        raise BadRecord("wrong value", f"{row.place}: index: expected 0 or more, got {index}")
    return index


def _record(
    row: Row, uid: str, split: str, index: int, picture: Picture, absent: tuple[str, ...]
) -> PublicRecord:
    choices = _choices(row, absent)
    gold = gold_letter(row, "answer", len(choices))
    meta = {
        "index": index,
        "group": index % ROTATION,
        "rotation": index // ROTATION,
        "hint": _text_or_none(row, "hint"),
        "category": _text_or_none(row, "category"),
        "l2_category": _text_or_none(row, "l2-category") or _text_or_none(row, "L2-category"),
    }
    return PublicRecord(
        _NAME, split, uid, row.text("question"), (picture,),
        choices=choices, answers=known_golds(gold), ground_truth=gold, meta=meta,
    )  # fmt: skip


def _choices(row: Row, absent: tuple[str, ...]) -> tuple[str, ...]:
    """The options from A up to the last one; "None" and "NA" are options like any other."""
    cells = [row.text(letter, "") for letter in _LETTERS]
    there = [cell not in absent for cell in cells]
    count = sum(there)
    if count < 2 or not all(there[:count]):
        letters = [letter for letter, found in zip(_LETTERS, there, strict=True) if found]
        got = ", ".join(letters) or "none"
        message = f"{row.place}: expected options from A on, two or more, got {got}"
        raise BadRecord("wrong value", message)
    return tuple(cells[:count])


def _text_or_none(row: Row, name: str) -> str | None:
    """The text of a cell; a hint or a category is never the word "nan"."""
    text = row.text(name, "")
    return None if text in ("", _NO_TEXT) else text


def rotated(record: PublicRecord, k: int) -> PublicRecord:
    """The base question with its options rotated left by k: option k becomes A."""
    choices = record.choices
    letter = record.ground_truth
    if letter is not None:
        letter = chr(ord("A") + (ord(letter) - ord("A") - k) % len(choices))
    index = record.meta["group"] + k * ROTATION
    meta: dict[str, Any] = {**record.meta, "index": index, "rotation": k}
    return replace(
        record,
        uid=record_uid(record.source, record.split, str(index)),
        choices=choices[k:] + choices[:k],
        answers=known_golds(letter),
        ground_truth=letter,
        meta=meta,
    )


def _missing_rotations(record: PublicRecord, known: set[int]) -> Iterator[PublicRecord]:
    group = record.meta["group"]
    for k in range(1, len(record.choices)):
        if group + k * ROTATION not in known:
            yield rotated(record, k)


READER = Reader(_NAME, SPLITS, "dev", read)
