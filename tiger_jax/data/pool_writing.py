"""One source of a pool, from its files to records and pictures: choose by uid, then write.

The first pass keeps ranks alone; the second opens the pictures of the chosen records, each of them
whole, and writes what is good. For each record that turns out bad the next rank is tried, so a
third pass is short and rare. Memory holds ranks, hashes, and the few records that threads work on.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tiger_jax.data.filters import PromptFilter
from tiger_jax.data.images import decode_image
from tiger_jax.data.pool_files import FAULTS, Shards, write_json
from tiger_jax.data.pool_rules import ANSWERS, PoolPrompt, PoolRules, gold_answer, pool_record
from tiger_jax.data.pool_selection import MISSING, Item, Selection, rank, select
from tiger_jax.data.public.record import Fault, PublicRecord
from tiger_jax.errors import UserError

RECORDS = "records.jsonl"
SUMMARY = "source.json"
PICTURE_STEM = "pictures"
_AHEAD = 4
"""Records a thread has waiting for it."""
Watch = Callable[[str, int, int], None]
"""(what is done, how many so far, of how many; 0 = not known)."""


@dataclass(frozen=True)
class Recipe:
    """What all sources of a pool share."""

    pool: str
    """kd or grpo."""
    seed: int
    prompt: PoolPrompt
    tags: PromptFilter
    keep_answers: bool
    allow_missing: bool = False
    min_side: int = 3
    max_aspect: float = 200.0
    """Pixels, and longer side over shorter: pictures beyond are faults, as no model takes them."""
    picture_bytes: int = 1 << 30
    """Of a file of pictures."""
    workers: int = 4
    evaluation_hashes: Mapping[str, str] = field(default_factory=dict)
    """sha256 of evaluation pictures -> the data set that has them."""


@dataclass(frozen=True)
class Source:
    """A data set as a pool wants it."""

    name: str
    count: int
    rules: PoolRules
    items: Callable[[], Iterator[Item]]
    """Its records and faults from the first on, each time it is called."""
    place: Path = Path()
    """Where its files lie: faults are told without it, so that a pool does not depend on it."""


class Checked(NamedTuple):
    """A record whose pictures were opened: sha256 and bytes of each, or what is wrong."""

    record: PublicRecord
    pictures: tuple[tuple[str, bytes], ...] = ()
    fault: Fault | None = None


def write_source(
    source: Source, recipe: Recipe, folder: Path, known: set[str], watch: Watch
) -> dict[str, Any]:
    """Choose and write a source's records into an empty folder.

    Args:
        known: hashes of pictures that earlier sources have written; this one's are added.

    Returns:
        What `source.json` in the folder holds: counts, and the pictures of each of its files.

    Raises:
        UserError: pictures are missing and may not be; the data set cannot be read.
    """
    with (folder / FAULTS).open("w", encoding="utf-8", newline="\n") as file:
        faults = _FaultFile(file, source.place)
        found = select(
            source.items(), source.rules, recipe.seed, faults.add,
            lambda read: watch(f"{source.name}: read", read, 0),
        )  # fmt: skip
        if not recipe.allow_missing:
            faults.check_none_missing(source.name)
        written = _Written(source, recipe, folder, known, faults, watch)
        written.fill(found)
        if not recipe.allow_missing:  # a file may be gone since
            faults.check_none_missing(source.name)
    summary = _summary(source, found, faults, written)
    write_json(folder / SUMMARY, summary)
    return summary


class _FaultFile:
    """Faults as they come: a line each, counted by kind."""

    def __init__(self, file: TextIO, place: Path) -> None:
        self._file = file
        # Pictures may also lie beside the place that was named.
        self._places = [f"{folder}/" for folder in (place, place.parent) if folder.name]
        self.kinds: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, fault: Fault) -> None:
        self.kinds[fault.kind] += 1
        self.first.setdefault(fault.kind, f"{fault.uid}: {fault.message}")
        message = fault.message
        for place in self._places:
            message = message.replace(place, "")
        line = {"uid": fault.uid, "kind": fault.kind, "message": message}
        self._file.write(json.dumps(line, sort_keys=True) + "\n")

    def check_none_missing(self, name: str) -> None:
        """UserError if pictures are missing."""
        if count := self.kinds[MISSING]:
            self._file.flush()
            raise UserError(
                f"{name}: {count} records lack their picture, first {self.first[MISSING]}; "
                "--config.allow_missing=True leaves them out"
            )


class _Written:
    """The records and pictures of one source, growing."""

    def __init__(
        self, source: Source, recipe: Recipe, folder: Path, known: set[str],
        faults: _FaultFile, watch: Watch,
    ) -> None:  # fmt: skip
        self._source, self._recipe, self._folder = source, recipe, folder
        self._known, self._faults, self._watch = known, faults, watch
        self.records = self.bad_pictures = self.unanswered = 0
        self.tags: Counter[str] = Counter()
        self.leaks: Counter[str] = Counter()
        self.pictures: list[list[str]] = []

    def fill(self, found: Selection) -> None:
        """Take ranks from the first on until there are enough good records, or no more ranks."""
        limit, start = self._recipe.picture_bytes, 0
        shards = Shards(self._folder, PICTURE_STEM, limit, compress=False)
        with (self._folder / RECORDS).open("w", encoding="utf-8", newline="\n") as file:
            while (lacking := self._source.count - self.records) and start < len(found.ranks):
                wanted = set(found.ranks[start : start + lacking])
                start += lacking
                for checked in self._open(wanted):
                    self._take(checked, shards, file)
        shards.close()

    def _open(self, wanted: set[bytes]) -> Iterator[Checked]:
        seed = self._recipe.seed
        records = (
            item for item in self._source.items()
            if isinstance(item, PublicRecord) and rank(seed, item.uid) in wanted
        )  # fmt: skip
        return _in_order(records, self._check, self._recipe.workers)

    def _check(self, record: PublicRecord) -> Checked:
        """Runs in a thread. A picture that was written before is not decoded again."""
        try:
            "".join([record.question, *(record.choices or ()), *record.answers]).encode()
        except UnicodeEncodeError as error:
            message = f"{record.uid}: expected valid Unicode text ({error.reason})"
            return Checked(record, fault=Fault(record.uid, "wrong type", message))
        pictures = []
        for picture in record.images:
            try:
                data = picture.read()
            except UserError as error:
                return Checked(record, fault=Fault(record.uid, MISSING, str(error)))
            name = hashlib.sha256(data).hexdigest()
            fault = None if name in self._known else self._damage(data, picture.name)
            if fault:
                return Checked(record, fault=Fault(record.uid, *fault))
            pictures.append((name, data))
        return Checked(record, tuple(pictures))

    def _damage(self, data: bytes, name: str) -> tuple[str, str] | None:
        """(kind, message) of what is wrong with an encoded picture."""
        try:
            width, height = decode_image(data, name).size
        except UserError as error:
            return "damaged image", str(error)
        short, long = sorted((width, height))
        if short < self._recipe.min_side or long >= self._recipe.max_aspect * short:
            return "image shape", (
                f"{name}: expected sides of {self._recipe.min_side} pixels or more, the longer one "
                f"below {self._recipe.max_aspect:g} times the shorter, got {width}x{height}"
            )
        return None

    def _take(self, checked: Checked, shards: Shards, file: TextIO) -> None:
        record, recipe = checked.record, self._recipe
        if checked.fault:
            self.bad_pictures += 1
            self._faults.add(checked.fault)
            return
        names = [name for name, _ in checked.pictures]
        if leak := next(filter(None, map(recipe.evaluation_hashes.get, names)), None):
            self.leaks[leak] += 1
            return
        for name, data in checked.pictures:
            self._keep_picture(name, data, shards)
        answer = gold_answer if recipe.keep_answers else lambda record: None
        fields = pool_record(record, recipe.pool, names, recipe.prompt, recipe.tags, answer)
        file.write(json.dumps(fields, sort_keys=True) + "\n")
        self.records += 1
        self.unanswered += fields[ANSWERS[recipe.pool]] is None
        self.tags.update(fields["tags"])
        self._watch(f"{self._source.name}: written", self.records, self._source.count)

    def _keep_picture(self, name: str, data: bytes, shards: Shards) -> None:
        if name in self._known:
            return
        shard, _ = shards.add(data)
        if shard == len(self.pictures):
            self.pictures.append([])
        self.pictures[shard].append(name)
        self._known.add(name)


def _summary(
    source: Source, found: Selection, faults: _FaultFile, written: _Written
) -> dict[str, Any]:
    return {
        "read": found.read,
        "rules": found.steps(),
        "candidates": len(found.ranks),
        "wanted": source.count,
        "written": written.records,
        "faults": dict(faults.kinds),
        "bad_pictures": written.bad_pictures,
        "without_answer": written.unanswered,
        "leaks_excluded": dict(found.leaks + written.leaks),
        "tags": dict(written.tags),
        "pictures": written.pictures,
    }


def _in_order(
    records: Iterable[PublicRecord], check: Callable[[PublicRecord], Checked], workers: int
) -> Iterator[Checked]:
    """`check` of each record by some threads, in order, a few records ahead."""
    if workers < 1:
        yield from map(check, records)
        return
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque = deque()
        for record in records:
            ahead.append(pool.submit(check, record))
            if len(ahead) >= _AHEAD * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
