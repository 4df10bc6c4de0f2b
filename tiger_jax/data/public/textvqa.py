"""TextVQA: the official JSON with folders of pictures, LLaVA's question file, or parquet.

TextVQA_0.5.1_val.json             {"data": [{question, image_id, answers[10], question_id}]}
train_images/ID.jpg                pictures of train and val
test_images/ID.jpg
llava_textvqa_val_v051_ocr.jsonl   questions with OCR tokens, no answers; ids repeat
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import (
    Repeats,
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
from tiger_jax.data.public.prompt_styles import SINGLE_WORD
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array, json_lines
from tiger_jax.errors import UserError

SPLITS = ("train", "val", "test")
LLAVA_FILE = "llava_textvqa_val_v051_ocr.jsonl"
OCR_LINE = "\nReference OCR token:"
_COLUMNS = ("image", "image_id", "question", "question_id")
_HIDDEN = "test"
Tokens = Callable[[str, str], tuple[str, ...] | None]
"""(image_id, question) -> OCR tokens; None where they are not known."""


def read(
    root: Path, split: str, ocr: str | os.PathLike | None = None
) -> Iterator[PublicRecord | Fault]:
    """Questions with their ten answers, which the test split hides.

    The gold `ground_truth` is the most frequent answer, the first of several.

    Args:
        ocr: file with OCR tokens for the official layout: LLaVA's question file, or
            TextVQA_Rosetta_OCR_v0.2_SPLIT.json. The parquet layout has its own.

    Raises:
        UserError: nothing of TextVQA there.
    """
    if shards := find_shards(root, split):
        rows = ParquetRows(shards, _COLUMNS, ("answers", "ocr_tokens"))
        return _build(rows, split, required_picture, None)
    names = (f"TextVQA_0.5.1_{split}.json",)
    if path := find_file(root, names):
        check_file_split(path, split, SPLITS)
        folder = _pictures(base_of(path), split)
        tokens = _read_tokens(Path(ocr)) if ocr is not None else None
        return _build(
            json_array(path, "data"), split,
            lambda row: picture_at(folder, f"{row.text('image_id')}.jpg"), tokens,
        )  # fmt: skip
    if split == "val" and (path := find_file(root, (LLAVA_FILE,), ".jsonl")):
        return _read_llava(path, split)
    names = (*names, LLAVA_FILE, f"{split}-00000-of-*.parquet")
    raise not_found(root, "TextVQA", names, splits_of(root))


def _build(rows, split: str, picture: Callable, tokens: Tokens | None) -> Iterator:
    def name(row: Row) -> str:
        return record_uid("textvqa", split, row.identifier("question_id"))

    def build(row: Row, uid: str) -> PublicRecord:
        question, image_id = row.text("question").strip(), row.text("image_id")
        shown, answers = picture(row), _answers(row, split)
        known = row.texts("ocr_tokens", None)
        if known is None and tokens is not None:
            known = tokens(image_id, question)
        return PublicRecord(
            "textvqa", split, uid, question, (shown,), answers=answers,
            ground_truth=most_frequent(answers),
            meta={
                "question_id": row.value("question_id"), "image_id": image_id, "ocr_tokens": known,
            },
        )  # fmt: skip

    return build_records(rows, name, build)


def _answers(row: Row, split: str) -> tuple[str, ...]:
    answers = row.texts("answers", ()) if split == _HIDDEN else row.texts("answers")
    if any(answer.strip() for answer in answers):
        return answers
    if split != _HIDDEN:
        raise BadRecord("missing field", f"{row.place}: answers: expected ten, got none")
    return ()


def most_frequent(answers: tuple[str, ...]) -> str | None:
    """The answer that most people gave, the first of several; None of none."""
    counts = Counter(answer.strip() for answer in answers)
    return counts.most_common(1)[0][0] if counts else None


def _pictures(base: Path, split: str) -> Path:
    """train_val_images.zip holds one folder, train_images, for both splits."""
    folder = "test_images" if split == "test" else "train_images"
    return find_folder(None, base, (folder, f"train_val_images/{folder}", f"images/{folder}"))


def _read_llava(path: Path, split: str) -> Iterator[PublicRecord | Fault]:
    """LLaVA's question file alone. Its question_id is the picture's: the second is "ID#2"."""
    folder, repeats = _pictures(base_of(path), split), Repeats()

    def name(row: Row) -> str:
        return record_uid("textvqa", split, repeats.name(row.identifier("question_id")))

    def build(row: Row, uid: str) -> PublicRecord:
        question, tokens = split_ocr(row.text("text"))
        image = row.text("image")
        meta = {"question_id": None, "image_id": Path(image).stem, "ocr_tokens": tokens}
        return PublicRecord(
            "textvqa", split, uid, question, (picture_at(folder, image),), meta=meta
        )

    return build_records(json_lines(path), name, build)


def split_ocr(text: str) -> tuple[str, tuple[str, ...] | None]:
    """(question, OCR tokens) of LLaVA's prompt; no tokens where the line is empty, None where
    there is no such line. A token with a comma in it cannot be told from two."""
    question, line, tokens = text.removesuffix(SINGLE_WORD).partition(OCR_LINE)
    if not line:
        return question.strip(), None
    return question.strip(), tuple(tokens.strip().split(", ")) if tokens.strip() else ()


def _read_tokens(path: Path) -> Tokens:
    """The tokens of an OCR file. Only these stay in memory: boxes are most of Rosetta's file.

    Raises:
        UserError: neither of the two files, or a record of it is damaged.
    """
    is_llava = path.suffix == ".jsonl"
    by_key: dict[str | tuple[str, str], tuple[str, ...] | None] = {}
    for row in json_lines(path) if is_llava else json_array(path, "data"):
        if isinstance(row, Fault):
            raise UserError(f"{path}: {row.message}")
        try:
            if is_llava:
                question, tokens = split_ocr(row.text("text"))
                by_key[Path(row.text("image")).stem, question.lower()] = tokens
            else:
                by_key[row.text("image_id")] = row.texts("ocr_tokens")
        except BadRecord as error:
            raise UserError(f"{path}: {error}") from None
    if is_llava:
        return lambda image_id, question: by_key.get((image_id, question.lower()))
    return lambda image_id, question: by_key.get(image_id)


READER = Reader("textvqa", SPLITS, "val", read)
