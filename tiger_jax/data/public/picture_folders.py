"""The folder of a data set's pictures: an option's, or the usual one beside its files."""

import os
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.data.public.parquet_layout import picture_of
from tiger_jax.data.public.record import BadRecord, Picture
from tiger_jax.data.public.rows import Row
from tiger_jax.errors import UserError


def find_folder(option: str | os.PathLike | None, base: Path, names: Sequence[str]) -> Path:
    """The folder of an option, else the first of `names` below `base` that is one, else `base`.

    Raises:
        UserError: the option names no folder.
    """
    if option is not None:
        if not os.path.isdir(option):  # Path.is_dir raises for a name that is too long
            raise UserError(f"{option}: expected a folder, found none there")
        return Path(option)
    return next((base / name for name in names if (base / name).is_dir()), base)


def required_picture(row: Row, name: str = "image") -> Picture:
    """`picture_of` of a row that must have one. Raises BadRecord: it has none."""
    picture = picture_of(row, name)
    if picture is None:
        raise BadRecord("missing image", f"{row.place}: {name}: expected a picture, found none")
    return picture
