"""A training pool as examples by place, read as they are asked for.

    pool = PoolSource.open("pools/kd")
    mixtures.mixture([(pool, 1)], seed=0)

`build_pool` writes pools. Their prompts were chosen and filtered then: nothing is left out here, so
that an epoch's length and order stand.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiger_jax.data.examples import Example
from tiger_jax.data.pool_files import MANIFEST, PICTURES, open_records, read_json, read_manifest
from tiger_jax.data.pool_rules import ANSWERS
from tiger_jax.data.public.record import Picture
from tiger_jax.errors import UserError


@dataclass(frozen=True)
class PoolSource(Sequence[Example]):
    """Examples of a pool with their pictures as bytes; worker processes can receive it.

    What the source says of itself (`repr`) holds the manifest's hash, so that notes and caches of
    one pool are never taken for those of another.
    """

    folder: str
    manifest_sha256: str
    answer: str
    """The field of a record that becomes `response`: "target" or "ground_truth"."""
    records: Any = field(repr=False, compare=False)
    pictures: Any = field(repr=False, compare=False)
    places: dict[str, int] = field(repr=False, compare=False)
    """sha256 -> row of `pictures`."""

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "PoolSource":
        """A finished pool. Raises UserError if it is none, or files are not as it says."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        outputs = manifest["outputs"]
        files = [name for name in sorted(outputs) if name.endswith(".array_record")]
        pictures = [name for name in files if name.startswith("pictures-")]
        starts, first = [], 0
        for name in pictures:
            starts.append(first)
            first += outputs[name]["records"]
        return cls(
            folder=str(folder),
            manifest_sha256=manifest_sha256(folder),
            answer=ANSWERS[manifest["pool"]],
            records=open_records([folder / name for name in files if name not in pictures]),
            pictures=open_records([folder / name for name in pictures]) if pictures else (),
            places={
                sha: starts[shard] + row
                for sha, (shard, row) in read_json(folder / PICTURES).items()
            },
        )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Any) -> Example:
        """Raises UserError for a picture that is not what the pool says."""
        count, place = len(self), int(place)
        if not -count <= place < count:
            raise IndexError(f"{self.folder}: expected a place below {count}, got {place}")
        fields = json.loads(self.records[place % count])
        images = tuple(self._picture(fields["uid"], sha) for sha in fields["images"])
        return Example(
            id=fields["uid"], prompt=fields["prompt"], images=images, source=fields["source"],
            response=fields[self.answer], tag=fields["tags"][0],
        )  # fmt: skip

    def _picture(self, uid: str, sha256: str) -> Picture:
        if sha256 not in self.places:
            raise UserError(f"{self.folder}: {uid}: picture {sha256} is not in the pool")
        data = self.pictures[self.places[sha256]]
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UserError(f"{self.folder}: {uid}: picture {sha256}: its bytes are others now")
        return Picture(path=f"{self.folder}/{sha256[:16]}", data=data)


def contents_of(folder: str | os.PathLike) -> tuple[set[str], set[str]]:
    """(uids, hashes of pictures) of a pool. Raises UserError as `PoolSource.open`."""
    source = PoolSource.open(folder)
    uids = {json.loads(source.records[place])["uid"] for place in range(len(source))}
    return uids, set(source.places)


def is_pool(path: str | os.PathLike) -> bool:
    """Whether a path is a pool's: a folder. Whether it is a whole one, opening it says."""
    return Path(path).is_dir()


def manifest_sha256(folder: str | os.PathLike) -> str:
    """What names a pool with all its files: the hash of its manifest, which holds theirs."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(f"{path}: expected the manifest of a pool, found none there")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pool_hashes(paths: Iterable[str]) -> dict[str, str]:
    """`manifest_sha256` of those paths that are pools; a run goes on only with the same ones.

    Raises:
        UserError: a folder that is no pool.
    """
    return {str(path): manifest_sha256(path) for path in paths if is_pool(path)}
