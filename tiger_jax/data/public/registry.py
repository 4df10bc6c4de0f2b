"""Public data sets by name; a reader's module is imported when its name is asked for."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from tiger_jax.data.public.dataset import Dataset, Reader
from tiger_jax.errors import UserError

READERS: dict[str, str] = {
    name: f"tiger_jax.data.public.{name}"
    for name in (
        "llava", "textvqa", "scienceqa", "docvqa", "tallyqa", "chartqa", "mmbench", "mm_vet",
        "coco_captions", "video_mme", "nlvr2", "muirbench",
    )
}  # fmt: skip
"""Name -> the module that holds its READER."""
FOLDERS: dict[str, str] = {
    name: {"mm_vet": "mm-vet", "coco_captions": "coco", "video_mme": "video-mme"}.get(name, name)
    for name in READERS
}
"""Name -> where it is looked for below the folder that holds all data sets."""


def reader_named(name: str) -> Reader:
    """Raises UserError for a name that no reader has."""
    if name not in READERS:
        raise UserError(f"data set: expected one of {', '.join(READERS)}, got {name!r}")
    return import_module(READERS[name]).READER


def open_dataset(
    name: str, path: str | os.PathLike, split: str | None = None, **options: Any
) -> Dataset:
    """A split of the data set `name` at `path`: a file or a folder, in either layout.

    Args:
        split: None takes the reader's default.
        options: those of the reader's `read`.

    Raises:
        UserError: unknown name, split or option, or nothing at `path` that the reader knows.
    """
    reader = reader_named(name)
    split = reader.split_named(split)
    reader.check_options(options)
    root = Path(path)
    if not os.path.exists(root):  # Path.exists raises for a name that is too long
        raise UserError(f"{root}: expected the files of {name}, found nothing there")
    # Finds the layout and reads no record: a wrong path is told here, not in the middle of a run.
    reader.read(root, split, **options)
    return Dataset(reader, root, split, options)
