"""The files of a training pool: records and pictures as ArrayRecord, and what says all is there.

    pools/kd/manifest.json                           written last: without it there is no pool
             pool-kd-00000-of-00006.array_record     one JSON record each, in any order to read
             pictures-00000-of-00012.array_record    encoded pictures, each of them once
             pictures.json                           {sha256: [shard, row]}
             faults.jsonl                            what was left out as it cannot be used, and why

Files take their names only when they are whole, and hold neither times nor paths: the same inputs
give the same bytes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
from array_record.python import array_record_module

from tiger_jax.errors import UserError

MANIFEST = "manifest.json"
PICTURES = "pictures.json"
FAULTS = "faults.jsonl"
UNFINISHED = ".unfinished"
FORMAT = 1
_READ_BYTES = 1 << 20


def shard_name(stem: str, number: int, count: int) -> str:
    """ "pool-kd-00000-of-00006.array_record"."""
    return f"{stem}-{number:05d}-of-{count:05d}.array_record"


class Shards:
    """Writes records one after the other into files of a bounded size: STEM-00000.array_record, ...

    One record a group, so that any of them is read alone.
    """

    def __init__(self, folder: Path, stem: str, limit: int, *, compress: bool) -> None:
        """`limit`: bytes of a file, before compression; a larger record has one for itself."""
        self._folder, self._stem, self._limit = folder, stem, limit
        self._options = "group_size:1" if compress else "group_size:1,uncompressed"
        self._writer: Any = None
        self._bytes = 0
        self.counts: list[int] = []
        """Records of each file."""

    def add(self, record: bytes) -> tuple[int, int]:
        """Where it lies: (file, row)."""
        if self._writer is None or self._bytes + len(record) > self._limit:
            self.close()
            path = self._folder / f"{self._stem}-{len(self.counts):05d}.array_record"
            self._writer = array_record_module.ArrayRecordWriter(str(path), self._options)
            self._bytes = 0
            self.counts.append(0)
        self._writer.write(record)
        self._bytes += len(record)
        self.counts[-1] += 1
        return len(self.counts) - 1, self.counts[-1] - 1

    def close(self) -> None:
        """Finish the file that is open, if one is."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def open_records(files: Sequence[Path]) -> grain.sources.ArrayRecordDataSource:
    """All records of some files by place, read when they are asked for."""
    return grain.sources.ArrayRecordDataSource([str(file) for file in files])


def write_json(path: Path, value: Any) -> None:
    """One whole file of JSON with sorted keys, or none."""
    write_whole(path, [json.dumps(value, indent=1, sort_keys=True), "\n"])


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """One whole file of a JSON value a line, or none."""
    write_whole(path, (json.dumps(value, sort_keys=True) + "\n" for value in values))


def write_whole(path: Path, texts: Iterable[str]) -> None:
    """Write one text after the other beside the file, then take its name."""
    part = path.with_name(path.name + UNFINISHED)
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(texts)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read_json(path: Path) -> Any:
    """The value of a file that `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a file that `write_json_lines` wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def file_facts(path: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


DATA_SUFFIXES = (".json", ".jsonl", ".tsv", ".csv", ".txt", ".parquet")


def input_facts(root: Path, watch: Callable[[str], None]) -> dict[str, dict]:
    """`file_facts` of everything at a data set's place that is no picture, by relative name.

    Pictures in files of their own are known by the hashes that the pool's records hold.
    """
    files = [root] if root.is_file() else root.rglob("*")
    facts = {}
    for file in sorted(file for file in files if file.suffix.lower() in DATA_SUFFIXES):
        if file.is_file():
            name = file.name if file == root else file.relative_to(root).as_posix()
            watch(name)
            facts[name] = file_facts(file)
    return facts


def read_manifest(folder: Path) -> dict[str, Any]:
    """What stands in a pool's manifest.

    Raises:
        UserError: there is none, it cannot be read, or a file of the pool is missing or of another
            length.
    """
    path = folder / MANIFEST
    if not path.is_file():
        why = "it was not built to its end" if (folder / UNFINISHED).exists() else "no pool"
        raise UserError(f"{path}: expected the manifest of a pool, found none there ({why})")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise UserError(f"{path}: expected format {FORMAT}, got {manifest['format']!r}")
        for name, facts in manifest["outputs"].items():
            file = folder / name
            size = file.stat().st_size if file.is_file() else None
            if size != facts["bytes"]:
                found = "none there" if size is None else f"{size}"
                raise UserError(f"{file}: expected {facts['bytes']} bytes, found {found}")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path}: not the manifest of a pool ({why})") from None
    return manifest
