"""LLaVA-1.5's training conversations: mix665k and LLaVA-Instruct-150K.

    llava_v1_5_mix665k.json     [{"id", "image": "coco/train2017/X.jpg", "conversations"}, ...]
    llava_instruct_150k.json    the same with bare file names: "X.jpg"
    coco/train2017/X.jpg        beside the file, in the folder above it, or below `images`

Ids repeat (one photo, several conversations): the second record of an id is "ID#2".
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import (
    Repeats,
    base_of,
    find_file,
    find_folder,
    not_found,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_array
from tiger_jax.errors import UserError

WHOLE = ("llava_v1_5_mix665k.json", "llava_instruct_150k.json")
PARTS = ("conversation_58k.json", "detail_23k.json", "complex_reasoning_77k.json")
TURNS = ("first", "all")
MARK = "<image>"
_BARE_FOLDERS = ("coco/train2017", "train2017", "images", "")
"""Where a file name without a folder may lie."""
_NUMBER = r"(?:[01]?\.\d+|[01])"
BOX = re.compile(rf"\[\s*{_NUMBER}(?:\s*,\s*{_NUMBER}){{3}}\s*\]")
"""Coordinates in a text: "[0.1, 0.25, 1.0, 0]"."""


def read(
    root: Path, split: str, turns: str = "first", drop_boxes: bool = True,
    images: str | os.PathLike | None = None,
) -> Iterator[PublicRecord | Fault]:  # fmt: skip
    """Conversations as questions with their answers; text-only ones have no pictures.

    `<image>` marks are taken out of the questions, since there is one picture and it goes first:
    where the mark is missing that inserts it. A number of marks that is not the number of pictures
    makes the record a fault ("mark count").

    Args:
        turns: "first": one question a conversation. "all": every one, with the earlier ones as
            (question, answer) pairs in meta["history"].
        drop_boxes: make questions with coordinates faults ("box"): these refer to the picture
            padded to a square, and not in all sources (LLaVA issues 606 and 822).
        images: folder of the pictures, where they do not lie beside the file or above it.

    Raises:
        UserError: no such file, a value that an option does not have, or no folder at `images`.
    """
    if turns not in TURNS:
        raise UserError(f"llava: turns: expected {' or '.join(TURNS)}, got {turns!r}")
    path = _find(root)
    folders = PictureFolders(path, None if images is None else find_folder(images, path, ("",)))
    repeats = Repeats()

    def name(row: Row) -> str:
        return record_uid("llava", split, repeats.name(row.identifier("id")))

    def build(row: Row, uid: str) -> Iterator[PublicRecord | Fault]:
        return _records(row, uid, split, folders, turns == "all", drop_boxes)

    return build_records(json_array(path), name, build)


def _find(root: Path) -> Path:
    """mix665k holds the others, and instruct-150k its three parts."""
    if path := find_file(root, WHOLE):
        return path
    parts = [root / name for name in PARTS if (root / name).is_file()]
    if len(parts) > 1:
        raise UserError(f"{root}: expected one file of conversations, found {len(parts)}: name one")
    if not parts:
        raise not_found(root, "LLaVA's conversations", (*WHOLE, *PARTS))
    return parts[0]


class PictureFolders:
    """Finds the folder of each set of pictures once, so that no picture costs a look-up."""

    def __init__(self, path: Path, images: Path | None):
        base = base_of(path)
        self._bases = [images] if images is not None else [base, base.parent]
        self._found: dict[str, Path] = {}

    def picture(self, name: str) -> Picture:
        """The picture that a record calls `name`."""
        first = PurePosixPath(name).parts[0] if "/" in name else ""
        if first not in self._found:
            self._found[first] = self._find(first)
        return Picture(str(self._found[first] / name))

    def _find(self, first: str) -> Path:
        """The folder in which a name that begins with folder `first` is looked up."""
        if first:
            return next(
                (base for base in self._bases if os.path.isdir(base / first)), self._bases[0]
            )
        for base in self._bases:
            if (folder := find_folder(None, base, _BARE_FOLDERS[:-1])).is_dir():
                return folder
        return self._bases[0]


def _records(
    row: Row, uid: str, split: str, folders: PictureFolders, every: bool, drop_boxes: bool
) -> Iterator[PublicRecord | Fault]:
    image = None if row.value("image", None) is None else row.text("image")
    pairs = _pairs(row)
    marks = sum(question.count(MARK) for question, _ in pairs)
    if (image is None and marks) or marks > 1:
        message = f"{row.place}: expected a {MARK} for each picture, got {marks} for "
        raise BadRecord("mark count", message + ("no picture" if image is None else "one picture"))
    pictures = () if image is None else (folders.picture(image),)
    folder = None if image is None else str(PurePosixPath(image).parent).removeprefix(".")
    base = uid.removesuffix("/0")
    history: list[tuple[str, str]] = []
    for turn, (question, answer) in enumerate(pairs if every else pairs[:1]):
        meta: dict[str, Any] = {"id": row.identifier("id"), "turn": turn, "image_folder": folder}
        if history:
            meta["history"] = tuple(history)
        asked = question.replace(MARK, "").strip()
        history.append((asked, answer))
        try:
            _check(row.place, turn, asked, answer, drop_boxes)
        except BadRecord as error:
            yield error.fault(f"{base}/{turn}")
            continue
        yield PublicRecord(
            "llava", split, f"{base}/{turn}", asked, pictures, answers=(answer,),
            ground_truth=answer, meta=meta,
        )  # fmt: skip


def _check(place: str, turn: int, question: str, answer: str, drop_boxes: bool) -> None:
    """Raises BadRecord for a question that must not be used."""
    for what, text in (("question", question), ("answer", answer)):
        if not text.strip():
            raise BadRecord("missing field", f"{place}: turn {turn}: expected a {what}, got none")
        if drop_boxes and (box := BOX.search(text)):
            raise BadRecord("box", f"{place}: turn {turn}: coordinates {box[0]} in its {what}")


def _pairs(row: Row) -> list[tuple[str, str]]:
    """(question, answer) of each turn. LLaVA's trainer too skips an answer that comes first, and
    has no use for a question without one."""
    spoken = [_spoken(row, place, item) for place, item in enumerate(row.items("conversations"))]
    if spoken and spoken[0][0] == "gpt":
        spoken = spoken[1:]
    for place, (speaker, _) in enumerate(spoken):
        if speaker != ("human", "gpt")[place % 2]:
            raise BadRecord("turn order", f"{row.place}: expected human and gpt in turn, "
                            f"got {speaker} twice")  # fmt: skip
    if len(spoken) < 2:
        message = f"{row.place}: conversations: expected a question and an answer, found none"
        raise BadRecord("missing field", message)
    texts = [text for _, text in spoken]
    return list(zip(texts[::2], texts[1::2], strict=False))


def _spoken(row: Row, place: int, item: Any) -> tuple[str, str]:
    if not isinstance(item, dict):
        message = f"{row.place}: conversations: expected objects, got {type(item).__name__}"
        raise BadRecord("wrong type", message)
    part = Row(f"{row.place}: conversations {place + 1}", item)
    speaker = part.text("from")
    if speaker not in ("human", "gpt"):
        raise BadRecord("wrong type", f"{part.place}: from: expected human or gpt, got {speaker!r}")
    text = part.value("value")
    if not isinstance(text, str):
        raise BadRecord("wrong type", f"{part.place}: value: expected a text, got {text!r}"[:200])
    return speaker, text


READER = Reader("llava", ("train",), "train", read)
