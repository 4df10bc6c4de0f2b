"""MuirBench: questions over several pictures, some of which have no right option.

One layout: MUIRBENCH/MUIRBENCH, data/test-*.parquet. Question and options hold "<image>" where a
picture goes, in order, and an option may be nothing but a picture.
"""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.golds import gold_letter, known_golds
from tiger_jax.data.public.layout import not_found
from tiger_jax.data.public.parquet_layout import ParquetRows, find_shards, pictures_of, splits_of
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records

_NAME = "muirbench"
_MARK = "<image>"
_COLUMNS = ("idx", "question", "options", "answer", "image_list")
_OPTIONAL = ("task", "image_relation", "image_type", "counterpart_idx")
_log = logging.getLogger(__name__)


def read(root: Path, split: str) -> Iterator[PublicRecord | Fault]:
    """Records and faults. meta["marks"] is "placed", or "moved" where the number of marks is not
    that of the pictures: then all pictures go first, and a line is logged.

    Raises:
        UserError: no file of MuirBench at `root`.
    """
    shards = find_shards(root, split)
    if not shards:
        raise not_found(root, "MuirBench", (f"{split}-00000-of-*.parquet",), splits_of(root))
    return build_records(
        ParquetRows(shards, _COLUMNS, _OPTIONAL),
        lambda row: record_uid(_NAME, split, row.identifier("idx")),
        partial(_record, split=split),
    )


def _record(row: Row, uid: str, split: str) -> PublicRecord:
    question, choices = row.text("question"), row.texts("options")
    if len(choices) < 2:
        message = f"{row.place}: options: expected two or more, got {len(choices)}"
        raise BadRecord("wrong value", message)
    pictures = pictures_of(row, "image_list")
    if not pictures:
        raise BadRecord("missing image", f"{row.place}: image_list: expected pictures, got none")
    gold = gold_letter(row, "answer", len(choices))
    meta = {
        "task": row.text("task", None),
        "image_relation": row.text("image_relation", None),
        "image_type": row.text("image_type", None),
        "counterpart": _counterpart(row),
        "marks": _marks(uid, question, choices, len(pictures)),
    }
    return PublicRecord(
        _NAME, split, uid, question, pictures,
        choices=choices, answers=known_golds(gold), ground_truth=gold, meta=meta,
    )  # fmt: skip


def _counterpart(row: Row) -> str | None:
    value = row.value("counterpart_idx", "")
    return None if value == "" else row.identifier("counterpart_idx")


def _marks(uid: str, question: str, choices: tuple[str, ...], n_pictures: int) -> str:
    count = sum(text.count(_MARK) for text in (question, *choices))
    if count == n_pictures:
        return "placed"
    _log.warning("%s: %d %s marks for %d pictures: all go first", uid, count, _MARK, n_pictures)
    return "moved"


READER = Reader(_NAME, ("test",), "test", read)
