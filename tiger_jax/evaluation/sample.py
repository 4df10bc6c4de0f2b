"""Which questions of a source are asked: chosen by their names, written down, the same for ever."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tiger_jax.data.public.record import Fault, Picture
from tiger_jax.evaluation.questions import GROUPED, Question, Source

NAMED_FAULTS = 5
"""Faults of a source that a report quotes."""
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Sample:
    """The questions of a source that are asked."""

    entry: Mapping[str, Any]
    source: Source
    questions: tuple[Question, ...]
    """Without pictures, in the order of the source."""
    total: int
    """Usable questions that the source has."""
    faults: Mapping[str, int]
    """Records that cannot be used, by their kind."""
    quoted: tuple[str, ...]
    """The first of them, one line each."""
    group_sizes: Mapping[str, int]
    """Questions of each group in the whole source, those whose files are missing too; of sources
    that have groups."""
    videos: bool = False
    """Whether some of them show videos."""

    @property
    def uids(self) -> tuple[str, ...]:
        """Names of the questions."""
        return tuple(question.uid for question in self.questions)

    @property
    def digest(self) -> str:
        """Changes with the list of names, with what is asked, and with what is shown."""
        text = json.dumps([(q.uid, q.text, q.max_new_tokens, q.shown) for q in self.questions])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def place(self) -> str | None:
        """The file or folder that it was read from; None for scenes."""
        dataset = getattr(self.source, "dataset", None)
        place = dataset.root if dataset is not None else getattr(self.source, "path", None)
        return None if place is None else str(place)

    @property
    def label(self) -> str:
        """What a table calls it."""
        return self.entry["label"]


def take(source: Source, entry: Mapping[str, Any], seed: int, folder: Path) -> Sample:
    """Choose the questions of an entry, as before where the run folder has a list of them.

    Args:
        entry: one of a config's `datasets`; its `limit` counts questions, of mmbench whole ones
            with all their rotations; 0 is no limit.
        folder: where ids/LABEL.json lies or is written.

    Raises:
        UserError: from reading the source.
    """
    found: dict[str, Question] = {}
    faults: dict[str, int] = {}
    quoted: list[str] = []
    videos = False
    sizes: dict[str, int] = {}
    for item in source:
        if isinstance(item, Question):
            sizes[item.group] = sizes.get(item.group, 0) + 1
        fault = item if isinstance(item, Fault) else missing_file(item)
        if fault is None:
            found[item.uid] = item.light
            videos |= bool(item.videos)
        else:
            faults[fault.kind] = faults.get(fault.kind, 0) + 1
            quoted.append(fault.message)
            del quoted[NAMED_FAULTS:]
    groups: dict[str, list[str]] = {}
    for question in found.values():
        groups.setdefault(question.group, []).append(question.uid)
    settings = {
        "dataset": source.name, "split": source.split, "seed": seed,
        **{name: entry[name] for name in ("mode", "limit", "where", "kinds", "hard", "options")},
    }  # fmt: skip
    settings = json.loads(json.dumps(settings))
    path = folder / "ids" / f"{_file_name(entry['label'])}-{entry['mode']}.json"
    ids = _kept(path, settings)
    if ids is None or not set(ids) <= set(found):
        ids = choose(groups, entry["limit"], seed, whole=source.name == "mmbench")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"settings": settings, "ids": ids}, indent=1) + "\n")
    chosen = set(ids)
    questions = tuple(question for uid, question in found.items() if uid in chosen)
    return Sample(
        entry, source, questions, len(found), faults, tuple(quoted),
        sizes if source.name in GROUPED else {}, videos,
    )  # fmt: skip


def missing_file(question: Question) -> Fault | None:
    """The first file that a question shows and that is not there: told before anything runs."""
    for kind, shown in (("image", question.images), ("video", question.videos)):
        for item in shown:
            if isinstance(item, Picture):
                path, there = item.path, item.is_there
            elif isinstance(item, str):
                path, there = item, os.path.exists(item)  # of a video: a folder of pictures too
            else:
                continue
            if not there:
                message = f"{path}: expected a file, found none"
                return Fault(question.uid, f"missing {kind}", message)
    return None


def choose(
    groups: Mapping[str, Sequence[str]], limit: int, seed: int, whole: bool = False
) -> list[str]:
    """Names of whole groups, up to `limit` names (or groups, if `whole`); 0 takes all.

    Groups come in the order of the hash of (seed, name): which of them are chosen depends neither
    on the order of files nor on how many others there are.
    """
    order = sorted(groups, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    if not limit:
        return [uid for name in order for uid in groups[name]]
    ids: list[str] = []
    used = 0
    for name in order:
        size = 1 if whole else len(groups[name])
        if used + size <= limit:
            ids += groups[name]
            used += size
    return ids


def asked(sample: Sample) -> Iterator[Question]:
    """The chosen questions with their pictures, read from the source once more."""
    left = set(sample.uids)
    for item in sample.source:
        if isinstance(item, Question) and item.uid in left:
            yield item
            left.remove(item.uid)
            if not left:  # the rest of a large source is not read for nothing
                return


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """`size` neighbours at a time; the last ones may be fewer."""
    window: list[T] = []
    for item in items:
        window.append(item)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while one is used."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
        waiting = reader.submit(next, items, end)
        while (item := waiting.result()) is not end:
            waiting = reader.submit(next, items, end)
            yield item


def _kept(path: Path, settings: Mapping[str, Any]) -> list[str] | None:
    """The list in the run folder; None if there is none, or one of another choice."""
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    same = isinstance(kept, dict) and kept.get("settings") == settings
    return kept["ids"] if same else None


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in label)
