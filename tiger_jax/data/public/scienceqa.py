"""ScienceQA: problems.json with folders of pictures, or parquet.

problems.json                   {PID: {question, choices, answer, hint, image, split, ...}}
pid_splits.json                 {"train": [PID, ...], "val", "test", "trainval", "minival", ...}
images/SPLIT/PID/image.png      only where a problem's `image` is not null
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiger_jax.data.public.dataset import Reader
from tiger_jax.data.public.layout import base_of, find_file, find_folder, not_found, picture_at
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    count_rows,
    find_shards,
    picture_of,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.rows import Row, build_records, json_members, read_json
from tiger_jax.errors import UserError

SPLITS = ("train", "val", "test", "trainval", "minitrain", "minival", "minitest")
LETTERS = "ABCDEFGHIJ"
_KINDS = ("task", "grade", "subject", "topic", "category", "skill")
_COLUMNS = ("question", "choices", "answer")
_PID = "pid"


def read(
    root: Path, split: str, pid_splits: str | os.PathLike | None = None
) -> Iterator[PublicRecord | Fault]:
    """Problems in the order of the files; those without a picture have none.

    Parquet has lost the problems' ids: there the record of row 5 (from 0) is "row5".

    Args:
        pid_splits: pid_splits.json, whose order is that of the parquet rows: gives them their ids
            back.

    Raises:
        UserError: nothing of ScienceQA there, or `pid_splits` does not fit the rows.
    """
    if shards := find_shards(root, split):
        pids = None if pid_splits is None else _fitting(Path(pid_splits), split, shards)
        rows = ParquetRows(shards, _COLUMNS, ("image", "hint", *_KINDS))
        return _build(_with_ids(rows, pids), split, None)
    names = ("problems.json", "data/scienceqa/problems.json", "scienceqa/problems.json")
    if (path := find_file(root, names)) is None:
        names = (*names, f"{split}-00000-of-*.parquet")
        raise not_found(root, "ScienceQA", names, splits_of(root))
    beside = path.with_name(path.name.replace("problems", "pid_splits"))
    if pid_splits is None and beside != path and beside.is_file():
        pid_splits = beside
    pids = None if pid_splits is None else _pids(Path(pid_splits), split)
    folder = find_folder(None, base_of(path), ("images", ""))
    return _build(_problems(path, split, pids), split, folder)


def _problems(path: Path, split: str, pids: list[str] | None) -> Iterator[Row | Fault]:
    """The problems of a split, and a fault for each id of the split that has none.

    Without pid_splits.json a problem's own `split` decides.
    """
    missing = None if pids is None else dict.fromkeys(pids)
    for pid, row in json_members(path):
        if missing is not None and pid not in missing:
            continue
        if missing is None and isinstance(row, Row) and row.fields.get("split") != split:
            continue
        if missing is not None:
            del missing[pid]
        yield row if isinstance(row, Fault) else replace(row, fields={**row.fields, _PID: pid})
    for pid in missing or ():
        message = f"{path.name}: expected problem {pid} of split {split}, found none"
        yield Fault(record_uid("scienceqa", split, pid), "missing record", message)


def _with_ids(rows: ParquetRows, pids: list[str] | None) -> Iterator[Row]:
    for number, row in enumerate(rows):
        known = {_PID: pids[number]} if pids else {"row": f"row{number}"}
        yield replace(row, fields={**row.fields, **known})


def _build(rows: Iterator[Row | Fault], split: str, folder: Path | None) -> Iterator:
    """Args: folder: of the pictures; None where the rows hold them."""

    def name(row: Row) -> str:
        own = row.text(_PID) if _PID in row.fields else row.fields["row"]
        return record_uid("scienceqa", split, own)

    def build(row: Row, uid: str) -> PublicRecord:
        choices = row.texts("choices")
        letter = _letter(row, len(choices))
        picture = picture_of(row, "image") if folder is None else _on_disk(row, split, folder)
        meta: dict[str, Any] = {_PID: row.fields.get(_PID), "hint": row.text("hint", "")}
        meta |= {kind: row.text(kind, "") for kind in _KINDS}
        return PublicRecord(
            "scienceqa", split, uid, row.text("question").strip(),
            () if picture is None else (picture,), choices=choices,
            answers=() if letter is None else (letter,), ground_truth=letter, meta=meta,
        )  # fmt: skip

    return build_records(rows, name, build)


def _letter(row: Row, n_choices: int) -> str | None:
    answer = row.integer("answer", None)
    if not 1 <= n_choices <= len(LETTERS):
        message = f"{row.place}: choices: expected 1 to {len(LETTERS)}, got {n_choices}"
        raise BadRecord("wrong choices", message)
    if answer is not None and not 0 <= answer < n_choices:
        message = f"{row.place}: answer: expected 0 to {n_choices - 1}, got {answer}"
        raise BadRecord("wrong choices", message)
    return None if answer is None else LETTERS[answer]


def _on_disk(row: Row, split: str, folder: Path) -> Picture | None:
    image = row.text("image", None)
    if image is None:
        return None
    # A problem of "trainval" or "minival" lies in the folder of its own split.
    own = row.text("split", split)
    return picture_at(folder, f"{own}/{row.fields[_PID]}/{image}")


def _pids(path: Path, split: str) -> list[str]:
    """The ids of a split, in order. Raises UserError if the file does not tell them."""
    splits = read_json(path)
    pids = splits.get(split) if isinstance(splits, Mapping) else None
    if not isinstance(pids, list) or not all(isinstance(pid, str) for pid in pids):
        raise UserError(f"{path}: expected a list of texts at {split!r}, found none")
    return pids


def _fitting(path: Path, split: str, shards: tuple[Path, ...]) -> list[str]:
    pids, rows = _pids(path, split), count_rows(shards)
    if len(pids) != rows:
        raise UserError(f"{path}: expected {rows} ids of split {split}, got {len(pids)}")
    return pids


READER = Reader("scienceqa", SPLITS, "test", read)
