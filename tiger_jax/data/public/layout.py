"""Finds the files of a data set below the path that a person gave."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.data.public.record import Picture
from tiger_jax.errors import UserError


def find_file(root: Path, names: Sequence[str], suffix: str = ".json") -> Path | None:
    """`root` itself if it is a file with this suffix, else the first of `names` below it."""
    if root.is_file():
        return root if root.suffix == suffix else None
    return next((path for name in names if (path := root / name).is_file()), None)


def not_found(root: Path, what: str, names: Sequence[str], found: Sequence[str] = ()) -> UserError:
    """The error for a path that holds nothing a reader knows.

    Args:
        names: what was looked for.
        found: splits that are there, where only the split is missing.
    """
    there = f", found only split {', '.join(found)}" if found else ", found none of them"
    return UserError(f"{root}: expected {what}: {' or '.join(names)}{there}")


def check_file_split(path: Path, split: str, splits: Sequence[str]) -> None:
    """UserError if a file's name says that it is of another split ("TextVQA_0.5.1_train.json")."""
    words = re.findall(r"[a-z]+", path.name.lower())
    named = [name for name in splits if name in words]
    if named and split not in named:
        raise UserError(f"{path}: expected a file of split {split}, its name says {named[0]}")


def find_folder(option: str | os.PathLike | None, base: Path, names: Sequence[str]) -> Path:
    """The folder of an option, else the first of `names` that is one below `base`.

    Args:
        names: "" is `base` itself. The first one is the answer where none is there: the missing
            pictures are then told by where they should be.

    Raises:
        UserError: the option names no folder.
    """
    if option is not None:
        if not os.path.isdir(option):  # Path.is_dir raises for a name that is too long
            raise UserError(f"{option}: expected a folder, found none there")
        return Path(option)
    return next((base / name for name in names if (base / name).is_dir()), base / names[0])


def picture_at(folder: Path, name: str) -> Picture:
    """The picture of a file, which need not be there yet."""
    return Picture(str(folder / name))


def base_of(root: Path) -> Path:
    """The folder in which a data set's other files lie."""
    return root.parent if root.is_file() else root


class Repeats:
    """Names for ids that repeat in their data set: "7", "7#2", "7#3" in the order of the file."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def name(self, original: str) -> str:
        """The next name of an id."""
        self._counts[original] += 1
        count = self._counts[original]
        return original if count == 1 else f"{original}#{count}"
