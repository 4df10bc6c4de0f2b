"""Records of arrays on disk, found by key: the store of a verifier's answers and of its states.

A folder belongs to one set of settings: its name holds their fingerprint. It grows by whole shards;
a run that is killed while it writes one loses that shard and nothing else. Runs may write at the
same time: no two shards share a name, and of a key that is there twice the first counts.

    cache/3f9a.../settings.json                  what the fingerprint stands for
                  00000-5be0c1d2.array_record    records
                  00000-5be0c1d2.keys.json       their keys, in order; written last

A record is a compressed .npz file, or raw: the length of a header in four bytes, the header (JSON:
key, and name, type and shape of each array), and the arrays' bytes. Raw ones read five times
faster, but take their full size; for arrays of noise that is no loss.
"""

import hashlib
import io
import json
import math
import os
import secrets
from collections.abc import Iterable, KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from array_record.python import array_record_module

from tiger_jax.errors import UserError

Record = TypeVar("Record", bound=tuple)
"""A NamedTuple of arrays."""
_KEYS = ".keys.json"
_HEADER_BYTES = 4


class RecordCache(Generic[Record]):
    """A folder of records; reading is lazy, so that worker processes can receive one."""

    def __init__(
        self, root: str | os.PathLike, settings: Mapping[str, Any], record_type: type[Record],
        half: Sequence[str] = (), raw: bool = False,
    ) -> None:  # fmt: skip
        """Open the folder of these settings, or make it.

        Args:
            settings: all that the records depend on, as JSON takes it; their order is free.
            record_type: a NamedTuple of arrays.
            half: its fields that are kept in half precision, and read in it.
            raw: how records are written; read arrays are then views that cannot be changed.

        Raises:
            UserError: the folder cannot be written.
        """
        text = json.dumps(dict(settings), sort_keys=True)
        self.folder = Path(root) / hashlib.sha256(text.encode()).hexdigest()[:16]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "settings.json").write_text(text + "\n")
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written ({error.strerror})") from None
        self._record_type, self._half, self._raw = record_type, tuple(half), raw
        self._places: dict[str, tuple[str, int]] = {}
        self._readers: dict[str, Any] = {}
        self._shards: set[str] = set()
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> Record:
        """Raises KeyError for a key without a record, UserError for a file whose records are not
        those of its list of keys."""
        shard, row = self._places[key]
        if shard not in self._readers:
            name = str(self._records_file(shard))
            self._readers[shard] = array_record_module.ArrayRecordReader(name)
        stored, record = self._unpack(self._readers[shard].read([row])[0])
        if stored is not None and stored != key:
            raise UserError(
                f"{self._records_file(shard)}: record {row}: expected that of {key}, got that of "
                f"{stored}; delete the folder, and the verifier is asked again"
            )
        return record

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_readers": {}}

    def keys(self) -> KeysView[str]:
        """All keys that have a record."""
        return self._places.keys()

    def refresh(self) -> None:
        """Take in the shards that other runs have finished; one without its keys is not."""
        for file in sorted(self.folder.glob(f"*{_KEYS}")):
            shard = file.name.removesuffix(_KEYS)
            if shard not in self._shards:
                self._enter(shard, json.loads(file.read_text()))

    def missing(self, keys: Iterable[str]) -> list[int]:
        """Places of the keys that have no record yet."""
        return [place for place, key in enumerate(keys) if key not in self._places]

    def add_shard(self, records: Sequence[tuple[str, Record]]) -> None:
        """Write some records; they count once all of them are on disk."""
        shard = f"{len(self._shards):05d}-{secrets.token_hex(4)}"
        path = self._records_file(shard)
        unfinished = path.with_suffix(".unfinished")
        # One record a group: they are read one at a time, in any order.
        options = "group_size:1,uncompressed" if self._raw else "group_size:1"
        writer = array_record_module.ArrayRecordWriter(str(unfinished), options)
        for key, record in records:
            writer.write(self._pack(key, record))
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

    def _pack(self, key: str, record: Record) -> bytes:
        small = {name: getattr(record, name).astype(np.float16) for name in self._half}
        arrays = record._replace(**small)._asdict()
        return _pack_raw(key, arrays) if self._raw else _pack_npz(key, arrays)

    def _unpack(self, data: bytes) -> tuple[str | None, Record]:
        """(key, record); early records hold no key."""
        key, arrays = _unpack_raw(data) if self._raw else _unpack_npz(data)
        return key, self._record_type(**{name: arrays[name] for name in self._record_type._fields})


def _pack_npz(key: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, key=np.array(key), **arrays)
    return file.getvalue()


def _unpack_npz(data: bytes) -> tuple[str | None, dict[str, np.ndarray]]:
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    return str(arrays.pop("key")) if "key" in arrays else None, arrays


def _pack_raw(key: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    described = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    header = json.dumps({"key": key, "arrays": described}).encode()
    parts = [len(header).to_bytes(_HEADER_BYTES, "little"), header]
    return b"".join([*parts, *(array.tobytes() for array in arrays.values())])


def _unpack_raw(data: bytes) -> tuple[str, dict[str, np.ndarray]]:
    place = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
    header = json.loads(data[_HEADER_BYTES:place])
    arrays = {}
    for name, kind, shape in header["arrays"]:
        arrays[name] = np.frombuffer(data, kind, math.prod(shape), place).reshape(shape)
        place += arrays[name].nbytes
    return header["key"], arrays
