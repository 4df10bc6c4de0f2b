"""ChartQA: questions about charts, by people ("human") and by a model ("augmented").

Original: {split}/{split}_human.json and {split}/{split}_augmented.json, pictures in {split}/png.
Hugging Face: HuggingFaceM4/ChartQA (label is a list, human_or_machine 0/1) and lmms-lab/ChartQA
(test only: answer, type "human_test"/"augmented_test").
No layout has ids, so a record is known by its place: "human-3" from 0, or its parquet row.
"""

import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import check_file_split, find_folder, not_found, picture_at
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    columns_of,
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array
from tiger_jax.errors import UserError

_NAME = "chartqa"
_PARTS = ("human", "augmented")
SPLITS = ("train", "val", "test")
_PLACES = ("", "{split}/", "ChartQA Dataset/{split}/")


def read(
    root: Path, split: str, images: str | os.PathLike | None = None
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Records and faults of one split; the human part first.

    Args:
        images: the folder that holds the charts; None takes png/ beside the JSON files.

    Raises:
        UserError: no file of ChartQA at `root`, or one part without the other.
    """
    if files := _original_files(root, split):
        parts = [_read_part(file, split, part, images) for part, file in files.items()]
        return chain.from_iterable(parts)
    shards = find_shards(root, split)
    if not shards:
        looked_for = (f"{split}/{split}_human.json", f"{split}-00000-of-*.parquet")
        raise not_found(root, "ChartQA", looked_for, splits_of(root))
    by_type = "type" in columns_of(shards[0])
    columns = ("type", "answer") if by_type else ("human_or_machine", "label")
    return build_records(
        ParquetRows(shards, ("image", "question" if by_type else "query", *columns)),
        lambda row: record_uid(_NAME, split, row.place),
        partial(_parquet_record, split=split),
    )


def _original_files(root: Path, split: str) -> dict[str, Path]:
    """Part -> its file; none where `root` does not hold this layout."""
    if root.is_file():
        part = next((part for part in _PARTS if part in root.name), None)
        if root.suffix != ".json" or part is None:
            return {}
        check_file_split(root, split, SPLITS)
        return {part: root}
    for place in _PLACES:
        folder = root / place.format(split=split)
        files = {part: folder / f"{split}_{part}.json" for part in _PARTS}
        there = [part for part, file in files.items() if file.is_file()]
        if len(there) == 1:
            missing = next(file.name for part, file in files.items() if part not in there)
            raise UserError(
                f"{folder}: expected both parts of ChartQA {split}, {missing} is not there "
                "(a file's own path reads it alone)"
            )
        if there:
            return files
    return {}


def _read_part(
    file: Path, split: str, part: str, images: str | os.PathLike | None
) -> Iterator[PublicRecord | Fault]:
    split_folder = file.parent
    beside = split_folder if (split_folder / "png").is_dir() else split_folder.parent
    folder = find_folder(images, beside, ("png", ""))

    def name(row: Row) -> str:
        number = int(row.place.rpartition(":")[2]) - 1
        return record_uid(_NAME, split, f"{part}-{number}")

    def build(row: Row, uid: str) -> PublicRecord:
        pictures = (picture_at(folder, row.text("imgname")),)
        return _record(row, uid, split, row.text("query"), pictures, part, (row.text("label"),))

    return build_records(json_array(file), name, build)


def _parquet_record(row: Row, uid: str, split: str) -> PublicRecord:
    picture = required_picture(row)
    if "type" in row.fields:
        part, question = row.text("type").split("_")[0], row.text("question")
        labels = (row.text("answer"),)
    else:
        part = {0: "human", 1: "augmented"}.get(row.integer("human_or_machine"), "")
        question, labels = row.text("query"), row.texts("label")
    return _record(row, uid, split, question, (picture,), part, labels)


def _record(
    row: Row, uid: str, split: str, question: str, pictures: tuple[Picture, ...],
    part: str, labels: tuple[str, ...],
) -> PublicRecord:  # fmt: skip
    if part not in _PARTS:
        raise BadRecord("wrong value", f"{row.place}: expected a human or augmented question")
    if not labels:
        raise BadRecord("missing field", f"{row.place}: label: expected an answer, found none")
    return PublicRecord(
        _NAME, split, uid, question, pictures,
        answers=labels, ground_truth=labels[0], meta={"part": part},
    )  # fmt: skip


READER = Reader(_NAME, SPLITS, "test", read)
