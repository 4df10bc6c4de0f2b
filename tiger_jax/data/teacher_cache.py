"""The verifier's answers on disk, keyed by verifier and prompt, with what a drafter learns of them.

Letters: N questions of an example, n response tokens of an example, k kept tokens of a law, w kept
rows of an attention.

A folder belongs to one verifier and one set of settings: its name holds their fingerprint. It
grows by whole shards; a run that is killed while it writes one loses that shard and nothing else.
Runs may write at the same time: no two shards share a name, and of a key that is there twice the
first counts.

    cache/3f9a.../settings.json                  what the fingerprint stands for
                  00000-5be0c1d2.array_record    records
                  00000-5be0c1d2.keys.json       their keys, in order; written last
"""

import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module
from jaxtyping import Float, Int32

from tiger_jax.errors import UserError

NO_ENTRY = -1
"""An id that pads a list of kept entries."""
_KEYS = ".keys.json"


class TeacherRecord(NamedTuple):
    """What the verifier said about one example, all its responses one after the other."""

    lengths: Int32[np.ndarray, " N"]
    """Tokens of each response, the end token included if it was said."""
    tokens: Int32[np.ndarray, " n"]
    logprobs: Float[np.ndarray, " n"]
    """Natural-log probability of each token under the verifier's own law."""
    law_ids: Int32[np.ndarray, "n k"]
    """The likeliest tokens in each token's place."""
    law_logprobs: Float[np.ndarray, "n k"]
    route_ids: Int32[np.ndarray, "n w"]
    """The bank rows that matter most for what follows this token (method.md 2.1)."""
    route_weights: Float[np.ndarray, "n w"]
    """Their share; what is missing to 1 lies on the other rows."""


class TeacherCache:
    """A folder of records; reading is lazy, so that worker processes can receive one."""

    def __init__(self, root: str | os.PathLike, settings: Mapping[str, Any]) -> None:
        text = json.dumps(dict(settings), sort_keys=True)
        self.folder = Path(root) / hashlib.sha256(text.encode()).hexdigest()[:16]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "settings.json").write_text(text + "\n")
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written ({error.strerror})") from None
        self._places: dict[str, tuple[str, int]] = {}
        self._readers: dict[str, Any] = {}
        self._shards: set[str] = set()
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> TeacherRecord:
        """Raises KeyError for a prompt that the verifier has not answered, UserError for a file
        whose records are not those of its list of keys."""
        shard, row = self._places[key]
        if shard not in self._readers:
            name = str(self._records_file(shard))
            self._readers[shard] = array_record_module.ArrayRecordReader(name)
        stored, record = _unpack(self._readers[shard].read([row])[0])
        if stored is not None and stored != key:
            raise UserError(
                f"{self._records_file(shard)}: record {row}: expected that of {key}, got that of "
                f"{stored}; delete the folder, and the verifier is asked again"
            )
        return record

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_readers": {}}

    def refresh(self) -> None:
        """Take in the shards that other runs have finished; one without its keys is not."""
        for file in sorted(self.folder.glob(f"*{_KEYS}")):
            shard = file.name.removesuffix(_KEYS)
            if shard not in self._shards:
                self._enter(shard, json.loads(file.read_text()))

    def missing(self, keys: Iterable[str]) -> list[int]:
        """Places of the keys that have no record yet."""
        return [place for place, key in enumerate(keys) if key not in self._places]

    def add_shard(self, records: Sequence[tuple[str, TeacherRecord]]) -> None:
        """Write some records; they count once all of them are on disk."""
        shard = f"{len(self._shards):05d}-{secrets.token_hex(4)}"
        path = self._records_file(shard)
        unfinished = path.with_suffix(".unfinished")
        writer = array_record_module.ArrayRecordWriter(str(unfinished), "group_size:1")
        for key, record in records:
            writer.write(_pack(key, record))
        writer.close()
        os.replace(unfinished, path)
        keys = [key for key, _ in records]
        listing = self.folder / f"{shard}{_KEYS}"
        part = listing.with_suffix(".unfinished")
        part.write_text(json.dumps(keys))
        os.replace(part, listing)
        self._enter(shard, keys)

    def _enter(self, shard: str, keys: Sequence[str]) -> None:
        for row, key in enumerate(keys):
            self._places.setdefault(key, (shard, row))
        self._shards.add(shard)

    def _records_file(self, shard: str) -> Path:
        return self.folder / f"{shard}.array_record"


def _pack(key: str, record: TeacherRecord) -> bytes:
    """Law and attention in half precision: good to three digits, at half the size."""
    small = record._replace(
        law_logprobs=record.law_logprobs.astype(np.float16),
        route_weights=record.route_weights.astype(np.float16),
    )
    file = io.BytesIO()
    np.savez(file, key=np.array(key), **small._asdict())
    return file.getvalue()


def _unpack(data: bytes) -> tuple[str | None, TeacherRecord]:
    """(key, record); early records hold no key."""
    with np.load(io.BytesIO(data)) as arrays:
        key = str(arrays["key"]) if "key" in arrays else None
        return key, TeacherRecord(**{name: arrays[name] for name in TeacherRecord._fields})
