"""The picture cells of an MMBench TSV file: bytes, or the index of the row that holds them."""

import re
from collections import Counter
from pathlib import Path

from tiger_jax.data.public.record import BadRecord, Fault
from tiger_jax.data.public.rows import Row, tsv_rows

TSV_COLUMNS = ("index", "question", "A", "B", "image")
LONGEST_REFERENCE = 64
"""Characters; a longer cell holds a picture (VLMEvalKit's rule)."""
_INDEX = re.compile(r"\d{1,18}")


class PictureCells:
    """Follows references while the file is read a second time, in order.

    A first pass learns who refers to whom, without keeping pictures. In the second one the cell of
    a row that others refer to is kept until the last of them came. Only cells that stand below a
    row that refers to them are kept from the first pass on: no known file has any.
    """

    def __init__(self, path: Path):
        """Raises UserError as `tsv_rows`."""
        self.indices: set[int] = set()
        """Of all rows."""
        self._waiting: Counter[int] = Counter()
        self._holders: set[int] = set()
        self._kept: dict[int, str] = {}
        for row in tsv_rows(path, TSV_COLUMNS):
            if not isinstance(row, Fault):
                self._note(row)

    @property
    def kept(self) -> set[int]:
        """Indices of the rows whose cells are in memory."""
        return set(self._kept)

    def cell(self, row: Row, index: int) -> str:
        """The base64 text of a row's picture; each row of the file is to be asked for once.

        Raises:
            BadRecord: no picture, or a reference to a row that holds none.
        """
        cell = row.text("image", "").strip()
        if len(cell) > LONGEST_REFERENCE:
            if self._waiting[index]:
                self._kept[index] = cell
            return cell
        if not cell:
            raise BadRecord("missing image", f"{row.place}: image: expected a picture, got none")
        target = _reference(cell)
        if target not in self._holders:
            message = f"{row.place}: image: expected the index of a row with a picture, got {cell}"
            raise BadRecord("missing image", message)
        found = self._kept[target]
        self._waiting[target] -= 1
        if not self._waiting[target]:
            del self._kept[target]
        return found

    def _note(self, row: Row) -> None:
        index = _reference(row.fields["index"])
        cell = row.fields["image"].strip()
        if index is None:
            return
        self.indices.add(index)
        if len(cell) <= LONGEST_REFERENCE:
            target = _reference(cell)
            if target is not None:
                self._waiting[target] += 1
            return
        self._holders.add(index)
        if self._waiting[index]:
            self._kept[index] = cell


def _reference(cell: str) -> int | None:
    return int(cell) if _INDEX.fullmatch(cell.strip()) else None
