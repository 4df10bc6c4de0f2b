"""A public data set at a place on disk: read as often as one likes, one record at a time."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from tiger_jax.data.images import check_compat, decode_image
from tiger_jax.data.public.record import Fault, Picture, PublicRecord
from tiger_jax.errors import UserError

_OTHER_NAME = {"val": "validation", "validation": "val"}


@dataclass(frozen=True)
class Reader:
    """How one data set is read."""

    name: str
    splits: tuple[str, ...]
    default_split: str
    read: Callable[..., Iterator[PublicRecord | Fault]]
    """(root, split, **options) -> records and faults. Finds the layout at `root` when it is called
    (UserError naming what was looked for), and reads while it is iterated."""

    def split_named(self, split: str | None) -> str:
        """The split under the name it has here: "validation" is as good as "val".

        Raises:
            UserError: the data set has no such split.
        """
        if split is None:
            return self.default_split
        for name in (split, _OTHER_NAME.get(split)):
            if name in self.splits:
                return name
        raise UserError(f"{self.name}: expected split {' or '.join(self.splits)}, got {split!r}")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """UserError for an option that `read` does not have, or a switch that is no switch."""
        known = dict(list(inspect.signature(self.read).parameters.items())[2:])
        for name, value in options.items():
            if name not in known:
                raise UserError(
                    f"{self.name}: expected options out of {', '.join(known) or 'none'}, "
                    f"got {name!r}"
                )
            # "no" and "0" are texts, and as such they would switch on.
            switch = known[name].annotation in (bool, bool | None)
            if switch and not isinstance(value, known[name].annotation):
                raise UserError(f"{self.name}: {name}: expected true or false, got {value!r}")


@dataclass(frozen=True)
class Dataset:
    """One split; each iteration starts at the first record again."""

    reader: Reader
    root: Path
    split: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[PublicRecord | Fault]:
        """Records in the order of the files. A uid that came before gives a fault instead."""
        seen = set()
        for item in self.reader.read(self.root, self.split, **self.options):
            if isinstance(item, PublicRecord):
                if item.uid in seen:
                    message = f"{item.uid}: an earlier record of the data set has this uid"
                    yield Fault(item.uid, "duplicate uid", message)
                    continue
                seen.add(item.uid)
            yield item


def decode_picture(picture: Picture, compat: str | None = None) -> Image.Image:
    """The picture as upright RGB; `compat` as in `images.decode_image`.

    Raises:
        UserError: missing, damaged, too large, or not a picture.
    """
    return decode_image(picture.read(), picture.name, compat)


def picture_fault(record: PublicRecord, compat: str | None = None) -> Fault | None:
    """What is wrong with the first bad picture of a record; None if each can be decoded.

    Raises:
        UserError: an unknown `compat`.
    """
    check_compat(compat)
    for picture in record.images:
        try:
            data = picture.read()
        except UserError as error:
            return Fault(record.uid, "missing image", str(error))
        try:
            decode_image(data, picture.name, compat)
        except UserError as error:
            return Fault(record.uid, "damaged image", str(error))
    return None
