"""The Hugging Face layout: parquet shards, pictures as struct<bytes, path>.

    FOLDER/data/train-00000-of-00003.parquet      a split is its shards, in order
                train-00001-of-00003.parquet      a shard is row groups, in order
                train-00002-of-00003.parquet      a row group is read a few rows at a time

Only pyarrow is needed, and only the columns that a reader asks for are read.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tiger_jax.data.public.record import BadRecord, Picture
from tiger_jax.data.public.rows import Row
from tiger_jax.errors import UserError

ROWS_AT_ONCE = 16
"""Rows in memory: a page of DocVQA is up to a few megabytes."""
_BUFFER = 2**20
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?\.parquet")


class RowPlace(NamedTuple):
    """Where reading stands: the next row is `row` of row group `row_group` of shard `shard`."""

    shard: int = 0
    row_group: int = 0
    row: int = 0


def find_shards(root: Path, *names: str) -> tuple[Path, ...]:
    """The shards of a split in order; none where `root` does not hold this layout.

    They lie in `root`, or in one folder of it ("data", or a configuration's name).

    Args:
        root: the folder, or one parquet file, which is then the whole split.
        names: what the split may be called; "val" may also be "validation".

    Raises:
        UserError: a shard is not there, several folders hold the split, or the one file is of
            another split.
    """
    names = (*names, "validation") if "val" in names else names
    if root.is_file():
        return _one_file(root, names)
    if not root.is_dir():
        return ()
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    found = {folder: shards for folder in folders if (shards := _shards_in(folder, names))}
    if root in found:
        return found[root]
    if len(found) > 1:
        here = ", ".join(folder.name for folder in found)
        raise UserError(f"{root}: expected split {names[0]} in one folder, found it in {here}")
    return next(iter(found.values()), ())


def splits_of(root: Path) -> tuple[str, ...]:
    """Names of the splits whose shards lie in `root` or a folder of it, for error lines."""
    found = root.glob("**/*.parquet") if root.is_dir() else ()
    return tuple(sorted({m["split"] for path in found if (m := _SHARD.fullmatch(path.name))}))


def columns_of(shard: Path) -> tuple[str, ...]:
    """The names of a shard's columns. Raises UserError if it is damaged."""
    with _opened(_pyarrow(), shard) as file:
        return tuple(file.schema_arrow.names)


def count_rows(shards: Sequence[Path]) -> int:
    """Rows of all shards, by what they say of themselves. Raises UserError if one is damaged."""
    pyarrow, total = _pyarrow(), 0
    for shard in shards:
        with _opened(pyarrow, shard) as file:
            total += file.metadata.num_rows
    return total


class ParquetRows(Iterator[Row]):
    """The rows of shards one after the other; `place` is where a later reader can go on.

    Rows are places "SHARD:N" with N from 1; their fields are Python values.
    """

    def __init__(
        self, shards: Sequence[Path], columns: Sequence[str], optional: Sequence[str] = (),
        start: RowPlace = RowPlace(),  # noqa: B008
    ):  # fmt: skip
        """
        Args:
            columns: those that are read, in any order.
            optional: further ones that are read where a shard has them.
            start: an earlier reader's `place`.

        Raises:
            UserError: pyarrow is not installed. While it is iterated: a shard is damaged or lacks
                a column.
        """
        self.place = start
        self._pyarrow = _pyarrow()
        self._shards, self._columns, self._optional = tuple(shards), columns, optional
        self._rows = self._read(start)

    def __next__(self) -> Row:
        self.place, row = next(self._rows)
        return row

    def _read(self, start: RowPlace) -> Iterator[tuple[RowPlace, Row]]:
        """(place of the row after it, row)."""
        for shard in range(start.shard, len(self._shards)):
            path = self._shards[shard]
            with _opened(self._pyarrow, path) as file:
                columns = self._columns_in(path, file.schema_arrow.names)
                first = start.row_group if shard == start.shard else 0
                before = sum(file.metadata.row_group(g).num_rows for g in range(first))
                for group in range(first, file.num_row_groups):
                    skipped = start.row if (shard, group) == start[:2] else 0
                    for row, fields in enumerate(self._group(path, file, group, columns)):
                        if row >= skipped:
                            place = RowPlace(shard, group, row + 1)
                            yield place, Row(f"{path.name}:{before + row + 1}", fields)
                    before += file.metadata.row_group(group).num_rows

    def _columns_in(self, path: Path, names: Sequence[str]) -> list[str]:
        missing = [name for name in self._columns if name not in names]
        if missing:
            raise UserError(f"{path}: expected column {missing[0]!r}, found {', '.join(names)}")
        return [*self._columns, *(name for name in self._optional if name in names)]

    def _group(
        self, path: Path, file: Any, group: int, columns: list[str]
    ) -> Iterator[dict[str, Any]]:
        """The rows of a row group, a few at a time."""
        batches = file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns)
        while True:
            try:
                batch = next(batches, None)
                rows = batch.to_pylist() if batch is not None else None
            except (self._pyarrow.ArrowException, OSError, ValueError) as error:
                raise UserError(f"{path}: damaged parquet file ({_one_line(error)})") from None
            if rows is None:
                return
            yield from rows


