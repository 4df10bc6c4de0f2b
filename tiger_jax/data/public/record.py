"""The one record that every public data set is read into, and the fault of one that cannot be."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiger_jax.data.images import check_file
from tiger_jax.errors import UserError


@dataclass(frozen=True)
class Picture:
    """A picture as its data set stores it; nothing is opened before `read`."""

    path: str | None = None
    data: bytes | None = field(default=None, repr=False)
    """The encoded file, where the data set holds it (parquet, TSV)."""

    @property
    def name(self) -> str:
        """What an error line calls it."""
        return self.path or "embedded picture"

    @property
    def is_there(self) -> bool:
        """Whether there is something to read; nothing is opened."""
        return self.data is not None or (self.path is not None and os.path.isfile(self.path))

    def read(self) -> bytes:
        """The encoded file. Raises UserError if there is none, or it cannot be read."""
        if self.data is not None:
            return self.data
        if self.path is None:
            raise UserError("picture: expected bytes or a path, found neither")
        path = Path(self.path)
        check_file(path, "an image file")
        try:
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None

    def sha256(self) -> str:
        """Hash of the encoded bytes, as pools name their pictures. Raises UserError as `read`."""
        return hashlib.sha256(self.read()).hexdigest()


@dataclass(frozen=True)
class PublicRecord:
    """One question of a public data set.

    `question` is bare: no format suffix and no `<image>` marks, except MuirBench's, which say where
    a picture goes.
    """

    source: str
    split: str
    uid: str
    """`record_uid(...)`: unique in its data set."""
    question: str
    images: tuple[Picture, ...] = ()
    video: str | None = None
    choices: tuple[str, ...] | None = None
    """Texts without their letters."""
    answers: tuple[str, ...] = ()
    """Every gold; none where the data set hides them."""
    ground_truth: str | None = None
    """The one gold (the letter, where there are choices); None where it is hidden."""
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A record that cannot be used."""

    uid: str
    """Of the record, or "file:place" where no id could be read."""
    kind: str
    """Such as "missing image", "damaged image", "wrong type", "missing field", "duplicate uid"."""
    message: str
    """One line."""


class BadRecord(ValueError):
    """Raised while one record is read: becomes a Fault, and the neighbours go on."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind

    def fault(self, uid: str) -> Fault:
        """As the fault of the record `uid`."""
        return Fault(uid, self.kind, str(self))


def record_uid(source: str, split: str, original: str, turn: int = 0) -> str:
    """ "textvqa/val/34602/0". `turn`: which question of the original record, from 0."""
    return f"{source}/{split}/{original}/{turn}"
