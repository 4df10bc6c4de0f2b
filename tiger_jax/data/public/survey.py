"""What a data set holds: counts, fields and how often they are empty, faults by kind."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.record import Fault, PublicRecord

NAMED_FAULTS = 3
"""Faults of a kind that are named; the others are counted."""
_ALWAYS = ("source", "split", "uid", "meta")


@dataclass
class FieldCount:
    """How often a field came, and how often with nothing in it: null, "" or an empty list."""

    seen: int = 0
    empty: int = 0


@dataclass
class Survey:
    """Counts over the records that were read."""

    records: int = 0
    with_pictures: int = 0
    pictures: int = 0
    with_video: int = 0
    text_only: int = 0
    hidden_answers: int = 0
    fields: dict[str, FieldCount] = field(default_factory=dict)
    """By name; those of `meta` as "meta.NAME"."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind: records that could not be read, and records with a bad picture or video."""
    named: dict[str, list[Fault]] = field(default_factory=dict)
    """The first `NAMED_FAULTS` of each kind."""
    first: list[PublicRecord] = field(default_factory=list)
    opened: bool = True
    """Whether the pictures were opened."""

    def add(self, record: PublicRecord) -> None:
        """Counts one record."""
        self.records += 1
        self.pictures += len(record.images)
        self.with_pictures += bool(record.images)
        self.with_video += record.video is not None
        self.text_only += not record.images and record.video is None
        self.hidden_answers += not record.answers and record.ground_truth is None
        for name, value in _values(record).items():
            count = self.fields.setdefault(name, FieldCount())
            count.seen += 1
            count.empty += value is None or value in ("", (), [])

    def add_fault(self, fault: Fault) -> None:
        """Counts one fault, and names it if it is one of the first of its kind."""
        self.faults[fault.kind] += 1
        named = self.named.setdefault(fault.kind, [])
        if len(named) < NAMED_FAULTS:
            named.append(fault)

    def as_json(self) -> dict[str, Any]:
        """The counts as plain values for a JSON file; bytes of pictures are only measured."""
        counts = {f.name: getattr(self, f.name) for f in fields(self)[:6]}
        return {
            **counts,
            "pictures_opened": self.opened,
            "fields": {name: vars(count) for name, count in self.fields.items()},
            "faults": dict(self.faults.most_common()),
            "first_faults": [vars(fault) for faults in self.named.values() for fault in faults],
            "first_records": [plain_record(record) for record in self.first],
        }


def survey(
    items: Iterable[PublicRecord | Fault], limit: int | None = None, first: int = 3,
    open_pictures: bool = True, compat: str | None = None,
    watch: Callable[[int], None] = lambda count: None,
) -> Survey:  # fmt: skip
    """Reads a data set once, one record in memory.

    Args:
        limit: most records and faults that are read; None reads all.
        first: records that are kept to be shown.
        open_pictures: decode every picture, as `compat` says, and look whether videos are there.
        watch: is told after each item how many were read.
    """
    found = Survey(opened=open_pictures)
    for count, item in enumerate(islice(items, limit), start=1):
        if isinstance(item, Fault):
            found.add_fault(item)
        else:
            found.add(item)
            if len(found.first) < first:
                found.first.append(item)
            fault = _shown_fault(item, compat) if open_pictures else None
            if fault:
                found.add_fault(fault)
        watch(count)
    return found


def plain_record(record: PublicRecord) -> dict[str, Any]:
    """A record in plain values: a picture is its path, or the size of its bytes."""
    shown = {name: value for name, value in vars(record).items() if name != "images"}
    images = [
        picture.path if picture.data is None else f"{len(picture.data)} bytes"
        for picture in record.images
    ]
    return {**shown, "images": images, "meta": dict(record.meta)}


def _shown_fault(record: PublicRecord, compat: str | None) -> Fault | None:
    if record.video is not None and not Path(record.video).is_file():
        message = f"{record.video}: expected a video file, found nothing there"
        return Fault(record.uid, "missing video", message)
    return picture_fault(record, compat)


def _values(record: PublicRecord) -> dict[str, Any]:
    own = {name: value for name, value in vars(record).items() if name not in _ALWAYS}
    return own | {f"meta.{name}": value for name, value in record.meta.items()}