def picture_of(row: Row, name: str, folder: Path | None = None) -> Picture | None:
    """The picture of an Image column; None where the row has none.

    Args:
        folder: where a path without bytes is looked up.

    Raises:
        BadRecord: not struct<bytes, path>.
    """
    return _picture(row, name, row.value(name, None), folder)


def required_picture(row: Row, name: str = "image") -> Picture:
    """`picture_of` of a row that must have one. Raises BadRecord: it has none."""
    picture = picture_of(row, name)
    if picture is None:
        raise BadRecord("missing image", f"{row.place}: {name}: expected a picture, found none")
    return picture


def pictures_of(row: Row, name: str, folder: Path | None = None) -> tuple[Picture, ...]:
    """The pictures of a column of lists. Raises BadRecord: not such a list, or a null in it."""
    found = tuple(_picture(row, name, value, folder) for value in row.items(name, []))
    if None in found:
        message = f"{row.place}: {name}: picture {found.index(None) + 1} has no bytes and no path"
        raise BadRecord("missing image", message)
    return found


def _picture(row: Row, name: str, value: Any, folder: Path | None) -> Picture | None:
    if value is None:
        return None
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (0, 0)
    if not isinstance(data, bytes | None) or not isinstance(path, str | None):
        raise BadRecord("wrong type", f"{row.place}: {name}: expected struct<bytes, path>")
    if data is None and path is None:
        return None
    if data is None and folder is not None:
        path = os.path.join(folder, path)
    return Picture(path, data)


def _one_file(path: Path, names: Sequence[str]) -> tuple[Path, ...]:
    if path.suffix != ".parquet":
        return ()
    match = _SHARD.fullmatch(path.name)
    # A prefix is somebody's own: "MADEUP_test-00000-of-00001.parquet".
    if match and not any(re.fullmatch(rf"(.+_)?{name}", match["split"]) for name in names):
        raise UserError(f"{path}: expected split {names[0]}, got {match['split']}")
    return (path,)


def _shards_in(folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    for name in names:
        found: dict[int, Path] = {}
        counts = set()
        for path in sorted(folder.glob(f"{name}-*.parquet")):
            match = _SHARD.fullmatch(path.name)
            if match and match["split"] == name:
                found[int(match["number"])] = path
                counts.add(int(match["count"]))
        if found:
            return _complete(folder, name, found, counts)
        if (alone := folder / f"{name}.parquet").is_file():
            return (alone,)
    return ()


def _complete(
    folder: Path, name: str, found: dict[int, Path], counts: set[int]
) -> tuple[Path, ...]:  # fmt: skip
    if len(counts) > 1:
        raise UserError(f"{folder}: expected shards of one {name}, found counts {sorted(counts)}")
    count = counts.pop()
    missing = sorted(set(range(count)) - set(found))
    if missing:
        raise UserError(
            f"{folder}: expected {name}-{missing[0]:05d}-of-{count:05d}.parquet, found "
            f"{len(found)} of {count} shards (a shard's own path reads it alone)"
        )
    return tuple(found[number] for number in sorted(found))


def _opened(pyarrow: ModuleType, path: Path) -> Any:
    import pyarrow.parquet

    try:
        # Without pre_buffer a column of pictures comes piece by piece, not a row group at once.
        return pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged parquet file ({_one_line(error)})") from None


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            "parquet files are read by pyarrow, which is not installed: "
            'pip install "tiger_jax[data]"'
        ) from None
    return pyarrow


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:150]
