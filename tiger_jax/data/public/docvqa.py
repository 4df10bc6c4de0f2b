"""DocVQA (single pages): the official JSON with page pictures, or parquet.

val_v1.0_withQT.json      {"data": [{questionId, question, image: "documents/X.png", answers}]}
val_v1.0.json             the older form, without question_types
spdocvqa_images/X.png     pages; older downloads: documents/X.png or val/documents/X.png
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

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
    find_shards,
    required_picture,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array

SPLITS = ("train", "val", "test")
_QUESTIONS = "spdocvqa_qas"
"""Folder of the JSON files in the download of 2024."""
_COLUMNS = ("image", "questionId", "question")
_HIDDEN = "test"


def read(root: Path, split: str) -> Iterator[PublicRecord | Fault]:
    """Questions with all their answers, which the test split hides; the gold is the first.

    Raises:
        UserError: nothing of DocVQA there.
    """
    config = root / "DocVQA"  # the repository holds InfographicVQA too
    if shards := find_shards(config if config.is_dir() else root, split):
        rows = ParquetRows(shards, _COLUMNS, ("answers", "question_types"))
        return _build(rows, split, required_picture)
    files = (f"{split}_v1.0_withQT.json", f"{split}_v1.0.json")
    names = [*files, *(f"{_QUESTIONS}/{name}" for name in files)]
    if (path := find_file(root, names)) is None:
        names = [*files, f"{split}-00000-of-*.parquet"]
        raise not_found(root, "DocVQA", names, splits_of(root))
    check_file_split(path, split, SPLITS)
    folder = _pages(path, split)
    return _build(json_array(path, "data"), split, lambda row: _page(row, folder))


def _build(
    rows: Iterable[Row | Fault], split: str, picture: Callable[[Row], Picture]
) -> Iterator[PublicRecord | Fault]:
    def name(row: Row) -> str:
        return record_uid("docvqa", split, row.identifier("questionId"))

    def build(row: Row, uid: str) -> PublicRecord:
        page, answers = picture(row), _answers(row, split)
        return PublicRecord(
            "docvqa", split, uid, row.text("question").strip(), (page,), answers=answers,
            ground_truth=answers[0] if answers else None,
            meta={"question_types": row.texts("question_types", ())},
        )  # fmt: skip

    return build_records(rows, name, build)


def _answers(row: Row, split: str) -> tuple[str, ...]:
    answers = row.texts("answers", ()) if split == _HIDDEN else row.texts("answers")
    if not answers and split != _HIDDEN:
        raise BadRecord("missing field", f"{row.place}: answers: expected some, got none")
    return answers


def _pages(path: Path, split: str) -> Path:
    base = base_of(path)
    if base.name == _QUESTIONS:
        base = base.parent
    return find_folder(None, base, ("spdocvqa_images", "documents", f"{split}/documents", "images"))


def _page(row: Row, folder: Path) -> Picture:
    """ "documents/X.png" is X.png of whichever folder the pages lie in."""
    return picture_at(folder, PurePosixPath(row.text("image")).name)


READER = Reader("docvqa", SPLITS, "val", read)
